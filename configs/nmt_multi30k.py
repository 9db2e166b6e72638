"""Multi30k (Elliott et al. 2016), English to German captions: 29,000 pairs.

  python -m experiments.train --config=configs/nmt_multi30k.py \
    --config.data.path=FOLDER_OF_MULTI30K --workdir=runs/multi30k

The folder holds train, val and test2016, each as .en and .de. A small model and strong
dropout (Wu et al. 2021 report 41.0 BLEU, and that larger ones overfit). An hour on two
CPU cores reaches 40.3 on test2016 (RESULTS.md). Arguments as in nmt_text.py, which takes
any other pair of text files.
"""

from . import arguments, common, nmt_base, nmt_text

PRESETS = ("", "src=de,tgt=en,length=32", "tiny")


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, src="en", tgt="de", length=64, tiny=False)
  files = lambda split: nmt_text.parallel(split, args.src, args.tgt)
  c = nmt_text.translator(args.length, files)
  common.apply(c, {"model.encoder": dict(width=128, block=dict(ffn=dict(dim=256)))})
  c.optim.lr = 3e-3
  c.steps = 5000
  c.checkpoint.every = 250
  c.decode.method.beam = 5
  c.evals.test2016 = common.evaluator(
      "translation", source=files("test2016"), lowercase=True)
  if args.tiny:
    nmt_base.shrink(c)
  return c
