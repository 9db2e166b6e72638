"""English number words, dates and times to German: a translator in minutes on two cores.

  python -m experiments.train --config=configs/nmt_numbers.py --workdir=runs/nmt_numbers

The data is generated (`jtx/data/sources/number_words.py`), so nothing is downloaded; the test
values occur in no training pair. Argument: tiny.
"""

from . import arguments, common, nmt_base

# Of the training examples; times and years are few, and by size would hardly be seen.
SHARES = {"cardinal": 0.52, "ordinal": 0.2, "year": 0.02, "date": 0.12, "time": 0.14}

PRESETS = ("", "tiny")


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, tiny=False)
  c = common.get_config()
  c.model = nmt_base.encoder_decoder(
      width=64, num_layers=2, unroll=-1, block=dict(
          attention=dict(num_heads=4), ffn=dict(dim=256),
          norm=dict(kind="rmsnorm", position="pre"), dropout=0.0))
  c.objective = common.objective("seq2seq", label_smoothing=0.0)
  c.optim.optimizer = common.optimizer("adamw", b1=0.9, b2=0.98, weight_decay=0.01)
  c.optim.schedule = common.schedule("cosine", warmup=50)
  c.optim.lr = 5e-3
  c.optim.clip_norm = 1.0
  c.steps = 900
  c.batch_size = 24
  c.log_every = 50
  c.tokenizer.kind = common.tokenizer("bpe", vocab_size=300, split_digits=True)
  c.data.train = tuple(f"embedded:number_words/{subset}:train" for subset in SHARES)
  c.data.weights = tuple(SHARES.values())
  c.data.ops = (common.op("clean"), common.op("tokenize"), common.op("pack", lengths=(160, 128)))
  c.decode.method = common.method("beam", beam=1)
  c.decode.batch_size = 256
  c.decode.max_source_length = c.decode.max_target_length = 96
  c.checkpoint.every = 300
  c.evals.val = common.evaluator("translation", source=("embedded:number_words:val",), every=300,
                                 limit=256, samples=8)
  c.evals.test = common.evaluator("translation", source=("embedded:number_words:test",), samples=8,
                                  picture=True)
  if args.tiny:
    nmt_base.shrink(c)
  return c


def sweep_architecture():
  """Positions x norm placement x key heads: what they have learnt after 100 steps."""
  shorter = {"steps": 100, "evals.val.every": 0, "evals.test.limit": 1000,
             "evals.test.picture": False}
  for position in ("sinusoidal", "rope", "alibi", "t5"):
    for norm_position in ("post", "pre"):
      for kv_heads in (4, 1):
        yield {**shorter, "model.encoder.position": common.position(position),
               "model.decoder.position": common.position(position),
               "model.encoder.block.norm.position": norm_position,
               "model.encoder.block.attention.num_kv_heads": kv_heads}
