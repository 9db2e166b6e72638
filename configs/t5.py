"""T5, its version 1.1, mT5 and ByT5 by size, pretrained from documents by span corruption.

  python -m experiments.train --workdir=runs/t5 \
    --config=configs/t5.py:t5_v1_1_base,corpus=jsonl:train.jsonl,val=jsonl:val.jsonl

Arguments: a size, of SIZES; `corpus` and `val`, sources of documents (docs/data.md); `vocab`, a
tokenizer with sentinels, without which one is trained on the corpus; tiny. Without a corpus it is
the English Wikipedia of TFDS, as C4 is large; a corpus without `val` is not evaluated.

Raffel et al. 2020, section 3.1: 128 rows of 512 tokens, 2^19 steps, Adafactor with steps relative
to the size of a parameter and 1/sqrt(max(n, 10^4)). Versions from 1.1 on have no dropout here and a
z-loss of 1e-4. ByT5 has rows of 1,024 bytes and spans of 20 (Xue et al. 2022). Initial values are
Glorot's, with queries that are smaller as the logits are not scaled. Not reproduced here.

`sweep_objectives` compares ways to make pairs of documents (the paper's section 3.3), `sweep_rates`
the share that is hidden and the length of spans, and `sweep_architectures` an encoder-decoder, one
of shared layers, one of half the depth, a language model and a prefix LM (section 3.2).
"""

from jtx.data.ops.spans import span_lengths
from jtx.interop.presets import ENCDECS

from . import arguments, common, published

SIZES = {name: name for name in ENCDECS if "t5" in name}
# Arguments that `pretrain` reads; a config adds its own.
CORPUS_ARGS = dict(corpus="", val="", vocab="", tiny=False)
PRESETS = ("", "tiny", "mt5_small,corpus=documents:.,val=blank_lines:val.txt,vocab=vocab.txt",
           "byt5_small", "byt5_small,tiny", "t5_small,tiny")
# A stack for configs that run in seconds.
TINY = dict(width=32, num_layers=2, block=dict(attention=dict(num_heads=2, head_dim=16),
                                               ffn=dict(dim=64)))


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, size="t5_v1_1_base", **CORPUS_ARGS)
  c = common.get_config()
  pretrain(c, args, arguments.choose(SIZES, args.size, "size"))
  if args.tiny:
    shrink(c)
  return c


def pretrain(c, args, name: str) -> None:
  """Makes a config pretrain an encoder-decoder by span corruption; `args` are of CORPUS_ARGS."""
  is_first = name.startswith("t5") and not name.startswith("t5_v1_1")
  in_bytes = name.startswith("byt5")
  c.model = published.encoder_decoder(name)
  c.objective = common.objective("seq2seq", label_smoothing=0.0)
  if not is_first:
    c.objective.z_loss = 1e-4
    for stack in (c.model.encoder, c.model.decoder):
      common.apply(stack, {"block.dropout": 0.0, "block.attention.dropout": 0.0,
                           "block.ffn.dropout": 0.0})
  c.optim.optimizer = common.optimizer("adafactor")
  c.optim.schedule = common.schedule("rsqrt")
  c.optim.lr = 1.0  # the schedule's factor
  c.batch_size, c.steps = 128, 2**19
  size = 250_000 if name.startswith("mt5") else 32_000
  c.tokenizer.kind = common.tokenizer("unigram", vocab_size=size + 100, sentinels=100)
  if in_bytes:
    c.tokenizer.kind = common.tokenizer("bytes", byt5=True)
  if args.vocab:
    c.tokenizer.kind = common.tokenizer("file", path=args.vocab)
  inputs, spans = (1024, 20.0) if in_bytes else (512, 3.0)
  train, val = arguments.or_wikipedia(args)
  c.data.train = (train,)
  c.data.ops = (
      common.op("tokenize", fields=("text",), end=False),
      common.op("text_pairs", mean_length=spans),
      common.op("pack", lengths=(inputs, span_lengths(inputs, 0.15, spans)[1])))
  c.data.window = 8192  # documents
  if val:
    c.evals.val = common.evaluator("loss", source=(val,), every=10_000)


def shrink(c) -> None:
  """Makes the config run in seconds, on embedded data."""
  common.apply(c, {"model.encoder": TINY, "model.decoder": TINY})
  c.steps, c.batch_size, c.log_every = 4, 8, 2
  c.checkpoint.every = c.checkpoint.keep = 2
  if "vocab_size" in c.tokenizer.kind:
    c.tokenizer.kind = common.tokenizer("unigram", vocab_size=600, sentinels=100)
  c.data.train = c.evals.val.source = ("embedded:pydocs:val",)
  c.data.ops[-1].lengths = (128, span_lengths(128)[1])
  c.decode.max_source_length = c.decode.max_target_length = 32


def sweep_objectives():
  """Raffel et al. 2020, section 3.3."""
  for name in ("spans", "replace_spans", "mass", "bert", "drop", "deshuffle", "prefix_lm"):
    yield {"data.ops[1].objective": name, "data.ops[2].lengths": (512, 512)}


def sweep_rates(config):
  """Raffel et al. 2020, sections 3.3.3 and 3.3.4."""
  for rate, length in ((0.1, 3.0), (0.15, 3.0), (0.25, 3.0), (0.5, 3.0), (0.15, 2.0), (0.15, 5.0),
                       (0.15, 10.0)):
    edits = {"data.ops[1].rate": rate, "data.ops[1].mean_length": length,
             "data.ops[2].lengths": (512, span_lengths(512, rate, length)[1])}
    # Half of 766 tokens in spans of 3 are 128 spans, each with a sentinel of its own.
    if rate == 0.5 and "sentinels" in config.tokenizer.kind:
      edits["tokenizer.kind.sentinels"] = 128
    yield edits


def sweep_architectures(config):
  """Raffel et al. 2020, section 3.2, table 2: models of the same pairs, and the same loss.

  An encoder-decoder of 2P parameters; one whose encoder has the parameters of the decoder's layers
  (P); one of half the depth (P); and the decoder alone (P), as a language model and as a prefix LM,
  in which all tokens see the whole input. These two have input and target in one row, and no
  dropout of the stack's output. The loss is of the targets' tokens in all five, which are the same.
  Half the depth takes half the operations of the others.
  """
  model, objective, layout = config.model, config.objective, config.data.ops[2]
  yield {"model.share_stacks": False}
  yield {"model.share_stacks": True}
  yield {f"model.{stack}.num_layers": max(model[stack].num_layers // 2, 1)
         for stack in ("encoder", "decoder")}
  for kind in ("global", "prefix"):
    alone = common.model(
        "decoder", dtype=model.dtype, stack=model.decoder.copy_and_resolve_references(),
        embedding=dict(tie="output" in model.embedding.tie, init_std=model.embedding.init_std,
                       output_scale=model.embedding.output_scale))
    alone.stack.pattern = (kind,)
    yield {
        "model": alone,
        "objective": common.objective("lm", label_smoothing=objective.label_smoothing,
                                      z_loss=objective.z_loss),
        "data.ops[1].joined": True,
        "data.ops[2].fields": ("text",), "data.ops[2].lengths": (sum(layout.lengths),)}
