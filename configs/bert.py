"""BERT (Devlin et al. 2019), from Tiny to Large, pretrained from documents.

  python -m experiments.train --config=configs/bert.py:base --workdir=runs/bert_base

takes the English Wikipedia of TFDS (the paper's BooksCorpus is no longer distributed), of which a
hundredth is for evaluation. Your own documents are `corpus` of CORPUS_ARGS, and what they are
evaluated on is `val`, without which nothing is. Arguments: a size (mini, small, medium, base,
large, or size=tiny, since `tiny` alone is a config for trying things out); form, how examples are
made of documents (segment_pair and sentence_pair with next-sentence prediction, full_sentences and
doc_sentences without); those of CORPUS_ARGS.

The paper trains 1,000,000 steps of 256 rows, nine tenths of them of 128 tokens and then of 512: 4
days on 16 TPU chips for base, on 64 for large. Not yet reproduced here. GLUE and SQuAD of what
comes out: see glue.py and squad.py. `sweep_masking` is table 8 of the paper, `sweep_tasks`
its table 5, `sweep_forms` table 1 of RoBERTa (Liu et al. 2019).
"""

from jtx.interop import huggingface, presets
from jtx.interop.presets import ENCODERS
from jtx.nn.positions import POSITIONS

from . import arguments, common

# Arguments that `pretrain` reads; a config adds its own.
CORPUS_ARGS = dict(
    # A source of jtx/data/sources/registry.py: documents:FOLDER, blank_lines:FILE, jsonl:FILE.
    corpus="",
    val="",  # another, to evaluate on; beside a corpus without it, nothing is evaluated
    vocab="",  # a tokenizer or vocab.txt; without one, a tokenizer is trained on the corpus
    language="en",  # whose rules split sentences
    position="",  # another kind than the architecture's (rope, alibi, t5, ...)
    tiny=False,  # seconds, on the documentation of Python's library
)
PAIRS = ("segment_pair", "sentence_pair")
FORMS = (*PAIRS, "full_sentences", "doc_sentences")
# Pairs are told apart by what the paper's model is trained for.
ARCHITECTURES = {True: "BertForPreTraining", False: "BertForMaskedLM"}

PRESETS = ("", "tiny", "large,form=full_sentences",
           "mini,corpus=documents:.,val=blank_lines:val.txt,vocab=vocab.txt,language=de",
           "position=rope")
SIZES = {name.removeprefix("bert_"): name for name in ENCODERS
         if name.startswith("bert_") and name != "bert_multilingual"}


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, size="base", form="segment_pair", **CORPUS_ARGS)
  arguments.choose(dict.fromkeys(FORMS), args.form, "form")
  c = common.get_config()
  pretrain(c, args, arguments.choose(SIZES, args.size, "size"), ARCHITECTURES[args.form in PAIRS],
           common.op(args.form), phases=((0.9, 128, 256), (0.1, 512, 256)),
           tokenizer=common.tokenizer("wordpiece", vocab_size=30_522, mask=True))
  c.optim.lr, c.optim.clip_norm = 1e-4, 1.0
  c.optim.optimizer = common.optimizer("adamw", eps=1e-6, weight_decay=0.01)
  c.optim.schedule = common.schedule("linear", warmup=10_000.0)
  c.steps = 1_000_000
  if args.tiny:
    shrink(c)
  return c


