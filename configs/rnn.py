"""Recurrent translators: GRU or LSTM, with attention (Bahdanau et al. 2014) and without it.

  python -m experiments.train --config=configs/rnn.py:src=de,tgt=en \
    --config.data.path=FOLDER_OF_MULTI30K --workdir=runs/rnn_de_en

The folder is that of nmt_multi30k.py, whose data, tokenizer and evaluators these are, so that its
scores stand beside those here. All layers are 256 wide: a bidirectional encoder of one layer, a
decoder of one that attends to it, and dropout for 29,000 pairs.

Arguments: cell=gru or lstm; attention=false, with which the decoder knows a source by its first
state alone; layers, of each side; width; src, tgt, length and tiny as in nmt_multi30k.py.
`sweep_attention` trains both with and without it, of one and of two layers. A classifier of texts
is configs/classify.py:model=lstm.
"""

from . import arguments, common, nmt_base, nmt_text

PRESETS = ("", "src=en,tgt=de,cell=lstm,layers=2,width=128,length=32", "tiny",
           "attention=false,cell=lstm,tiny")


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, cell="gru", attention=True, layers=1, width=256, src="de",
                              tgt="en", length=64, tiny=False)
  width = 32 if args.tiny else args.width
  files = lambda split: nmt_text.parallel(split, args.src, args.tgt)
  c = nmt_text.translator(args.length, files)
  side = dict(cell=dict(kind=args.cell), dim=width, num_layers=args.layers,
              dropout=0.3 if args.layers > 1 else 0.0)
  c.model = common.model(
      "rnn_encdec", encoder=side | dict(bidirectional=True), decoder=side,
      attention=width if args.attention else 0, readout=width, readout_dropout=0.3,
      embedding=dict(width=width, dropout=0.3))
  c.optim.optimizer = common.optimizer("adamw", b1=0.9, b2=0.98, weight_decay=0.01)
  c.optim.schedule = common.schedule("cosine", warmup=0.05)
  c.optim.lr, c.optim.clip_norm = 2e-3, 1.0
  # A pair a row, of similar lengths in a batch: a scan takes as long as its rows are.
  layout = common.op("pad", lengths=(args.length,) * 2, trim=True, group=True)
  c.data.ops = (*c.data.ops[:-1], layout)
  c.batch_size, c.steps = 128, 3000
  c.checkpoint.every = 250
  c.evals.val_loss.every = 250
  c.decode.method = common.method("beam", beam=5, alpha=0.6)
  c.evals.test2016 = common.evaluator("translation", source=files("test2016"), lowercase=True)
  if args.tiny:
    nmt_base.shrink_run(c)
    c.data.ops = (*c.data.ops[:-1], layout)
  return c


def sweep_attention():
  """With attention and without it, of one layer and of two."""
  for layers in (1, 2):
    for attention in (256, 0):
      side = dict(num_layers=layers, dropout=0.3 if layers > 1 else 0.0)
      yield {"model.attention": attention, "model.encoder": side, "model.decoder": side}
