"""DeBERTa (He et al. 2020): disentangled attention, and masked tokens by an enhanced mask decoder.

  python -m experiments.train --config=configs/deberta.py:base --workdir=runs/deberta

Arguments: a size (base, large); decoder=false, without the decoder, as classes of `transformers`
have it; those of CORPUS_ARGS in bert.py, which says what data is taken. The paper trains 1,000,000
steps of 2,048 rows of 512 on 78 GB of text, base in 10 days on 64 V100 and large in 20 on 96, and
reports 88.8 on MNLI's matched dev set for base, 91.1 for large. Not yet reproduced here. With the
decoder a run is fine-tuned here; its export is that of the encoder with a head for a task.
DeBERTa V3 is configs/electra.py with position=disentangled,disentangled. `sweep_parts` is the
paper's ablation (table 4): without the decoder, and without one term of the attention or the other.
"""

from . import arguments, bert, common

SIZES = {"base": "deberta_base", "large": "deberta_large"}
PRESETS = ("", "tiny", "large,decoder=false,corpus=jsonl:a,val=jsonl:b,vocab=tokenizer.json,"
           "language=de,position=rope")
POSITIONS = 512


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, size="base", decoder=True, **bert.CORPUS_ARGS)
  preset = arguments.choose(SIZES, args.size, "size")
  c = common.get_config()
  bert.pretrain(c, args, preset, "DebertaForMaskedLM", common.op("full_sentences"),
                phases=((1.0, 512, 2048),),
                tokenizer=common.tokenizer("byte_bpe", vocab_size=50_265, mask=True))
  c.model.masked.positions = POSITIONS if args.decoder else 0
  c.optim.lr, c.optim.clip_norm, c.optim.accumulate = 2e-4, 1.0, 16
  c.optim.optimizer = common.optimizer("adamw", eps=1e-6, weight_decay=0.01)
  c.optim.schedule = common.schedule("linear", warmup=10_000.0)
  c.steps = 1_000_000
  if args.tiny:
    bert.shrink(c)
  return c


def sweep_parts():
  """Without the decoder, and with one term of the attention alone."""
  yield {"model.masked.positions": 0}
  yield {"model.stack.position.terms": ("p2c",)}
  yield {"model.stack.position.terms": ("c2p",)}
