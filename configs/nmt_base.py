"""Attention Is All You Need (Vaswani et al. 2017): Transformer base on WMT14.

  python -m experiments.train --config=configs/nmt_base.py --workdir=runs/nmt_base
  python -m experiments.train --config=configs/nmt_base.py:big,pair=fr-en --workdir=runs/big_fr

Arguments: a size (base, big), pair=de-en or fr-en (TFDS wmt14_translate, English to the
other), tiny (steps in seconds on embedded data; for trying things out). The paper trains
100,000 steps (12 hours) on 8 P100 GPUs, or 300,000 (3.5 days) for big, and reports
newstest2014 BLEU 27.3 En-De and 38.1 En-Fr (big: 28.4 and 41.8). Not yet reproduced here.

`sweep_table3` is the paper's ablation (table 3): En-De, scored on newstest2013.
"""

from . import arguments, common

SIZES = {
    "base": dict(width=512, num_layers=6, block=dict(
        attention=dict(num_heads=8), ffn=dict(dim=2048), dropout=0.1)),
    "big": dict(width=1024, num_layers=6, block=dict(
        attention=dict(num_heads=16), ffn=dict(dim=4096), dropout=0.3)),
}
STEPS = {"base": 100_000, "big": 300_000}
AVERAGE = {"base": 5, "big": 20}  # last checkpoints, 10 minutes apart in the paper
PAIRS = {"de-en": 37_000, "fr-en": 32_000}  # vocabulary, shared

PRESETS = ("", "big", "pair=fr-en", "tiny", "big,tiny")  # every argument, for the tests

TINY = dict(width=32, num_layers=2, unroll=1,
            block=dict(attention=dict(num_heads=4), ffn=dict(dim=64)))


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, size="base", pair="de-en", tiny=False)
  vocab_size = arguments.choose(PAIRS, args.pair, "pair")
  size = arguments.choose(SIZES, args.size, "size")

  c = common.get_config()
  c.model = encoder_decoder(**size)
  c.objective = common.objective("seq2seq", label_smoothing=0.1)
  c.steps = STEPS[args.size]
  c.optim.optimizer = common.optimizer("adam", b1=0.9, b2=0.98, eps=1e-9)
  c.optim.schedule = common.schedule("noam", warmup=4000)
  c.optim.lr = 1.0  # the schedule's factor

  # 96 rows of 256 + 256 tokens: about 25,000 source and 25,000 target tokens a batch.
  c.batch_size = 96
  other = args.pair.split("-")[0]
  c.tokenizer.kind = common.tokenizer("bpe", vocab_size=vocab_size)
  c.data.train = (f"tfds:wmt14_translate/{args.pair}:train",)
  c.data.ops = (
      common.op("fields", keep=("src=en", f"tgt={other}")),
      common.op("clean"),
      common.op("tokenize"),
      common.op("filter_length", max_length=256, max_ratio=9.0),
      common.op("pack", lengths=(256, 256)),
  )
  c.data.window = 65_536

  c.decode.method = common.method("beam", beam=4, alpha=0.6)
  c.checkpoint.every = 1500
  c.checkpoint.keep = c.checkpoint.average = AVERAGE[args.size]
  split = f"tfds:wmt14_translate/{args.pair}"
  c.evals.newstest2013 = common.evaluator("loss", source=(f"{split}:validation",), every=5000)
  c.evals.newstest2014 = common.evaluator("translation", source=(f"{split}:test",))
  if args.tiny:
    shrink(c)
  return c


def encoder_decoder(**stack) -> common.ConfigDict:
  """The model `encdec` with these fields of both stacks.

  The decoder's keys follow the encoder's until they are set: `model.encoder.width=64` is of both.
  """
  section = common.model("encdec", encoder=stack, decoder=stack)
  follow(section.decoder, section.encoder)
  return section


def follow(section: common.ConfigDict, other: common.ConfigDict) -> None:
  """Makes the keys of a section follow those of another."""
  for key in other:
    if isinstance(other[key], common.ConfigDict):
      follow(section[key], other[key])
    elif key not in ("name", "causal"):
      section[key] = other.get_oneway_ref(key)


def shrink(c) -> None:
  """Makes a config step in seconds, on embedded data."""
  common.apply(c, {"model.encoder": TINY})
  shrink_run(c)


def shrink_run(c) -> None:
  """All but the model of it."""
  c.steps, c.batch_size, c.log_every = 4, 8, 2
  c.checkpoint.every = c.checkpoint.keep = c.checkpoint.average = 2
  c.tokenizer.kind = common.tokenizer(c.tokenizer.kind.name, vocab_size=300)
  c.data.train, c.data.weights = ("embedded:number_words/time:train",), ()
  c.data.ops = (common.op("clean"), common.op("tokenize"), common.op("pack", lengths=(64, 64)))
  c.data.window = 256
  c.decode.max_source_length = c.decode.max_target_length = 32
  c.decode.batch_size = 8
  for evaluator in c.evals.values():
    evaluator.source = ("embedded:number_words/time:val",)


def sweep_table3():
  """Rows A to E and big of table 3; the rest of each row is base."""
  attention = "model.encoder.block.attention"  # the decoder follows
  for heads in (1, 4, 16, 32):
    yield {f"{attention}.num_heads": heads}
  for head_dim in (16, 32):
    yield {f"{attention}.head_dim": head_dim, f"{attention}.v_head_dim": 64}
  for layers in (2, 4, 8):
    yield {"model.encoder.num_layers": layers}
  for width in (256, 1024):
    yield {"model.encoder.width": width}
  for ffn_dim in (1024, 4096):
    yield {"model.encoder.block.ffn.dim": ffn_dim}
  for rate in (0.0, 0.2):
    yield {"model.encoder.block.dropout": rate}
  for smoothing in (0.0, 0.2):
    yield {"objective.label_smoothing": smoothing}
  learned = common.position("learned", max_length=256)
  yield {"model.encoder.position": learned, "model.decoder.position": learned}
  yield {"model.encoder.width": 1024, f"{attention}.num_heads": 16,
         "model.encoder.block.ffn.dim": 4096, "model.encoder.block.dropout": 0.3,
         "steps": STEPS["big"]}
