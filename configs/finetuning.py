"""Fine-tuning of trained encoders and decoders: the arguments and recipes that its configs share.

Decoders are trained as GPT-1 is (Radford et al. 2018): a text is between tokens of its own, which
the tokenizer gets and the embedding fresh rows for, and what the last one has seen is classified.
"""

import os
import re
from typing import Any, Callable, Iterator

from ml_collections import ConfigDict

from jtx import hub
from jtx.data.sources.specs import joined, without_options
from jtx.errors import ConfigError
from jtx.interop import huggingface, presets
from jtx.interop.presets import DECODERS, ENCODERS
from jtx.models.heads import TASKS
from jtx.saved.folder import open_saved

from . import common
from .arguments import adapt, check_depth, choose, packed_rows
from .teaching import TEACHER_ARGS, teach

# Arguments that `finetune` reads; a config adds its own.
FINETUNE_ARGS = dict(
    # A Hugging Face folder, a name of its Hub, or a workdir; "" is fresh parameters and tokenizer
    init="",
    model="",  # these are for: a key of ENCODERS, DECODERS or RECURRENT; "" is bert_mini
    max_length=128,  # tokens
    batch=32,
    lr=0.0,  # 0 is 5e-5, of decoders 6.25e-5 and of recurrent networks 1e-3
    lm=0.0,  # of a decoder, the weight of predicting the texts' tokens, too: 0.5 in the paper
    epochs=3.0,
    freeze=0,  # layers, from the first, that stay as they are, the embeddings with them
    decay=1.0,  # of the learning rate, from a layer to the one below
    features="",  # of FEATURES: the encoder stays as it is; LSTMs and a head on it are trained
    lora=0,  # rank of adapters, which with the head are all that is trained; lr 5e-4 suits them
    group=False,  # texts of similar length into a batch, which is faster
    pack=1,  # examples of a row; a batch has the same ones, in batch / pack rows of equal length
    **TEACHER_ARGS,  # a teacher of the same task; its losses are "tinybert_task" unless set
    tiny=False,  # seconds, on embedded data
)
# And what `add_evals` reads, where the data is the user's own files.
FILE_ARGS = FINETUNE_ARGS | dict(train="train.tsv", dev="dev.tsv", others="")


# Recurrent networks, from fresh parameters. Of one direction, which predict the next token beside
# the task where `lm` says so, as GPT-1's comparison does with 2,048 units (Radford et al. 2018).
ONE_WAY = dict(pool="last", dropout=0.3)
RECURRENT = {
    "lstm": dict(recurrent=dict(dim=512), head=ONE_WAY),
    "lstm_2048": dict(recurrent=dict(dim=2048), embedding=dict(width=768), head=ONE_WAY),
    "gru": dict(recurrent=dict(dim=512, cell=dict(kind="gru")), head=ONE_WAY),
    "bilstm": dict(recurrent=dict(dim=256, bidirectional=True),
                   head=dict(pool="mean", dropout=0.3)),
}

# Of the layers -1, the last, to 0, the embeddings (Devlin et al. 2019, table 7). None is all.
FEATURES = {
    "embeddings": dict(layers=(0,)),
    "second_to_last": dict(layers=(-2,)),
    "last": dict(layers=(-1,)),
    "sum_last_four": dict(layers=(-4, -3, -2, -1), combine="sum"),
    "concat_last_four": dict(layers=(-4, -3, -2, -1)),
    "sum_all": dict(layers=None, combine="sum"),
    "mix": dict(layers=None, combine="scalar_mix"),  # with the embeddings (ELMo, equation 1)
}


