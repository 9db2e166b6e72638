"""ELECTRA (Clark et al. 2020): an encoder that finds the tokens a small generator replaced.

  python -m experiments.train --config=configs/electra.py:small --workdir=runs/electra

Arguments: a size (small, base, large); disentangled, by which the encoder has token embeddings
beside the generator's (He et al. 2021, DeBERTaV3); those of CORPUS_ARGS in bert.py, which says what
data is taken, and by position=disentangled gives the encoder DeBERTa's attention. The paper trains
small for 1,000,000 steps of 128 rows of 128 tokens (4 days on one V100), base for 766,000 of 256
rows of 512 (4 days on 16 TPUv3 chips), and reports 77.4, 82.7 and, for large, 85.2 on GLUE's test
set. Its Adam does not correct the bias of early steps; here it does. Not yet reproduced here.
--config.init_from=FOLDER starts the encoder from another, of masked tokens or of replaced ones, and
the generator from fresh parameters. What a run leaves, for `experiments.convert`, `configs/glue.py`
and others, is the encoder without its generator.
"""

from . import arguments, bert, common

# Rows a batch, tokens a row, steps, learning rate, share that is masked, and the divisor of sizes
# that makes the generator's.
SIZES = {
    "small": (128, 128, 1_000_000, 5e-4, 0.15, 4),
    "base": (256, 512, 766_000, 2e-4, 0.15, 3),
    "large": (2048, 512, 400_000, 2e-4, 0.25, 4),
}
PRESETS = ("", "tiny", "base",
           "corpus=jsonl:a,val=jsonl:b,vocab=tokenizer.json,language=de,position=disentangled,"
           "disentangled")


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, size="small", disentangled=False, **bert.CORPUS_ARGS)
  batch, length, steps, lr, masked, part = arguments.choose(SIZES, args.size, "size")
  c = common.get_config()
  bert.pretrain(c, args, f"electra_{args.size}", "ElectraForPreTraining",
                common.op("full_sentences"), phases=((1.0, length, batch),),
                tokenizer=common.tokenizer("wordpiece", vocab_size=30_522, mask=True))
  c.optim.lr = lr
  c.optim.optimizer = common.optimizer("adamw", eps=1e-6, weight_decay=0.01)
  c.optim.schedule = common.schedule("linear", warmup=10_000.0)
  c.steps = steps
  if args.tiny:
    bert.shrink(c)
    part = 2
  find_replaced(c, masked, part, args.disentangled)
  return c


def find_replaced(c, masked: float, part: int, disentangled: bool = False) -> None:
  """Makes a config of masked tokens one of tokens that a generator replaced.

  Args:
    c: to edit.
    masked: share of the tokens that the generator is to predict.
    part: the generator's width is this part of the encoder's.
    disentangled: the encoder has token embeddings beside the generator's.
  """
  encoder = {key: value for key, value in c.model.items() if key != "name"}
  c.model = common.model("electra", **encoder, disentangled=disentangled)
  c.objective = common.objective("electra")
  # Masked tokens are never random ones: the generator makes those.
  c.data.ops[-1].rate, c.data.ops[-1].split = masked, (0.85, 0.0, 0.15)
  stack = c.model.stack
  c.model.generator = dict(
      num_layers=stack.num_layers, width=stack.width // part,
      num_heads=max(stack.block.attention.num_heads // part, 1),
      ffn_dim=stack.block.ffn.dim // part)


def sweep_generator():
  """Sizes of the generator (figure 3 of the paper, left), for small."""
  for part in (1, 2, 4, 8):
    yield {"model.generator.width": 256 // part, "model.generator.ffn_dim": 1024 // part,
           "model.generator.num_heads": max(4 // part, 1)}


def sweep_weight():
  """The weight of the encoder's loss."""
  for weight in (10.0, 25.0, 50.0, 100.0):
    yield {"objective.weight": weight}
