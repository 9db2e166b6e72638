"""Every config, preset, argument and sweep item builds, fits a mesh, and steps at `tiny` size."""

import collections
import functools
import importlib
import inspect
import json
import math
import pathlib

import jax
from ml_collections import ConfigDict, FieldReference
import numpy as np
import pytest

from configs import arguments, common, instruct
from jtx import build, config_files
from jtx.compile.declared import declared_data
from jtx.config_files import flatten
from jtx.data import pipeline
from jtx.data.dataset import Dataset
from jtx.data.op import Stage
from jtx.data.ops.registry import OPS
from jtx.data.tokenizers.files import read_tokenizer
from jtx.data.tokenizers.kinds import wordpiece
from jtx.errors import ConfigError
from jtx.evals.run import make_evaluators
from jtx.models.text_head import HeadConfig
from jtx.nn.positions import Learned
from jtx.nn.rope import Rope
from jtx.nn.shapes import shapes_of
from jtx.parallel import sharding
from jtx.saved import pretrained
from jtx.saved.folder import open_saved
from jtx.train import loop
from jtx.train.program import Program
from tests.helpers import block, encoder

FOLDER = pathlib.Path(common.__file__).parent
SHARED = ("__init__", "arguments", "common", "decoders", "finetuning", "images",
          "teaching", "published")  # parts of configs
NAMES = sorted(p.stem for p in FOLDER.glob("*.py") if p.stem not in SHARED)


def module(name):
  return importlib.import_module(f"configs.{name}")


def sweeps(name):
  return {k: f for k, f in inspect.getmembers(module(name), inspect.isfunction)
          if k.startswith("sweep_") and f.__module__ == f"configs.{name}"}


@functools.cache
def edits_of(name, sweep, preset=""):
  """The items of a sweep; one that takes the config gets that of a preset."""
  function = sweeps(name)[sweep]
  takes_config = inspect.signature(function).parameters
  return list(function(config_of(name, preset)) if takes_config else function())


FINETUNING = {"classify": "classes", "glue": "classes", "tag": "tags", "squad": "span",
              "choose": "choice", "embed": "embedding"}
PRESETS = [(n, p) for n in NAMES for p in module(n).PRESETS]
SWEPT = {"sweep_ablation": "model=gpt1,lm=0.5"}  # what a sweep is for, where not every preset is


def config_of(name, preset="", sweep=None, item=0):
  config = module(name).get_config(",".join(filter(None, (preset, SWEPT.get(sweep)))))
  if sweep is not None:
    common.apply(config, edits_of(name, sweep, preset)[item])
  return config.lock()


ITEMS = [(n, s, i) for n in NAMES for s in sweeps(n) for i, _ in enumerate(edits_of(n, s))]


# Ops of which a tokenizer sees nothing.
LATER = {name for name, op in OPS.items() if op.stage is not Stage.EXAMPLE} | {"filter_length"}


def make_program(config, mesh_shape, vocab_size=None, outputs=3):
  mesh = sharding.make_mesh({"data": 1, "fsdp": 1, "tensor": 1, "context": 1} | mesh_shape,
                            jax.devices()[:math.prod(mesh_shape.values())])
  sharding.check_batch(config.batch_size, mesh, f"batch_size={config.batch_size}")
  known = config.tokenizer.kind.get("vocab_size")
  recipe, info = declared_data(config, None if known else vocab_size or 30_000, outputs)
  model, objective = build.make_model(config, info, lambda: (0.5,) * info["head.outputs"])
  make_evaluators(config)
  example = pipeline.example_batch(recipe, config.batch_size)
  return Program(config, model, objective, example=example, mesh=mesh)


TOKENIZERS = {}  # of tiny configs, by what they are trained on


@functools.cache
def tiny_batch(sections):
  """A real batch of a tiny config's data, which many share, and the vocabulary's size."""
  config = config_files.from_plain(json.loads(sections))
  to_tokens = [op for op in json.loads(sections)["data"]["ops"] if op["name"] not in LATER]
  trained = json.dumps([config.tokenizer.to_json(), config.data.train, to_tokens])
  data = Dataset(config.data, config.tokenizer, TOKENIZERS.get(trained))
  TOKENIZERS[trained] = data.tokenizer_texts()
  stream = data.train_stream(0, config.batch_size, range(config.batch_size))
  return loop.without_ids(stream.batch(0)), data.info


