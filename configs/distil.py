"""Small encoders taught by large ones: TinyBERT, MiniLM, DistilBERT and their like.

  python -m experiments.train --config=configs/distil.py:teacher=FOLDER,losses=minilm2 \
    --workdir=runs/student

FOLDER is an encoder of Hugging Face or a workdir; its tokenizer is the student's. Arguments:
losses, of LOSSES in teaching.py (minilm2; minilm, tinybert, distilbert, soft, xtremedistil, and two
by which masked tokens are learnt, too: tinybert_mlm, minilm2_mlm); layers and width of the student,
6 and 384, with heads of 64 but for heads=N; and those of CORPUS_ARGS in bert.py, which says what
data is taken. A student may be the teacher of a smaller one, its assistant (MiniLM, section 3.3):
name its workdir. Other tasks are taught by the same keys, `config.distill`: see teaching.py, and
the argument teacher of classify.py and its like. `sweep_losses` compares the papers' terms.

MiniLM is trained for 400,000 steps of 1,024 rows of 512 tokens on 8 V100; with 6 layers of 768 it
has 80.4 on the average of SQuAD 2 and 7 tasks of GLUE, where BERT Base has 81.5 (Wang et al. 2020,
table 2). Not yet reproduced here.
"""

from . import arguments, bert, common, teaching

PRESETS = ("", "tiny", "layers=2,width=256,heads=2,corpus=jsonl:a,val=jsonl:b,"
           "vocab=tokenizer.json,language=de,position=alibi")
DEFAULT = "minilm2"


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, **teaching.TEACHER_ARGS, layers=6, width=384, heads=0,
                              **bert.CORPUS_ARGS)
  args.vocab = args.vocab or args.teacher
  c = common.get_config()
  bert.pretrain(c, args, "bert_base", "BertForMaskedLM", common.op("full_sentences"),
                phases=((1.0, 512, 1024),),
                tokenizer=common.tokenizer("wordpiece", vocab_size=30_522, mask=True))
  common.apply(c, {"model.stack": dict(num_layers=args.layers, width=args.width, block=dict(
      attention=dict(num_heads=args.heads or max(args.width // 64, 1)),
      ffn=dict(dim=4 * args.width)))})
  c.optim.lr, c.optim.clip_norm = 5e-4, 1.0
  c.optim.optimizer = common.optimizer("adamw", eps=1e-6, weight_decay=0.01)
  c.optim.schedule = common.schedule("linear", warmup=4_000.0)
  c.steps = 400_000
  teaching.teach(c, args, DEFAULT)
  if args.tiny:
    bert.shrink(c)
  elif not args.teacher:  # a run of it says so; `tiny` is what is left of the objective
    common.apply(c, teaching.edits(DEFAULT, c.model))
  return c


def sweep_losses(config):
  """The terms of each paper, of the same student: with a teacher."""
  for losses in ("soft", "distilbert", "tinybert", "minilm", "minilm2", "xtremedistil"):
    yield teaching.edits(losses, config.model)