def pretrain(c, args, preset: str, architecture: str, form, phases, tokenizer) -> None:
  """Makes a config pretrain an encoder.

  Args:
    c: to edit.
    args: of CORPUS_ARGS.
    preset: of ENCODERS.
    architecture: of `transformers`, for its heads.
    form: the op that makes examples of documents.
    phases: (share of the run, tokens a row, rows a batch) each.
    tokenizer: the kind that is trained where `args.vocab` names none.
  """
  published = ENCODERS[preset] if args.vocab else presets.fresh(preset)
  fields = huggingface.model_fields(published, architecture, preset)
  c.model = common.model(huggingface.identify(published, preset).family.model, **fields)
  c.model.vocab_size = None  # the tokenizer's
  stack = c.model.stack
  if args.position not in ("", stack.position.name):
    arguments.choose(POSITIONS, args.position, "position")
    stack.position = common.position(args.position)
  longest = max(length for _, length, _ in phases)
  if "max_length" in stack.position and longest > stack.position.max_length:
    stack.position.max_length = longest
  c.objective = common.objective("mlm")
  c.phases, c.batch_size = phases, phases[0][2]
  c.tokenizer.kind = tokenizer
  if args.vocab:
    c.tokenizer.kind = common.tokenizer("file", path=args.vocab)
  train, val = arguments.or_wikipedia(args)
  c.data.train = (train,)
  c.data.ops = ops(form, phases[0][1], args.language)
  c.data.window = 8192  # documents
  if val:
    c.evals.val = common.evaluator("loss", source=(val,), every=10_000)


def ops(form, length: int = 128, language: str = "en", last=None):
  """Documents to rows of masked tokens; `last` is the op that masks them, if not the paper's."""
  return (common.op("split_sentences", language=language), common.op("encode_sentences"), form,
          common.op("pack", fields=("text",), lengths=(length,), max_segments=16),
          last or common.op("mask"))


def shrink(c) -> None:
  """Makes a pretraining config run in seconds, on few embedded documents."""
  common.apply(c, {"model.stack": common.TINY_STACK})
  if c.model.embedding.width:
    c.model.embedding.width = 16
  c.steps, c.batch_size, c.log_every = 4, 8, 2
  c.phases = ((0.5, 32, 8), (0.5, 64, 8))
  c.optim.accumulate = 1
  if "warmup" in c.optim.schedule:
    c.optim.schedule.warmup = 2.0
  c.checkpoint.every = c.checkpoint.keep = c.checkpoint.average = 2
  if c.tokenizer.kind.name != "file":
    c.tokenizer.kind = common.tokenizer(c.tokenizer.kind.name, vocab_size=500, mask=True)
  c.data.train, c.data.weights, c.data.smoothing = ("embedded:pydocs:val",), (), None
  c.data.ops[-2].lengths = (32,)
  for evaluator in c.evals.values():
    evaluator.source = ("embedded:pydocs:val",)


def sweep_masking():
  """How chosen tokens are replaced (Devlin et al. 2019, table 8)."""
  for split in ((0.8, 0.1, 0.1), (1.0, 0.0, 0.0), (0.8, 0.0, 0.2), (0.8, 0.2, 0.0),
                (0.0, 0.2, 0.8), (0.0, 1.0, 0.0)):
    yield {"data.ops[4].split": split}


NO_PAIRS = {"objective.pairs": False, "model.head.task": "none", "model.head.transform": "none"}


def sweep_tasks():
  """Without next-sentence prediction, and from left to right (Devlin et al. 2019, table 5)."""
  yield {"objective.pairs": True}
  yield NO_PAIRS
  yield {**NO_PAIRS, "model.stack.causal": True,
         "data.ops": ops(common.op("segment_pair"), last=common.op("predict_next"))}


def sweep_forms():
  """The forms of an example (Liu et al. 2019, RoBERTa, table 1)."""
  for form in FORMS:
    yield {"data.ops": ops(common.op(form)), **({} if form in PAIRS else NO_PAIRS)}


def sweep_batch():
  """Batch size against learning rate, in as many passes over the data (RoBERTa, table 3)."""
  for batch_size, steps, lr in ((256, 1_000_000, 1e-4), (2048, 125_000, 7e-4),
                                (8192, 31_000, 1e-3)):
    yield {"batch_size": batch_size, "phases": ((1.0, 512, batch_size),), "steps": steps,
           "optim.lr": lr}