def test_the_folder_has_the_promised_configs():
  assert {"nmt_base", "nmt_big", "nmt_multi30k", "nmt_numbers", "nmt_text"} <= set(NAMES)
  assert {"vit", "vit_b16", "deit", "deit3", "mae", "vit_cifar10", "vit_digits"} <= set(NAMES)
  assert set(FINETUNING) <= set(NAMES)
  assert len(ITEMS) >= 18


@pytest.mark.parametrize("name", [n for n in NAMES if "parse_args" in inspect.getsource(module(n))])
def test_presets_cover_every_argument(name, monkeypatch):
  seen, original = {}, arguments.parse_args

  def record(arg, **defaults):
    args = original(arg, **defaults)
    for key in defaults:
      seen.setdefault(key, set()).add(args[key])
    return args

  monkeypatch.setattr(arguments, "parse_args", record)
  for preset in module(name).PRESETS:
    module(name).get_config(preset)
  seen.pop("init", None)  # a folder: see test_finetuning_starts_from_a_folder
  seen.pop("lora", None)  # of the model of a folder: see tests/train/test_lora.py
  for key in ("teacher", "losses"):  # a folder, too, and terms against its model
    seen.pop(key, None)
  seen.pop("template", None)  # a file: see test_conversations_by_a_template_of_ones_own
  assert all(len(values) > 1 for values in seen.values()), seen


def full_cases():
  yield from ((n, p, None, 0) for n, p in PRESETS if p != "tiny")
  yield from ((n, "", s, i) for n, s, i in ITEMS)


def takes_path(value):
  """What of a value decides by which path the code goes: of a number the type, of several zeros."""
  if isinstance(value, (tuple, list)):
    return tuple(v == 0 if type(v) in (int, float) else takes_path(v) for v in value)
  return repr(type(value) if type(value) in (int, float) else value)


OF_DATA = ("data.", "batch_size", "phases", "epochs", "steps", "tokenizer.", "optim.lr",
           "distill.")  # terms against a teacher, which is not here


def every_config_and_items():
  """Presets and items are for `make test-slow`; further items of the data have the same state."""
  for name, preset, sweep, item in full_cases():
    if item and all(key.startswith(OF_DATA) for key in edits_of(name, sweep)[item]):
      continue
    marks = [pytest.mark.slow] if preset or sweep else []
    yield pytest.param(name, preset, sweep, item, marks=marks)


@pytest.mark.parametrize("name,preset,sweep,item", list(every_config_and_items()))
def test_full_size_train_state_on_a_mesh(name, preset, sweep, item):
  config = config_of(name, preset, sweep, item)
  program = make_program(config, {"data": 2, "fsdp": 2, "tensor": 2})
  shapes = jax.tree.leaves(program.abstract_state)
  places = jax.tree.leaves(program.shardings)
  assert len(shapes) == len(places)
  sharded = 0
  for x, place in zip(shapes, places):
    local = place.shard_shape(x.shape)  # raises where a dimension does not divide
    sharded += math.prod(local) * 2 <= math.prod(x.shape)
  assert sharded >= len(shapes) // 4
  assert program.flops_per_step > 0


def path_of(config):
  """What decides by which path a step's code goes, but for the texts and images it is made of."""
  parts = ("model.", "objective.", "optim.", "distill.", "data.ops", "phases", "ema")
  return frozenset((key, takes_path((value,))) for key, value in flatten(config).items()
                   if key.startswith(parts))


