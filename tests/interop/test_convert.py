"""`experiments.convert`: flags, both directions, and a run that becomes a Hugging Face model."""

import json
import os
import pathlib
import subprocess
import sys

from flax.traverse_util import unflatten_dict
import jax
import numpy as np
from PIL import Image
import pytest

from configs import common, nmt_multi30k, vit
from experiments import cli
import jtx
from jtx.api import Classifier
from jtx.config import build
from jtx.data.tokenizers.kinds import wordpiece
from jtx.errors import ConfigError
from jtx.inference.decode import METHODS
from jtx.interop.trunks import param_shapes
from jtx.models.encoder import HeadConfig
from jtx.nn.positions import Learned
from jtx.nn.rope import Rope
from jtx.saved import pretrained
from jtx.saved.folder import open_saved
from jtx.saved.workdir import load_run
from jtx.train import loop
from tests.helpers import block, command, encoder
from tests.interop.test_extended import drawn

MODEL = encoder(
    vocab_size=31, width=12, num_layers=2, position=Learned(16),
    block=block(num_heads=3, attention_bias=True, ffn_dim=20, activation="gelu", norm_eps=1e-12,
                init_std=0.02),
    head=HeadConfig(task="classes", outputs=3, transform="tanh"))
TEXTS = ["the cat sat on the mat", "a dog ran"] * 4


def run(*argv):
  """The command in this process, as the command line would call it."""
  with command("convert") as convert:
    cli.parse(["convert", *argv], ("workdir",))
    convert.main()


def test_there_and_back_is_the_same_bytes(tmp_path, capsys):
  shapes = param_shapes(MODEL)
  random = np.random.default_rng(0)
  params = unflatten_dict(
      {path: random.normal(size=s).astype(np.float32) for path, s in shapes.items()}, sep="/")
  tokenizer = wordpiece(iter(TEXTS), vocab_size=31, min_frequency=1)
  there, workdir, back = (str(tmp_path / name) for name in ("there", "workdir", "back"))
  pretrained.save_pretrained(there, MODEL, params, tokenizer, labels=("a", "b", "c"))
  run(f"--from_hf={there}", f"--workdir={workdir}")
  assert pretrained.load_pretrained(workdir)[0] == MODEL
  with pytest.raises(ConfigError, match="holds a model and no run of jtx, so no data: predict, "):
    load_run(workdir)
  with command("inspect") as module:
    cli.parse(["inspect", f"--workdir={workdir}"], ("workdir",))
    module.main()
  found = json.loads(capsys.readouterr().out.splitlines()[-1])
  assert (found["step"], found["config"]) == (0, None)
  assert found["items"]["params"]["numbers"] == sum(int(np.prod(s)) for s in shapes.values())
  run(f"--workdir={workdir}", f"--to_hf={back}")
  assert sorted(os.listdir(there)) == sorted(os.listdir(back))
  for name in os.listdir(there):
    assert pathlib.Path(there, name).read_bytes() == pathlib.Path(back, name).read_bytes(), name


def test_an_architecture_and_a_dtype_can_be_chosen(tmp_path):
  params = jax.tree.map(lambda s: np.ones(s, np.float32), unflatten_dict(
      param_shapes(MODEL), sep="/"), is_leaf=lambda s: isinstance(s, tuple))
  there, workdir, back = (str(tmp_path / name) for name in ("there", "workdir", "back"))
  pretrained.save_pretrained(there, MODEL, params)
  run(f"--from_hf={there}", f"--workdir={workdir}", "--architecture=BertModel")
  run(f"--workdir={workdir}", f"--to_hf={back}", "--dtype=float16")
  config = json.load(open(back + "/config.json"))
  assert config["architectures"] == ["BertModel"] and config["dtype"] == "float16"


