"""The keys of every run, with their defaults. A config file edits them; then it is locked.

`config.model`, `config.objective`, `config.optim.optimizer` and other sections with a `name`
have the fields of the constructor of that name as their keys; `model(...)` and its like
below make such sections.
"""

import functools
import os
import re
from typing import Any, Callable

from ml_collections import ConfigDict, config_dict

from jtx import storage
from jtx.config import edit, section
from jtx.data.ops.registry import OPS
from jtx.data.tokenizers.kinds import TOKENIZERS
from jtx.errors import ConfigError, nearest
from jtx.evals import EVALS
from jtx.inference.decode import METHODS
from jtx.interop import presets
from jtx.interop.presets import ENCODERS
from jtx.models import MODELS
from jtx.nn.grid_positions import GRID_POSITIONS
from jtx.nn.positions import POSITIONS
from jtx.objectives import OBJECTIVES
from jtx.train import optim, schedules

model = functools.partial(section, MODELS)
objective = functools.partial(section, OBJECTIVES)
optimizer = functools.partial(section, optim.OPTIMIZERS)
schedule = functools.partial(section, schedules.SCHEDULES)
tokenizer = functools.partial(section, TOKENIZERS)
op = functools.partial(section, OPS)
evaluator = functools.partial(section, EVALS)
method = functools.partial(section, METHODS)
position = functools.partial(section, POSITIONS)
grid_position = functools.partial(section, GRID_POSITIONS)


def get_config() -> ConfigDict:
  """The run's keys. `model` and `objective` are for the experiment to choose."""
  c = ConfigDict()
  c.seed = 0
  c.prng = "threefry2x32"  # same bits on every mesh; "rbg" is faster on TPU and has others
  c.steps = 100_000  # optimiser updates
  c.epochs = config_dict.placeholder(float)  # passes over the data, instead of steps
  c.batch_size = 64  # rows of a global batch, over all processes
  c.phases = ()  # of the run: (its share, tokens a row, rows a batch), such as BERT's last tenth
  c.log_every = 100  # steps

  c.optim = optim.defaults()

  # A Hugging Face folder or a workdir whose parameters training starts from; "" is fresh.
  c.init_from = ""

  c.mesh = ConfigDict({"data": -1, "fsdp": 1, "tensor": 1, "context": 1})

  c.checkpoint = ConfigDict()
  c.checkpoint.every = 1000  # steps
  c.checkpoint.keep = 3  # the newest
  c.checkpoint.keep_every = 0  # steps; these are kept for good; 0 is none
  c.checkpoint.best = ""  # such as "min:val/loss": kept for good, too
  c.checkpoint.average = 1  # checkpoints averaged for the final evaluation

  c.tokenizer = ConfigDict()
  c.tokenizer.kind = tokenizer("bpe")
  c.tokenizer.shared = True  # one for source and target

  c.data = ConfigDict()
  c.data.path = ""  # folder of relative file names
  c.data.train = ()  # sources; see jtx/data/sources/registry.py
  c.data.weights = ()  # one a source; () is by size
  c.data.smoothing = config_dict.placeholder(float)  # by size^smoothing instead
  c.data.ops = ()
  c.data.window = 8192  # examples that are shuffled into rows together; 0 is an epoch
  c.data.threads = 2  # that read ahead
  c.data.workers = 0  # processes that read ahead, for heavy ops

  c.decode = ConfigDict()
  c.decode.method = method("beam")
  c.decode.batch_size = 64  # sources at a time
  c.decode.max_source_length = 256  # tokens; longer lines are cut, with a warning
  c.decode.max_target_length = 256  # tokens

  c.evals = ConfigDict()
  return c


def encoder_decoder(**stack: Any) -> ConfigDict:
  """The model `encdec` with these fields of both stacks.

  The decoder's keys follow the encoder's until they are set: `model.encoder.width=64` is of both.
  """
  section = model("encdec", encoder=stack, decoder=stack)
  follow(section.decoder, section.encoder)
  return section