def tiny_cases():
  """Cases of which a step is made, and those of which only a batch is.

  A key is stepped with the first value that an item gives it: what others compute is tested by
  itself, and all are traced at full size. Every config takes its step in `make test-slow`, with its
  first tiny preset; its further presets and items are for `make test-exhaustive`.
  """
  steps, others, seen, paths, stepped = [], [], set(), set(), set()

  def add(n, p, s, i):
    path = path_of(config_of(n, p, s, i))
    if path not in paths:
      further = [pytest.mark.exhaustive] if n in stepped else []
      fast = (n, p, s) == ("nmt_base", "tiny", None)
      marks = [] if fast else [pytest.mark.slow, *further]
      steps.append(pytest.param(n, p, s, i, marks=marks))
    if path in paths or n in stepped:
      others.append(pytest.param(n, p, s, i, marks=pytest.mark.slow))
    paths.add(path)
    stepped.add(n)

  for n, p in PRESETS:
    if "tiny" in p:
      add(n, p, None, 0)
  for n, s, i in ITEMS:
    edits = edits_of(n, s)[i]
    keys = {(n, key) for key in edits  # others: see train/test_distilled.py
            if not key.startswith(("distill.", "optim.frozen"))}
    if not keys <= seen:
      add(n, "tiny", s, i)
    elif len({takes_path(e.get(key)) for e in edits_of(n, s) for key in edits
              if key.startswith("data.")}) > 1:
      others.append(pytest.param(n, "tiny", s, i, marks=pytest.mark.slow))
    seen |= keys
  return steps, others


STEPPED, OTHER_DATA = tiny_cases()


def tiny_data(name, preset, sweep, item):
  """A config, a batch of its data, and what these tell a model."""
  config = config_of(name, preset, sweep, item)
  shared = ("data", "tokenizer", "batch_size")
  plain = json.loads(config.to_json())
  batch, info = tiny_batch(json.dumps({key: plain[key] for key in shared}))
  if "vocab_size" in info and config.tokenizer.kind.name != "bytes":  # there is none of images
    with config.unlocked():
      config.tokenizer.kind.vocab_size = info["vocab_size"]
  return config, batch, info


@pytest.mark.parametrize("name,preset,sweep,item", STEPPED)
def test_one_real_step_at_tiny_size(name, preset, sweep, item):
  config, batch, info = tiny_data(name, preset, sweep, item)
  program = make_program(config, {"data": 1}, outputs=info.get("head.outputs"))
  state = program.step(program.init(), sharding.to_device(
      batch, config.batch_size, sharding.batch_sharding(program.mesh)))
  loss, weight = np.asarray(state.sums["loss"])
  assert int(state.bad_step) == -1 and int(state.step) == 1
  assert weight == program.objective.weights(batch)["loss"] > 0
  # A fresh model knows nothing: its loss is near that of the uniform distribution or above.
  choices = info["vocab_size"] if "tgt" in batch or "mlm_labels" in batch else 2
  assert 0.5 * math.log(choices) < loss / weight < 50


@pytest.mark.parametrize("name,preset,sweep,item", OTHER_DATA)
def test_a_batch_of_other_data(name, preset, sweep, item):
  config, batch, info = tiny_data(name, preset, sweep, item)
  _, objective = build.make_model(config, info)
  assert objective.weights(batch)["loss"] > 0


@pytest.mark.parametrize("name,sweep,item", ITEMS)
def test_a_sweep_item_changes_only_what_it_names(name, sweep, item):
  edits = edits_of(name, sweep)[item]
  before = flatten(config_of(name, SWEPT.get(sweep, "")))
  after = flatten(config_of(name, "", sweep, item))
  changed = {k for k in before.keys() | after.keys() if before.get(k) != after.get(k)}
  # One item of a grid may be what the config has anyway.
  assert changed or all(before.get(key, value) == value for key, value in edits.items())
  # A decoder's keys follow its encoder's.
  named = {*edits, *(e.replace("model.encoder.", "model.decoder.") for e in edits)}
  assert all(any(k == e or k.startswith((e + ".", e + "[")) for e in named) for k in changed)


def held(config, path=""):
  """The sections and references of a config, by path."""
  for key, value in config.items(preserve_field_references=True):
    if isinstance(value, (FieldReference, ConfigDict)):
      yield path + key, value
    items = value if isinstance(value, tuple) else [value]
    for item in items:
      if isinstance(item, ConfigDict):
        yield from held(item, f"{path}{key}.")