def finetune(c: ConfigDict, args: ConfigDict, task: str) -> None:
  """Makes a config fine-tune an encoder (Devlin et al. 2019, appendix A.3), or a decoder.

  The recipe of decoders is that of Radford et al. 2018, sections 3.3 and 4.1.

  Args:
    c: to edit.
    args: of `FINETUNE_ARGS`.
    task: what the head is for.
  """
  open_trained(c, args, task)
  decodes, recurrent = c.model.name == "decoder", "recurrent" in c.model
  c.optim.optimizer = common.optimizer("adamw", weight_decay=0.01)
  c.optim.schedule = common.schedule("linear", warmup=0.002 if decodes else 0.1)
  rate = 6.25e-5 if decodes else 1e-3 if recurrent else 5e-5
  c.optim.lr, c.optim.clip_norm = args.lr or rate, 1.0
  if decodes:
    common.apply(c, {"model.stack.block.dropout": 0.1, "model.stack.block.attention.dropout": 0.1})
    # Adapters leave the embedding as it is, so there it gets no rows.
    c.tokenizer.delimiters = () if args.lora else ("<start>", "<delimiter>", "<extract>")
  c.optim.lr_mults = layer_mults(c.model, args)
  if args.features:
    if "features" not in c.model:
      raise ConfigError("config argument features is of encoders, and the model is"
                        f" {kind_of(c.model)}")
    if c.optim.lr_mults:
      raise ConfigError("config arguments freeze and decay have no place beside features, for which"
                        " the encoder is not trained at all")
    edits = choose(FEATURES, args.features, "features")
    depth = (c.model.stack if "stack" in c.model else c.model.recurrent).num_layers
    layers = edits["layers"] or tuple(range(args.features != "mix", depth + 1))
    common.apply(c, {"model.features": {**edits, "layers": layers}})
    c.optim.lr_mults = ((r"^(?!extractor|task_head)", 0.0),)  # nor does it decay
  adapt(c, args)
  teach(c, args, "tinybert_task")
  c.batch_size = packed_rows(args.batch, args.pack)
  c.epochs, c.log_every = args.epochs, 50
  c.data.window = 0  # so that every epoch has every example


def open_trained(c: ConfigDict, args: ConfigDict, task: str) -> None:
  """The model and the tokenizer: those of `args.init`, or fresh ones."""
  if args.init:
    if args.model:
      raise ConfigError("config arguments init and model exclude each other: init brings its model")
    c.init_from, saved = hub.place(args.init), open_saved(args.init)
    kind, fields = (saved.fields() if task == "embedding" else
                    saved.finetuned_fields(task, lm=bool(args.lm)))
    c.tokenizer.kind = common.tokenizer("file", path=c.init_from)
  else:
    name = args.model or "bert_mini"
    choose(ENCODERS | DECODERS | RECURRENT, name, "model")
    kind, fields = (recurrent_fields(name, task, bool(args.lm)) if name in RECURRENT else
                    fresh_fields(name, task, bool(args.lm)))
    decodes = kind == "decoder"
    size = (500 if decodes else 200) if args.tiny else 8000
    c.tokenizer.kind = common.tokenizer("byte_bpe" if decodes else "wordpiece", vocab_size=size)
    if args.teacher:
      c.tokenizer.kind = common.tokenizer("file", path=hub.place(args.teacher))
  if task == "embedding":
    if kind == "encdec":
      raise ConfigError("embeddings are of one stack, and the model is an encoder-decoder")
    pool = args.pool or ("last" if kind == "decoder" else "mean")
    fields = {**fields, "head": {"task": task, "pool": pool, "normalize": True}}
  c.model = common.model(kind, **fields)
  if not args.init or kind == "decoder":
    c.model.vocab_size = None  # the tokenizer's
  if not args.tiny:
    for name in ("stack", "encoder", "decoder"):
      if name in c.model:
        c.model[name].unroll = 0
  if args.tiny:
    if kind == "encdec":
      raise ConfigError("config argument tiny is of one stack, and the model of init has two")
    if "recurrent" in c.model:
      common.apply(c, {"model.recurrent.dim": 32})
      return
    common.apply(c, {"model.stack": common.TINY_STACK})
    if c.model.stack.block.attention.num_kv_heads:
      c.model.stack.block.attention.num_kv_heads = 1


def fresh_fields(name: str, task: str, lm: bool) -> tuple[str, dict[str, Any]]:
  """The family and the fields of a model of ENCODERS or DECODERS."""
  source = huggingface.identify(presets.fresh(name), name)
  if task == "embedding":
    return source.family.model, huggingface.base_fields(source)
  return huggingface.finetuned_fields(source, task, lm)


def recurrent_fields(name: str, task: str, lm: bool) -> tuple[str, dict[str, Any]]:
  """The same of a model of RECURRENT."""
  fields = RECURRENT[name]
  pool = "none" if TASKS[task].by_token else fields["head"]["pool"]
  return "rnn", {**fields, "lm": lm, "head": {**fields["head"], "task": task, "pool": pool}}


