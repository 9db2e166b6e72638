"""Preferences: of two answers to a prompt one is better (DPO; Rafailov et al. 2023).

  python -m experiments.train --config=configs/dpo.py:init=FOLDER,train=train.jsonl \
    --config.data.path=DATA --workdir=runs/dpo

FOLDER, a Hugging Face model or a workdir, is what is trained and, as it is, the reference that the
preferences are measured against. A line of the files is an object with `prompt`, `chosen` and
`rejected`, texts or lists of messages. Arguments: loss, sigmoid or ipo; beta; smoothing, the share
of preferences that are the wrong way round (cDPO); train and dev, files or sources (docs/data.md);
and those of DECODER_ARGS in decoders.py.
"""

from jtx.data.sources.specs import spec_of

from . import arguments, common, decoders

PRESETS = ("", "tiny,loss=ipo,beta=0.3", "smoothing=0.1,train=t.jsonl,dev=d.jsonl,max_length=64,"
           "batch=8,lr=1e-6,epochs=2", "tiny,vocab_size=500")


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, loss="sigmoid", beta=0.1, smoothing=0.0,
                              **decoders.DECODER_ARGS | dict(lr=5e-6, epochs=1.0))
  c = common.get_config()
  template = decoders.finetune(c, args)
  c.objective = common.objective("dpo", reference=c.init_from or "", loss=args.loss, beta=args.beta,
                                 label_smoothing=args.smoothing)
  c.data.train = (spec_of(args.train, "jsonl"),)
  c.data.ops = (common.op("encode_preferences", template=template),
                common.op("pack", fields=("chosen", "rejected"), lengths=(args.max_length,) * 2))
  c.evals.dev = common.evaluator("loss", source=(spec_of(args.dev, "jsonl"),), every=500)
  if args.tiny:
    decoders.shrink(c, "embedded:preferences")
  return c