@pytest.mark.parametrize("name,preset", PRESETS)
def test_a_flag_for_one_key_changes_no_other(name, preset):
  paths = collections.defaultdict(set)
  for path, value in held(module(name).get_config(preset)):
    paths[id(value)].add(path)
  assert not [found for found in paths.values() if len(found) > 1]


def test_initial_values_follow_the_width_until_they_are_set():
  model = module("t5").get_config("t5_small").model
  model.encoder.width = 64
  assert (model.encoder.position.init_std, model.embedding.output_scale) == (0.125, 0.125)
  model.encoder.position.init_std = 2.0
  assert (model.decoder.position.init_std, model.embedding.output_scale) == (0.125, 0.125)


def test_tiny_takes_arguments_from_the_command_line_form():
  assert config_of("nmt_base", "big,pair=fr-en,tiny=true").steps == 4
  assert config_of("nmt_base", "size=big").model.encoder.width == 1024


@pytest.mark.parametrize("name,arg,message", [
    ("classify", "freeze=5", "freeze=5: must be 0 to 4, the layers of the model"),
    ("classify", "freeze=-1", "freeze=-1: must be 0 to 4"),
    ("vit", "freeze=13", "freeze=13: must be 0 to 12"),
    ("tag", "decay=1.5", "decay=1.5: must be above 0, and 1 at most"),
    ("deit", "decay=0", "decay=0.0: must be above 0"),
    ("squad", "holdout=100", "holdout=100: must be 0 to 99 percent"),
    ("squad", "holdout=10,dev=own.json", "holdout and dev=own.json exclude each other"),
    ("choose", "choices=1", "choices='1': must be the number of columns, 2 or more"),
    ("choose", "choices=right", "choices='right': must be the number of columns"),
    ("nmt_text", "length=0", "length=0: must be 1 or more"),
    ("rnn", "length=0", "length=0: must be 1 or more"),
    ("nmt_multi30k", "pairs=-1", "pairs=-1: must be 0 or more"),
    ("bert_books", "tiny,corpus=jsonl:a,val=jsonl:b", "corpus='jsonl:a' has no place beside tiny"),
    ("squad", "train=mine.json,dev=dev.json,tiny", "train='mine.json' has no place beside tiny"),
    ("vit", "tiny,train=images:mine", "train='images:mine' has no place beside tiny"),
    ("clip", "val=captions:mine.tsv,tiny", "val='captions:mine.tsv' has no place beside tiny"),
    ("classify", "tiny,others=mine.tsv", "others='mine.tsv' has no place beside tiny"),
    ("nmt_text", "denoise=mono.en,tiny", "denoise='mono.en' has no place beside tiny"),
    ("shakespeare", "tiny,text=mine.txt", "text='mine.txt' has no place beside tiny"),
])
def test_arguments_that_do_not_fit(name, arg, message):
  with pytest.raises(ConfigError, match=f"^config arguments? {message}"):
    module(name).get_config(arg)


@pytest.mark.parametrize("name", ["bert", "gpt", "bart", "t5"])
def test_tiny_keeps_the_vocabulary_that_is_named(name):
  kind = config_of(name, "tiny,vocab=mine.json").tokenizer.kind
  assert (kind.name, kind.path) == ("file", "mine.json")


@pytest.mark.parametrize("arg,message", [
    ("bgi", "size='bgi': did you mean 'big'"),
    ("sizes=big", "did you mean 'size'"),
    ("tiny=maybe", "'maybe' is not a bool"),
    ("pair=en-xx", "pair='en-xx': valid are: de-en, fr-en"),
])
def test_wrong_arguments(arg, message):
  with pytest.raises(ConfigError, match=message):
    module("nmt_base").get_config(arg)


@pytest.fixture
def trained_images(tmp_path):
  """Folders of models of images, of which no weight is read: by Hugging Face, and of a run."""
  for name in ("dinov2", "vit", "vit_mae"):
    (tmp_path / name).mkdir()
    (tmp_path / name / "config.json").write_text(json.dumps({
        "model_type": name, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "patch_size": 4, "image_size": 16}))
  for name, c in (("run", module("vit").get_config("s,patch=4,res=16,pool=mean,train=npz:a.npz")),
                  ("detector", module("detr").get_config("digits,queries=12"))):
    (tmp_path / name).mkdir()
    config_files.save(c, str(tmp_path / name / "config.json"))
  return tmp_path


