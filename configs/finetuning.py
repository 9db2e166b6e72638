"""Fine-tuning of trained text encoders: the arguments and the recipe that its configs share."""

import os
import re
from typing import Callable

from ml_collections import ConfigDict

from jtx import hub
from jtx.errors import ConfigError
from jtx.interop import huggingface, presets
from jtx.interop.presets import ENCODERS
from jtx.saved.folder import open_saved

from . import common
from .arguments import choose

# Arguments that `finetune` reads; a config adds its own.
FINETUNE_ARGS = dict(
    # A Hugging Face folder, a name of its Hub, or a workdir; "" is fresh parameters and tokenizer
    init="",
    model="",  # these are for: a key of ENCODERS; "" is bert_mini
    max_length=128,  # tokens
    batch=32,
    lr=5e-5,
    epochs=3.0,
    freeze=0,  # layers, from the first, that stay as they are, the embeddings with them
    decay=1.0,  # of the learning rate, from a layer to the one below
    features="",  # of FEATURES: the encoder stays as it is; LSTMs and a head on it are trained
    lora=0,  # rank of adapters, which with the head are all that is trained; lr 5e-4 suits them
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
  c.optim.optimizer = common.optimizer("adamw", weight_decay=0.01)
  c.optim.schedule = common.schedule("linear", warmup=0.1)
  c.optim.lr, c.optim.clip_norm = args.lr, 1.0
  c.optim.lr_mults = layer_mults(c.model, args.freeze, args.decay)
  if args.features:
    if c.optim.lr_mults:
      raise ConfigError("config arguments freeze and decay have no place beside features, for which"
                        " the encoder is not trained at all")
    edits = choose(FEATURES, args.features, "features")
    layers = edits["layers"] or tuple(range(1, c.model.stack.num_layers + 1))
    common.apply(c, {"model.features": {**edits, "layers": layers}})
    c.optim.lr_mults = ((r"^(?!extractor|task_head)", 0.0),)  # nor does it decay
  if args.lora:
    if c.optim.lr_mults:
      raise ConfigError("config arguments freeze, decay and features have no place beside lora,"
                        " with which the encoder stays as it is")
    if not args.init:
      raise ConfigError(f"config argument lora={args.lora} adapts a trained model: name its folder"
                        " by init")
    common.apply(c, {"model.lora.rank": args.lora})
  c.batch_size, c.epochs, c.log_every = args.batch, args.epochs, 50
  c.data.window = 0  # so that every epoch has every example


def open_encoder(c: ConfigDict, args: ConfigDict, task: str) -> None:
  """The model and the tokenizer: those of `args.init`, or fresh ones."""
  if args.init:
    if args.model:
      raise ConfigError("config arguments init and model exclude each other: init brings its model")
    c.init_from = hub.place(args.init)
    fields = open_saved(args.init).finetuned_fields(task)
    c.tokenizer.kind = common.tokenizer("file", path=c.init_from)
  else:
    name = args.model or "bert_mini"
    choose(ENCODERS, name, "model")
    fields = huggingface.finetuned_fields(huggingface.identify(presets.fresh(name), name), task)
    c.tokenizer.kind = common.tokenizer("wordpiece", vocab_size=200 if args.tiny else 8000)
  c.model = common.model("encoder", **fields)
  if not args.init:
    c.model.vocab_size = None  # the tokenizer's
  if args.tiny:
    common.apply(c, {"model.stack": common.TINY_STACK})


def padded(args: ConfigDict, *fields: str) -> ConfigDict:
  """The layout of a text a row."""
  return common.op("pad", fields=fields, lengths=(args.max_length,) * len(fields), trim=True,
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
