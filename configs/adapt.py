"""Domain adaptation: a trained encoder goes on learning masked tokens, on texts of a domain.

  python -m experiments.train --config=configs/adapt.py:init=FOLDER,corpus=jsonl:texts.jsonl \
    --workdir=runs/adapted

FOLDER is a Hugging Face model, a name of its Hub, or the workdir of a run; with a vocabulary of the
domain, what `experiments.extend` made of it (docs/domain.md). Arguments: init; length, of rows, in
tokens; batch, rows; steps; lr; and corpus, val, language and tiny of CORPUS_ARGS in bert.py.
Without val nothing is evaluated. Without init, BERT Mini starts from fresh parameters.

Gururangan et al. 2020 train RoBERTa for 12,500 steps of 2,048 rows of 512 on a domain, at a rate of
5e-4, and for 100 epochs of batches of 256 on the texts of a task. Here batch and rate are for
smaller corpora. Fine-tuning of what comes out: configs/classify.py:init=runs/adapted and others, of
the head alone by --config.optim.frozen="(('^(?!task_head)',0.0,1.0),)".
"""

from jtx import hub
from jtx.errors import ConfigError
from jtx.models import MODELS
from jtx.models.encoder import Encoder
from jtx.saved.folder import open_saved

from . import arguments, bert, common

ARGS = dict(init="", corpus=bert.CORPUS_ARGS["corpus"], val="", language="en", length=128,
            batch=256, steps=12_500, lr=1e-4, tiny=False)
PRESETS = ("", "tiny",
           "corpus=jsonl:a,val=jsonl:b,language=de,length=256,batch=32,steps=10,lr=5e-5")


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, **ARGS)
  args.vocab, args.position = "", ""
  c = common.get_config()
  bert.pretrain(c, args, "bert_mini", "BertForMaskedLM", common.op("doc_sentences"),
                phases=((1.0, args.length, args.batch),),
                tokenizer=common.tokenizer("wordpiece", vocab_size=8000, mask=True))
  if args.init:
    go_on(c, args.init)
  c.optim.lr, c.optim.clip_norm = args.lr, 1.0
  c.optim.optimizer = common.optimizer("adamw", b2=0.98, eps=1e-6, weight_decay=0.01)
  c.optim.schedule = common.schedule("linear", warmup=0.06)
  c.steps = args.steps
  if args.tiny:
    bert.shrink(c)
  return c


def go_on(c, init: str) -> None:
  """The model of a folder, its masked language model's head, and its tokenizer.

  Raises:
    ConfigError: it is no encoder, or reads shorter texts than rows are long.
  """
  c.init_from = hub.place(init)
  kind, fields = open_saved(init).fields()
  if MODELS[kind] is not Encoder:
    raise ConfigError(f"config argument init={init!r} holds a model of the kind {kind!r}, and only"
                      " an 'encoder' goes on learning masked tokens")
  c.model = common.model(kind, **fields, mlm=True)
  c.tokenizer.kind = common.tokenizer("file", path=c.init_from)
  stack, longest = c.model.stack, max(length for _, length, _ in c.phases)
  if "max_length" in stack.position and longest > stack.position.max_length - (
      stack.position.first_position):
    raise ConfigError(f"config argument length={longest} is more than the"
                      f" {stack.position.max_length - stack.position.first_position} tokens that"
                      f" the model of {init} reads")