@pytest.mark.parametrize("name, args, message", [
    ("vit", "ti,init=vit", "size=ti: the model that init=.*vit brings has stack.width=32, not 192;"
     " leave out size"),
    ("vit", "patch=8,init=vit", "patch=8: .* brings has patch_size=4, not 8; leave out patch"),
    ("vit", "patch=16,init=run", "patch=16: .* brings has patch_size=4, not 16"),  # the default
    ("vit", "channels=1,init=vit", "channels=1: .* brings has image.channels=3, not 1"),
    ("deit", "b,init=run", "size=b: .* brings has stack.width=384, not 768"),
    ("mae", "l,init=run", "size=l: .* brings has stack.width=384, not 1024"),
    ("detr", "digits,queries=11,init=detector", "queries=11: .* brings has num_queries=12, not 11"),
    ("vit_digits", "patch=2,init=vit", "patch=2: .* brings has patch_size=4, not 2"),
])
def test_arguments_for_another_model_than_that_of_init(name, args, message, trained_images):
  args = args.replace("init=", f"init={trained_images}/")
  with pytest.raises(ConfigError, match=f"^config argument {message}"):
    module(name).get_config(args)


@pytest.mark.parametrize("args, pool", [
    ("init=dinov2", "first_mean"), ("init=dinov2,pool=first", "first"), ("init=vit", "first"),
    ("init=vit_mae", "first"), ("init=run", "mean"), ("s,patch=4,init=run,pool=first", "first")])
def test_a_head_pools_as_the_classifier_of_init(args, pool, trained_images):
  c = module("vit").get_config(args.replace("init=", f"init={trained_images}/"))
  assert (c.model.head.pool, c.model.patch_size, c.model.head.task) == (pool, 4, "classes")


@pytest.mark.slow
def test_the_decoded_length_fits_learned_positions():
  """A learned table must hold every position that training and decoding can ask for."""
  for name, preset, sweep, item in full_cases():
    config = config_of(name, preset, sweep, item)
    if "stack" not in config.model and config.model.name not in ("encdec", "two_towers"):
      continue  # neither recurrent nor convolutional models have a table of positions of texts
    if config.model.name == "two_towers":
      caption, = (op for op in config.data.ops if op.name == "caption")
      assert caption.length <= config.model.text_stack.position.max_length
      continue
    stack = config.model.decoder if config.model.name == "encdec" else config.model.stack
    if config.model.name != "vit" and stack.position.name == "learned":
      layout, = (op for op in config.data.ops if OPS[op.name].stage is Stage.LAYOUT)
      asked = max([*layout.lengths, *(length for _, length, _ in config.phases)])
      if "tgt" in layout.fields:
        asked = max(asked, config.decode.max_source_length, config.decode.max_target_length)
      assert asked <= stack.position.max_length


@pytest.mark.slow
def test_texts_of_images_have_rows_of_the_length_that_is_asked_for():
  lengths = {}
  for preset in ("tiny", "tiny,length=6"):
    config, batch, _ = tiny_data("clip", preset, None, 0)
    assert len(batch["text"]) == config.batch_size
    lengths[preset] = (batch["text_segment_ids"] > 0).sum(-1)
  assert batch["text"].shape[1] == 6 < lengths["tiny"].max()
  np.testing.assert_array_equal(lengths["tiny,length=6"], np.minimum(lengths["tiny"], 6))
  for wrong in (13, -1):
    with pytest.raises(ConfigError, match=f"length={wrong}: must be 1 to 12"):
      module("clip").get_config(f"length={wrong}")