@pytest.mark.parametrize("argv, expected", [
    ((), "give either --from_hf=DIR"),
    (("--from_hf=a", "--to_hf=b"), "give either --from_hf=DIR"),
    (("--from_hf=a", "--step=3"), "--step does not go with --from_hf"),
    (("--to_hf=a", "--architecture=BertModel"), "--architecture does not go with --to_hf"),
    (("--from_hf=nowhere",), "nowhere is not a directory"),
    (("--to_hf=a",), "config.json does not exist"),
    (("--to=onnx",), "jtx writes no ONNX; write a Hugging Face folder, .* optimum-cli export onnx"),
    (("--to=stablehlo",), "--to and --output go together"),
    (("--to=hf", "--output=a", "--to_hf=b"), "give either --from_hf=DIR"),
    (("--to=hf", "--output=a", "--length=3"), "--length does not go with --to=hf"),
    (("--to=stablehlo", "--output=a", "--push_to_hub=a/b"), "--push_to_hub does not go with"),
    (("--to=jtx", "--output=a", "--dtype=float16"), "--dtype does not go with --to=jtx"),
])
def test_flags_that_do_not_fit_are_named(argv, expected, tmp_path):
  with pytest.raises(ConfigError, match=expected):
    run(f"--workdir={tmp_path}", *argv)


def test_the_command_says_what_is_wrong_in_one_line(tmp_path):
  root = pathlib.Path(__file__).parent.parent.parent
  result = subprocess.run(
      [sys.executable, "-m", "experiments.convert", f"--workdir={tmp_path}/w", "--from_hf=nowhere"],
      cwd=root, text=True, capture_output=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})
  assert result.returncode == 1
  assert result.stderr.splitlines()[-1] == "error: nowhere is not a directory"
  assert "Traceback" not in result.stderr and not os.listdir(tmp_path)


@pytest.mark.slow
def test_a_run_becomes_a_hugging_face_model(tmp_path):
  lines = [json.dumps({"text": t, "label": "no" if "cat" in t else "yes"}) for t in TEXTS]
  (tmp_path / "train.jsonl").write_text("\n".join(lines) + "\n")
  c = common.get_config()
  c.model = common.model(
      "encoder", head=dict(task="classes", transform="tanh"),
      stack=dict(width=12, num_layers=2, position=common.position("learned", max_length=16),
                 block=dict(attention=dict(num_heads=3), ffn=dict(dim=20))))
  c.objective = common.objective("classify")
  c.steps, c.batch_size = 2, 8
  c.tokenizer.kind = common.tokenizer("wordpiece", vocab_size=31, min_frequency=1)
  c.data.path, c.data.train = str(tmp_path), ("jsonl:train.jsonl",)
  c.data.ops = (common.op("encode", max_length=12), common.op("label", names=("no", "yes")),
                common.op("pad", fields=("text",), lengths=(12,)))
  workdir, made = str(tmp_path / "run"), str(tmp_path / "made")
  loop.run(c.lock(), workdir)
  run(f"--workdir={workdir}", f"--to_hf={made}")
  task, params, _ = load_run(workdir)
  for directory in (workdir, made):
    model, loaded = pretrained.load_pretrained(directory)
    assert model == task.model
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
    assert open_saved(directory).labels() == ("no", "yes")
  passed_on = str(tmp_path / "passed_on")
  run(f"--workdir={workdir}", "--to=jtx", f"--output={passed_on}")
  assert Classifier(passed_on)(TEXTS[:2]) == Classifier(workdir)(TEXTS[:2])
  ours, theirs = (pretrained.load_tokenizer(d) for d in (workdir, made))
  encoded = [t.encode_texts(TEXTS, max_length=12) for t in (ours, theirs)]
  for a, b in zip(*encoded, strict=True):
    assert a.ids.tolist() == b.ids.tolist() and a.types.tolist() == b.types.tolist()


@pytest.mark.slow
def test_a_vision_run_and_its_folder_answer_alike(tmp_path):
  draw = np.random.default_rng(0)
  for number in range(8):
    path = tmp_path / "data" / "ab"[number % 2] / f"{number}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(draw.integers(256, size=(48, 144), dtype=np.uint8)).save(path)
  c = vit.get_config("tiny,lr=0.1")
  c.data.train, c.evals, c.steps = (f"images:{tmp_path}/data",), {}, 2
  workdir, made, again = (str(tmp_path / name) for name in ("run", "made", "again"))
  loop.run(c.lock(), workdir)
  run(f"--workdir={workdir}", f"--to_hf={made}")
  run(f"--from_hf={made}", f"--workdir={again}")
  pictures = sorted(str(path) for path in (tmp_path / "data").rglob("*.png"))
  ours = Classifier(workdir)(pictures)
  assert len({str(answer.scores) for answer in ours}) == len(pictures)
  assert ours == Classifier(made)(pictures) == Classifier(again)(pictures)


