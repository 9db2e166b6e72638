"""Instructions: a language model learns the answers of conversations (Ouyang et al. 2022, SFT).

  python -m experiments.train --config=configs/instruct.py:init=FOLDER,train=train.jsonl \
    --config.data.path=DATA --workdir=runs/instruct

FOLDER is a Hugging Face model or a workdir; without `init` a small model with fresh parameters is
trained, of characters or, with `vocab_size`, of so many byte-level pieces. A line of the files is
an object with `messages`, a list of objects with a `role` (system, user or assistant) and a
`content`. The tokenizer's chat template writes them, or TEMPLATE below where it has none.
Arguments: train and dev, files or sources (docs/data.md), and those of DECODER_ARGS in decoders.py.
The dev split is answered by greedy search, and the share of answers that are those of the file is
`exact_match`.
"""

from jtx.data.sources.specs import spec_of

from . import arguments, common, decoders

PRESETS = ("", "tiny", "tiny,vocab_size=500",
           "train=t.jsonl,dev=d.jsonl,max_length=64,batch=8,lr=1e-3,epochs=1")


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, **decoders.DECODER_ARGS)
  c = common.get_config()
  template = decoders.finetune(c, args)
  c.objective = common.objective("lm")
  c.data.train = (spec_of(args.train, "jsonl"),)
  c.data.ops = (common.op("encode_messages", template=template),
                common.op("pack", fields=("text",), lengths=(args.max_length,)))
  dev = (spec_of(args.dev, "jsonl"),)
  c.evals.loss = common.evaluator("loss", source=dev, every=500)
  c.evals.dev = common.evaluator("replies", source=dev)
  if args.tiny:
    decoders.shrink(c, "embedded:instructions")
  return c