@pytest.mark.parametrize("name", ["bert_books", "gpt_books"])
def test_the_last_authors_are_held_out(name):
  config = config_of(name, "corpus=documents:books.zip")
  held_out = ("documents:books.zip:folders[95%:]",)
  assert config.data.train == ("documents:books.zip:folders[:95%]",)
  assert {e.source for e in config.evals.values()} == {held_out}
  with pytest.raises(ConfigError, match="corpus='jsonl:a': only of documents:PATH can folders"):
    config_of(name, "corpus=jsonl:a")


def test_a_corpus_of_ones_own_is_not_evaluated_on_wikipedia():
  for name in ("bert", "electra", "adapt", "gpt", "t5", "bart"):
    config = config_of(name, "corpus=jsonl:a")
    assert (config.data.train, dict(config.evals)) == (("jsonl:a",), {})
    assert config_of(name, "val=jsonl:b").evals.val.source == ("jsonl:b",)
    assert config_of(name).evals.val.source == ("tfds:wikipedia/20230601.en:train[:1%]",)


def test_books_have_other_objectives_at_the_same_size():
  mlm, electra, plm = (config_of("bert_books", f"objective={o}") for o in ("mlm", "electra", "plm"))
  assert electra.model.stack == mlm.model.stack and electra.model.generator.width == 64
  assert (electra.objective.name, plm.objective.name) == ("electra", "plm")
  assert plm.model.stack.position.name == "transformer_xl"
  for key in ("width", "num_layers"):
    assert plm.model.stack[key] == mlm.model.stack[key]
  assert plm.model.stack.block.ffn.dim == mlm.model.stack.block.ffn.dim
  assert plm.model.stack.block.ffn.dropout == 0 == plm.model.stack.block.attention.dropout
  assert [c.data.ops[-1].name for c in (mlm, electra, plm)] == ["mask", "mask", "permute"]
  assert [sorted(c.evals) for c in (mlm, electra, plm)] == [["counts", "val"], ["val"], ["val"]]
  with pytest.raises(ConfigError, match="objective='elektra': did you mean 'electra'"):
    config_of("bert_books", "objective=elektra")


def test_positions_of_another_kind():
  position = lambda *args: config_of(*args).model.stack.position
  assert position("bert_books", "").name == "rope"
  assert position("bert_books", "position=learned") == position("bert", "mini")
  assert position("distilbert", "position=t5").num_buckets == 32
  with pytest.raises(ConfigError, match="position='ropes': did you mean 'rope'"):
    config_of("bert", "position=ropes")


@pytest.mark.parametrize("files", ["", ",files"])
def test_every_task_of_glue_has_its_texts_label_and_scores(files):
  tasks = module("glue").TASKS
  for name, task in tasks.items():
    config = config_of("glue", name + files)
    encode, label, _ = config.data.ops
    assert (*encode.texts, label.key) == (task.columns if files else (*task.texts, "label"))
    assert len(config.evals) == (2 if name == "mnli" else 1)
    for evaluator in config.evals.values():
      assert evaluator.scores == task.scores
    make_evaluators(config)
    assert (label.name, config.objective.loss) == (
        ("label", "cross_entropy") if task.names else ("number", "squared_error"))


BERT = dict(activation="gelu", num_heads=2, ffn_dim=16, attention_bias=True, norm_eps=1e-12,
            init_std=0.02)
MODERN = dict(activation="gelu", num_heads=2, ffn_dim=16, gated=True, use_bias=False,
              norm_position="pre", norm_eps=1e-5, attention_norm=False, dropout=0.0, init_std=0.02)


@pytest.fixture(scope="module", params=["bert", "modernbert", "workdir"])
def folder(request, tmp_path_factory):
  """A folder of three layers: of Hugging Face, or a workdir of what no family there has."""
  tokenizer = wordpiece(iter(["a few words"]), vocab_size=40, min_frequency=1)
  size = dict(vocab_size=tokenizer.vocab_size, width=8, num_layers=3)
  if request.param == "bert":
    model = encoder(**size, block=block(**BERT), position=Learned(512),
                    head=HeadConfig(task="embedding", transform="tanh"))
  elif request.param == "workdir":
    model = encoder(**size, block=block(**BERT), position=Rope(), mlm=True)
  else:
    model = encoder(**size, block=block(**MODERN), position=Rope(local_base=100.0),
                    num_token_types=0, pattern=("global", "local", "local"), window=4)
  example = {key: np.zeros((1, 1), np.int32)
             for key in ("text", "text_segment_ids", "text_positions")}
  shapes = sharding.unbox(shapes_of(model.init, jax.random.key(0), example))["params"]
  path = str(tmp_path_factory.mktemp("folder") / "model")
  zeros = jax.tree.map(lambda x: np.zeros(x.shape, np.float32), shapes)
  pretrained.save_pretrained(path, model, zeros, tokenizer,
                             format="jtx" if request.param == "workdir" else "hf")
  return path, model