def test_a_model_that_only_jtx_has_is_passed_on_without_its_run(tmp_path):
  model = encoder(vocab_size=31, width=12, num_layers=1, position=Rope(), mlm=True,
                  num_token_types=1, block=block(num_heads=3, ffn_dim=20, norm_position="post"))
  params = drawn(model)
  tokenizer = wordpiece(iter(TEXTS), vocab_size=31, min_frequency=1, mask=True)
  workdir, made = str(tmp_path / "run"), str(tmp_path / "made")
  pretrained.save_pretrained(workdir, model, params, tokenizer, format="jtx")
  with pytest.raises(ConfigError, match="can't be expressed .*; --to=jtx --output=DIR writes"):
    run(f"--workdir={workdir}", f"--to_hf={made}")
  assert os.listdir(tmp_path) == ["run"]
  run(f"--workdir={workdir}", "--to=jtx", f"--output={made}")
  again, found = pretrained.load_pretrained(made)
  assert again == model
  jax.tree.map(np.testing.assert_array_equal, found, params)
  assert pretrained.load_tokenizer(made).to_json() == tokenizer.to_json()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["t5", "bart"])
def test_an_encoder_decoder_of_a_run_translates_as_its_export(form, tmp_path):
  c = nmt_multi30k.get_config(f"form={form},tiny")
  c.evals, c.decode.max_target_length = {}, 12
  workdir, there = str(tmp_path / "run"), str(tmp_path / "there")
  loop.run(c.lock(), workdir)
  run(f"--workdir={workdir}", f"--to_hf={there}")
  assert json.load(open(there + "/config.json"))["decoder_start_token_id"] == open_saved(
      workdir).tokenizer().bos_id
  texts = ["half past one", "", "ten to four"]
  ours, theirs = (jtx.Translator(d) for d in (workdir, there))
  options = theirs.translator.options
  assert options.max_target_length == 12 and options.method.to_dict() == {
      **ours.translator.options.method.to_dict(), "penalty": "power", "cut_off": True}
  with options.unlocked():  # what the files have no words for
    options.method.penalty, options.method.cut_off = "gnmt", False
  theirs.translator.method = build(METHODS, options.method, what="decode.method")
  assert theirs.hypotheses(texts) == ours.hypotheses(texts)


def folder_contents(directory):
  return {path.name: path.read_bytes() for path in pathlib.Path(directory).iterdir()
          if path.name != "README.md"}  # which tells of the run


@pytest.mark.slow
def test_a_translator_without_its_run_reads_and_writes_as_in_it(tmp_path):
  c = nmt_multi30k.get_config("form=bart,tiny")
  c.evals, c.decode.max_target_length = {}, 12
  c.decode.method.beam, c.decode.method.alpha = 2, 0.1
  c.data.ops = (c.data.ops[0], common.op("lowercase"), *c.data.ops[1:])
  workdir, made, *exports = (str(tmp_path / name) for name in ("run", "made", "a", "b"))
  loop.run(c.lock(), workdir)
  run(f"--workdir={workdir}", "--to=jtx", f"--output={made}")
  ours, theirs = (jtx.Translator(d) for d in (workdir, made))
  texts = ["half past one", "", "Half  PAST one", "ten to four"]
  assert theirs.hypotheses(texts) == ours.hypotheses(texts)
  assert theirs.translator.options == ours.translator.options
  assert theirs(texts[:1]) == theirs(texts[2:3])
  for source, target in zip((workdir, made), exports):
    run(f"--workdir={source}", f"--to_hf={target}")
  assert folder_contents(exports[0]) == folder_contents(exports[1])
  again = str(tmp_path / "again")
  jtx.save_pretrained(again, theirs.model, theirs.params, format="jtx", like=made)
  assert open_saved(again).config == open_saved(made).config
  other = str(tmp_path / "other")
  jtx.save_pretrained(other, theirs.model, theirs.params, {
      field: wordpiece(iter(TEXTS), vocab_size=31, min_frequency=1) for field in ("src", "tgt")},
      format="jtx", like=made)
  assert "texts" not in open_saved(other).config  # which are those of other tokens
