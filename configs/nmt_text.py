"""A translator of your own parallel text: files train.SRC, train.TGT, val.SRC, val.TGT.

  python -m experiments.train --config=configs/nmt_text.py:src=en,tgt=de \
    --config.data.path=FOLDER --workdir=runs/mine

A line of train.en and the same line of train.de are a pair. Arguments: src and tgt, the
endings of the files; train and val, tables of pairs in their place (.tsv, .csv, .jsonl, .parquet,
.arrow), of which src and tgt are columns, such as translation.en; those of a .tsv are 0 and 1, and
where its first line names them, it is table:FILE.tsv; length, the most tokens of a sentence; tiny.
The model is small (about 7 M parameters) and the dropout strong, which suits tens
of thousands of pairs; with millions take --config.model.encoder.width=512
--config.model.encoder.block.ffn.dim=2048 --config.model.encoder.block.dropout=0.1; the decoder
follows.

With few pairs, texts of both languages help that are nobody's translation (Lewis et al. 2020):
denoise, files of them or sources that "+" joins, makes a run that restores them from noise, and
init, the workdir of that, is where the translator starts; vocab takes the tokenizer of a workdir
alone.

  python -m experiments.train --workdir=runs/restored --config.data.path=FOLDER \
    --config=configs/nmt_text.py:src=en,tgt=de,denoise=news.en+news.de
  python -m experiments.train --workdir=runs/mine --config.data.path=FOLDER \
    --config=configs/nmt_text.py:src=en,tgt=de,init=runs/restored
"""

from typing import Callable, Sequence

from jtx import hub
from jtx.data.sources.specs import joined, spec_of
from jtx.errors import ConfigError

from . import arguments, common, nmt_base

PRESETS = ("", "src=de,tgt=en,length=32", "tiny",
           "src=translation.en,tgt=translation.de,train=t.parquet,val=v.jsonl",
           "denoise=mono.en+jsonl:mono.jsonl", "vocab=vocab.txt")
START = dict(init="", vocab="")  # arguments of `begin`


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, src="en", tgt="de", train="", val="", length=128, denoise="",
                              **START, tiny=False)

  def files(split):
    if table := args[split]:
      return (f"{spec_of(table, 'tsv')}:columns[src={args.src}+tgt={args.tgt}]",)
    return parallel(split, args.src, args.tgt)

  c = translator(args.length, files)
  if args.tiny:
    nmt_base.shrink(c)
  if args.denoise:
    arguments.refuse_beside_tiny(args, "denoise")
    if args.train:
      raise ConfigError("config argument train: has no place beside denoise, whose texts are"
                        " trained on; leave it out")
    val = tuple(f"{spec_of(args.val, 'tsv')}:columns[text={side}]" if args.val else
                f"text:val.{side}" for side in (args.src, args.tgt))
    restore(c, args, tuple(spec_of(file, "text") for file in joined(args.denoise)), val)
  begin(c, args)
  return c


def begin(c, args) -> None:
  """Takes the parameters of `args.init` and its tokenizer, or that of `args.vocab`."""
  if args.init and args.vocab:
    raise ConfigError("config arguments init and vocab exclude each other: init brings its"
                      " tokenizer")
  if folder := args.init or args.vocab:
    c.tokenizer.kind = common.tokenizer("file", path=hub.place(folder))
  if args.init:
    c.init_from = hub.place(args.init)


def restore(c, args, train: Sequence[str], val: Sequence[str]) -> None:
  """Makes the config of a translator restore texts, of one language each, from noise.

  Args:
    c: of a translator.
    args: with `length` and `tiny`, and those of `START`, which must not be given.
    train: sources of texts.
    val: likewise, of which the loss is told.
  """
  if args.init or args.vocab:
    raise ConfigError("config argument denoise: is what init and vocab come from; leave them out")
  c.data.train, length = train, args.length
  if args.tiny:
    c.data.train = val = ("embedded:pydocs:val",)
    length = c.data.ops[-1].lengths[0]
  c.data.ops = (common.op("split_sentences"), common.op("encode_sentences"), common.op("denoise"),
                common.op("pack", lengths=(length, length)))
  c.tokenizer.kind.mask = True
  c.evals = {"val_loss": common.evaluator("loss", source=tuple(val), every=500)}


def parallel(split: str, src: str, tgt: str) -> tuple[str, ...]:
  return (f"text:{split}.{src},{split}.{tgt}",)


def translator(length: int, files: Callable[[str], tuple[str, ...]]):
  """The config of a small model.

  Args:
    length: tokens of a sentence at most.
    files: the sources of "train" and of "val".
  """
  arguments.check_range("length", length, 1)
  c = common.get_config()
  c.model = nmt_base.encoder_decoder(
      width=256, num_layers=4, unroll=4, block=dict(
          attention=dict(num_heads=4), ffn=dict(dim=512), norm=dict(position="pre"), dropout=0.3))
  c.objective = common.objective("seq2seq", label_smoothing=0.1, logits_chunk=512)
  c.optim.optimizer = common.optimizer("adamw", b1=0.9, b2=0.98, weight_decay=0.01)
  c.optim.schedule = common.schedule("cosine", warmup=500)
  c.optim.lr = 2e-3
  c.optim.clip_norm = 1.0
  c.steps = 5000
  c.batch_size = max(4096 // length, 1)  # about 4,096 source and as many target tokens
  c.tokenizer.kind = common.tokenizer("bpe", vocab_size=8000)
  c.data.train = files("train")
  c.data.ops = (
      common.op("clean"),
      common.op("tokenize"),
      common.op("filter_length", max_length=length),
      common.op("pack", lengths=(length, length)),
  )
  c.decode.max_source_length = c.decode.max_target_length = length
  c.checkpoint.every = 500
  c.checkpoint.keep = c.checkpoint.average = 5
  c.evals.val_loss = common.evaluator("loss", source=files("val"), every=500)
  c.evals.val = common.evaluator("translation", source=files("val"), samples=3)
  return c