def test_others_are_evaluated_by_the_names_of_their_files():
  config = config_of("squad", "others=../x/xquad.en.json+/y/xquad.de.json")
  assert {name: e.source for name, e in config.evals.items()} == {
      "dev": ("squad:dev-v1.1.json",), "xquad_en": ("squad:../x/xquad.en.json",),
      "xquad_de": ("squad:/y/xquad.de.json",)}
  config = config_of("tag", "format=conllu,others=de.conllu.gz")
  assert config.evals.de.source == ("conllu:de.conllu.gz",)
  one, two = "a/de.csv:columns[text=v.1+label]:rows[:9%]", "squad:b/fr.csv:columns[text=x/y+label]"
  config = config_of("classify", f"others={one}+{two}+c.tsv")
  assert {name: e.source for name, e in config.evals.items() if name != "dev"} == {
      "de": (f"csv:{one}",), "fr": (two,), "c": ("tsv:c.tsv",)}
  config = config_of("nmt_text", f"denoise=a.txt+{one}")
  assert config.data.train == ("text:a.txt", f"csv:{one}")
  for others in ("a/x.tsv+b/x.tsv", "dev.tsv"):
    with pytest.raises(ConfigError, match="others='.*': two evaluations would be named"):
      config_of("classify", f"others={others}")


@pytest.mark.parametrize("features, layers, combine", [
    ("embeddings", (0,), "concat"), ("second_to_last", (-2,), "concat"), ("last", (-1,), "concat"),
    ("sum_last_four", (-4, -3, -2, -1), "sum"), ("concat_last_four", (-4, -3, -2, -1), "concat"),
    ("sum_all", (1, 2, 3, 4), "sum"),
])
def test_features_are_the_layers_of_the_paper(features, layers, combine):
  config = config_of("tag", f"features={features}")
  assert (config.model.features.layers, config.model.features.combine) == (layers, combine)


@pytest.mark.parametrize("arg, message", [
    ("features=first", "features='first': valid are: embeddings, second_to_last, last"),
    ("features=last,freeze=1", "freeze and decay have no place beside features"),
])
def test_features_that_can_not_be(arg, message):
  with pytest.raises(ConfigError, match=message):
    config_of("tag", arg)


@pytest.mark.parametrize("name", [
    pytest.param(n, marks=[pytest.mark.slow] * (n == "embed")) for n in FINETUNING])
def test_finetuning_starts_from_a_folder(name, folder):
  path, saved = folder
  config = config_of(name, f"init={path},freeze=1,decay=0.5")
  assert config.init_from == path
  labelled = {"head.outputs": 2} if FINETUNING[name] in ("classes", "tags") else {}
  model, _ = build.make_model(config, {"vocab_size": saved.vocab_size, **labelled})
  assert model.head.task == FINETUNING[name]
  assert encoder(model, head=saved.head, mlm=saved.mlm, unroll=1) == saved
  assert model.stack.unroll == 0
  assert read_tokenizer(config.tokenizer.kind.path).vocab_size == saved.vocab_size
  params, missing = open_saved(path).params_for(model)
  assert params and all(p.startswith("task_head/") for p in missing)
  # The embeddings and the first layer stay; below the head the rate is halved a layer.
  mults = dict(config.optim.lr_mults)
  assert sorted(mults.values()) == [0.0, 0.0, 0.25, 0.5]
  make_program(config, {"data": 1}, saved.vocab_size)  # raises where one matches no parameter