def follow(section: ConfigDict, other: ConfigDict) -> None:
  """Makes the keys of a section follow those of another."""
  for key in other:
    if isinstance(other[key], ConfigDict):
      follow(section[key], other[key])
    elif key not in ("name", "causal"):
      section[key] = other.get_oneway_ref(key)


def parse_args(arg: str, **defaults: Any) -> ConfigDict:
  """The arguments of `--config=file.py:arg`: "large,seq=512,tiny", typed by `defaults`.

  A bare word sets the bool of that name, or else the first argument.

  Raises:
    ConfigError: an unknown argument, or a value of another type.
  """
  args = ConfigDict(defaults)
  first = next(iter(defaults))
  for word in filter(None, (arg or "").split(",")):
    key, equals, value = word.partition("=")
    if not equals:
      key, value = (key, "true") if isinstance(defaults.get(key), bool) else (first, key)
    if key not in defaults:
      raise ConfigError(f"config argument {word!r}: {nearest(key, defaults)}")
    kind = type(defaults[key])
    try:
      args[key] = {"true": True, "false": False}[value.lower()] if kind is bool else kind(value)
    except (KeyError, ValueError):
      raise ConfigError(f"config argument {word!r}: {value!r} is not a {kind.__name__}") from None
  return args


def choose(table: dict[str, Any], name: str, what: str) -> Any:
  """`table[name]`, or a ConfigError that names the nearest."""
  if name not in table:
    raise ConfigError(f"config argument {what}={name!r}: {nearest(name, table)}")
  return table[name]


# ------------------------------------------------------------------------- fine-tuning

# What `finetune` reads; a config adds its own.
FINETUNE_ARGS = dict(
    init="",  # a Hugging Face folder or a workdir; "" is fresh parameters and tokenizer
    model="",  # these are for: a key of ENCODERS; "" is bert_mini
    max_length=128,  # tokens
    batch=32,
    lr=5e-5,
    epochs=3.0,
    freeze=0,  # layers, from the first, that stay as they are, the embeddings with them
    decay=1.0,  # of the learning rate, from a layer to the one below
    features="",  # of FEATURES: the encoder stays as it is; LSTMs and a head on it are trained
    group=False,  # texts of similar length into a batch, which is faster
    tiny=False,  # seconds, on embedded data
)
# And what `add_evals` reads, where the data is the user's own files.
FILE_ARGS = FINETUNE_ARGS | dict(train="train.tsv", dev="dev.tsv", others="")


# Of the layers -1, the last, to 0, the embeddings (Devlin et al. 2019, table 7). None is all.
FEATURES = {
    "embeddings": dict(layers=(0,)),
    "second_to_last": dict(layers=(-2,)),
    "last": dict(layers=(-1,)),
    "sum_last_four": dict(layers=(-4, -3, -2, -1), combine="sum"),
    "concat_last_four": dict(layers=(-4, -3, -2, -1)),
    "sum_all": dict(layers=None, combine="sum"),
}


def finetune(c: ConfigDict, args: ConfigDict, task: str) -> None:
  """Makes a config fine-tune an encoder (Devlin et al. 2019, appendix A.3).

  Args:
    c: to edit.
    args: of `FINETUNE_ARGS`.
    task: what the head is for.
  """
  open_encoder(c, args, task)
  c.optim.optimizer = optimizer("adamw", weight_decay=0.01)
  c.optim.schedule = schedule("linear", warmup=0.1)
  c.optim.lr, c.optim.clip_norm = args.lr, 1.0
  c.optim.lr_mults = layer_mults(c.model, args.freeze, args.decay)
  if args.features:
    if c.optim.lr_mults:
      raise ConfigError("config arguments freeze and decay have no place beside features, for which"
                        " the encoder is not trained at all")
    edits = choose(FEATURES, args.features, "features")
    layers = edits["layers"] or tuple(range(1, c.model.stack.num_layers + 1))
    apply(c, {"model.features": {**edits, "layers": layers}})
    c.optim.lr_mults = ((r"^(?!extractor|task_head)", 0.0),)  # nor does it decay
  c.batch_size, c.epochs, c.log_every = args.batch, args.epochs, 50
  c.data.window = 0  # so that every epoch has every example