def kind_of(model: ConfigDict) -> str:
  """What a model is, for a sentence."""
  return {"decoder": "a decoder", "encdec": "an encoder-decoder",
          "rnn": "a recurrent network", "elmo": "ELMo"}[model.name]


def rows(args: ConfigDict, *fields: str) -> ConfigDict:
  """The layout: an example a row, or several.

  Raises:
    ConfigError: rows of several are to be grouped by length.
  """
  if args.group and args.pack > 1:
    raise ConfigError("config arguments group and pack exclude each other: rows of several"
                      " examples are of about equal length as it is")
  return common.op("pad", fields=fields, lengths=(args.max_length,) * len(fields), trim=True,
                   group=args.group, per_doubling=4, max_segments=args.pack)


def add_evals(c: ConfigDict, args: ConfigDict, evaluator: Callable[[str], ConfigDict]) -> None:
  """An evaluator of `args.dev`, and one of each of `args.others`, by the file's name.

  Trained on one language and evaluated on others, this is cross-lingual transfer (Artetxe et
  al. 2020, XQuAD).

  Raises:
    ConfigError: two files have one name.
  """
  c.evals.dev = evaluator(args.dev)
  for file in joined(args.others):
    path = without_options(file)
    stem = os.path.splitext(os.path.basename(path).removesuffix(".gz"))[0]
    name = re.sub(r"\W+", "_", stem)
    if name in c.evals:
      raise ConfigError(f"config argument others={args.others!r}: two evaluations would be named"
                        f" {name!r}; rename a file")
    c.evals[name] = evaluator(file)


def layer_mults(model: ConfigDict, args: ConfigDict) -> tuple[tuple[str, float], ...]:
  """`optim.lr_mults` by depth: decay^(L - i) for layer i of L, 0 for the first `freeze` ones.

  The embeddings are below layer 0 (Howard and Ruder 2018; Clark et al. 2020, ELECTRA).
  """
  freeze, decay = args.freeze, args.decay
  if not freeze and decay == 1:
    return ()
  if "stack" not in model:
    raise ConfigError("config arguments freeze and decay are of one stack of layers, and the model"
                      f" is {kind_of(model)}")
  L = model.stack.num_layers
  check_depth(args, L)
  if model.stack.share:
    raise ConfigError("freeze and decay are for layers of their own, and these are shared")
  stack = "decoder" if model.name == "decoder" else "encoder"
  paths = [f"{stack}/layers/{i}/" for i in range(L)]
  if not model.stack.block.norm.attention:  # the first is a segment of its own
    paths = [f"{stack}/layers_0/0/", *(f"{stack}/layers_1/{i}/" for i in range(L - 1))]
  mults = {"^(embed|type_embedding|position_embedding)": 0.0 if freeze else decay**(L + 1)}
  mults |= {f"^{path}": 0.0 if i < freeze else decay**(L - i) for i, path in enumerate(paths)}
  return tuple((path, mult) for path, mult in mults.items() if mult != 1)


def ablation() -> Iterator[dict[str, Any]]:
  """A decoder as in the paper, from fresh parameters, and without the next tokens' loss.

  Radford et al. 2018, table 5. For a config with `lm`.
  """
  yield {"objective.lm_weight": 0.5}
  yield {"objective.lm_weight": 0.5, "init_from": ""}
  yield {"objective.lm_weight": 0.0}


def shrink(c: ConfigDict) -> None:
  """Makes a fine-tuning config run in seconds, on embedded data."""
  c.steps, c.epochs, c.batch_size, c.log_every = 4, None, 8, 2
  c.checkpoint.every = c.checkpoint.keep = 2
  c.data.train = ("embedded:sentences:train",)
  c.data.window = 256
  # An op cuts texts to its max_length, which must not be more than a row.
  c.data.ops[0].max_length = 24
  layout = c.data.ops[-1]
  layout.lengths = (24,) * len(layout.fields)
  if "trim" in layout:
    layout.trim = False
  for evaluator in c.evals.values():
    evaluator.source = ("embedded:sentences:val",)