def test_packed_rows_have_as_many_texts_as_the_batch():
  alone, together = (config_of("classify", f"batch=24,max_length=48{more}") for more in (
      "", ",pack=4"))
  assert (alone.batch_size, alone.data.ops[-1].name) == (24, "pad")
  layout = together.data.ops[-1]
  assert (together.batch_size, layout.name, layout.max_segments) == (6, "pad", 4)
  assert layout.lengths == (48,)
  for arg, message in (
      ("pack=0", "pack=0: must be 1 or more examples of a row"),
      ("pack=5", "pack=5: a batch of 32 examples can't be made of rows of 5"),
      ("pack=2,group", "group and pack exclude each other")):
    with pytest.raises(ConfigError, match=message):
      config_of("squad", arg)


def test_late_interaction_fills_queries_up_to_their_length():
  config = config_of("embed", "late,query_length=24,max_length=96,bm25,dev=d.csv")
  to_tokens, layout = config.data.ops
  assert (to_tokens.query_length, to_tokens.max_length, to_tokens.fill) == (24, 96, True)
  assert layout.lengths == (24, 96) and config.tokenizer.kind.mask
  assert (config.objective.name, config.objective.temperature) == ("late_interaction", 1.0)
  assert {name: (e.name, e.source) for name, e in config.evals.items()} == {
      "dev": ("late_interaction", ("csv:d.csv",)), "bm25": ("bm25", ("csv:d.csv",))}
  config = config_of("embed", "query_length=24")
  assert not config.data.ops[0].fill and config.data.ops[1].lengths == (24, 128)
  assert (config.objective.name, config.objective.temperature) == ("contrastive", 0.05)


@pytest.mark.parametrize("arg, message", [
    ("late,score=s", "argument late is of retrieval, and the scores 's' are of similarity"),
    ("bm25,gold=g", "argument bm25 is of retrieval, and the scores 'g' are of similarity"),
    ("simcse,bm25", "argument bm25 is of pairs, and simcse of texts alone"),
    ("simcse,query_length=9", "argument query_length is of pairs, and simcse of texts alone"),
    ("late,pool=mean", "pool='mean' makes a vector of a text, and late one of each token"),
    ("query_length=200", "query_length=200 must not be more than max_length=128"),
    ("bm25,others=bm25.tsv", "two evaluations would be named 'bm25'; rename a file"),
])
def test_arguments_of_retrieval_that_exclude_each_other(arg, message):
  with pytest.raises(ConfigError, match=message):
    config_of("embed", arg)


def test_a_fresh_decoder_has_the_tokenizer_that_is_asked_for():
  kind = instruct.get_config("vocab_size=500").tokenizer.kind
  assert (kind.name, kind.vocab_size) == ("byte_bpe", 500)
  assert instruct.get_config("").tokenizer.kind.name == "characters"
  with pytest.raises(ConfigError, match="init and vocab_size exclude each other"):
    instruct.get_config("init=gpt2,vocab_size=500")


def test_captions_without_translations_are_those_of_no_pair():
  of_pairs = config_of("nmt_multi30k", "form=bart,pairs=2000,vocab=vocab.txt")
  others = config_of("nmt_multi30k", "form=bart,pairs=2000,denoise")
  assert of_pairs.data.train == ("text:train.en,train.de:rows[:2000]",)
  assert others.data.train == ("text:train.en:rows[2000:]", "text:train.de:rows[2000:]")
  assert of_pairs.model.to_dict() == others.model.to_dict() and others.tokenizer.kind.mask
  assert of_pairs.tokenizer.kind.name == "file" and set(others.evals) == {"val_loss"}
  with pytest.raises(ConfigError, match="denoise: is what init and vocab come from"):
    config_of("nmt_multi30k", "denoise,vocab=a")
  with pytest.raises(ConfigError, match="init and vocab exclude each other"):
    config_of("nmt_text", "init=a,vocab=b")
  with pytest.raises(ConfigError, match="train: has no place beside denoise"):
    config_of("nmt_text", "train=a.tsv,val=b.tsv,denoise=c.en")