TINY_STACK = dict(width=32, num_layers=2,
                  block=dict(attention=dict(num_heads=2), ffn=dict(dim=64)))


def open_encoder(c: ConfigDict, args: ConfigDict, task: str) -> None:
  """The model and the tokenizer: those of `args.init`, or fresh ones."""
  from jtx.interop import huggingface
  from jtx.saved.folder import open_saved
  if args.init:
    if args.model:
      raise ConfigError("config arguments init and model exclude each other: init brings its model")
    c.init_from = storage.absolute(args.init)
    fields = open_saved(args.init).finetuned_fields(task)
    c.tokenizer.kind = tokenizer("file", path=c.init_from)
  else:
    name = args.model or "bert_mini"
    choose(ENCODERS, name, "model")
    fields = huggingface.finetuned_fields(huggingface.identify(presets.fresh(name), name), task)
    c.tokenizer.kind = tokenizer("wordpiece", vocab_size=200 if args.tiny else 8000)
  c.model = model("encoder", **fields)
  if not args.init:
    c.model.vocab_size = None  # the tokenizer's
  if args.tiny:
    apply(c, {"model.stack": TINY_STACK})


def padded(args: ConfigDict, *fields: str) -> ConfigDict:
  """The layout of a text a row."""
  return op("pad", fields=fields, lengths=(args.max_length,) * len(fields), trim=True,
            group=args.group)


def add_evals(c: ConfigDict, args: ConfigDict, evaluator: Callable[[str], ConfigDict]) -> None:
  """An evaluator of `args.dev`, and one of each of `args.others`, by the file's name.

  Trained on one language and evaluated on others, this is cross-lingual transfer (Artetxe et
  al. 2020, XQuAD).

  Raises:
    ConfigError: two files have one name.
  """
  c.evals.dev = evaluator(args.dev)
  for file in filter(None, args.others.split("+")):
    stem = os.path.splitext(os.path.basename(file).removesuffix(".gz"))[0]
    name = re.sub(r"\W+", "_", stem)
    if name in c.evals:
      raise ConfigError(f"config argument others={args.others!r}: two evaluations would be named"
                        f" {name!r}; rename a file")
    c.evals[name] = evaluator(file)


def layer_mults(encoder: ConfigDict, freeze: int, decay: float) -> tuple[tuple[str, float], ...]:
  """`optim.lr_mults` by depth: decay^(L - i) for layer i of L, 0 for the first `freeze` ones.

  The embeddings are below layer 0 (Howard and Ruder 2018; Clark et al. 2020, ELECTRA).
  """
  L = encoder.stack.num_layers
  if encoder.stack.share and (freeze or decay != 1):
    raise ConfigError("freeze and decay are for layers of their own, and these are shared")
  paths = [f"encoder/layers/{i}/" for i in range(L)]
  if not encoder.stack.block.norm.attention:  # the first is a segment of its own
    paths = ["encoder/layers_0/0/", *(f"encoder/layers_1/{i}/" for i in range(L - 1))]
  mults = {"^(embed|type_embedding|position_embedding)": 0.0 if freeze else decay**(L + 1)}
  mults |= {f"^{path}": 0.0 if i < freeze else decay**(L - i) for i, path in enumerate(paths)}
  return tuple((path, mult) for path, mult in mults.items() if mult != 1)


def shrink_encoder(c: ConfigDict) -> None:
  """Makes a fine-tuning config run in seconds, on embedded data."""
  c.steps, c.epochs, c.batch_size, c.log_every = 4, None, 8, 2
  c.checkpoint.every = c.checkpoint.keep = 2
  c.data.train = ("embedded:sentences:train",)
  c.data.window = 256
  # An op cuts texts to its max_length, which must not be more than a row.
  c.data.ops[0].max_length = 24
  c.data.ops[-1].lengths, c.data.ops[-1].trim = (24,) * len(c.data.ops[-1].fields), False
  for evaluator in c.evals.values():
    evaluator.source = ("embedded:sentences:val",)


def apply(config: ConfigDict, edits: dict[str, Any]) -> ConfigDict:
  """Applies a sweep item, {"optim.lr": 1e-3}, to a config."""
  return edit(config, edits)
