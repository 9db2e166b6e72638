"""Multilingual BERT: one model for many languages, which are sampled by size^0.7.

  python -m experiments.train --config=configs/bert_multilingual.py --workdir=runs/mbert

trains on Wikipedias of TFDS (wiki40b has 41 languages; the authors took 104). Arguments:
languages, joined by "+"; cased, or else lowercased with accents stripped; corpus and val, your own
sources with {} for the language, as in jsonl:{}.jsonl; vocab; tiny. The recipe is that of
bert.py. Not yet reproduced here.
"""

from . import arguments, bert, common

# Those of wiki40b that the library splits sentences of.
LANGUAGES = ("ca+cs+da+de+el+en+es+fi+fr+hu+it+lt+lv+nl+no+pl+pt+ro+ru+sk+sl+sv+tr")
# Arguments that `mix` and `bert.pretrain` read.
LANGUAGE_ARGS = dict(languages=LANGUAGES, corpus="tfds:wiki40b/{}:train",
                     val="tfds:wiki40b/{}:validation", vocab="", position="", tiny=False)
PRESETS = ("", "tiny",
           "languages=en+de,cased=false,corpus=jsonl:{},val=jsonl:{}.val,vocab=v.txt,position=rope")


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, cased=True, **LANGUAGE_ARGS)
  c = common.get_config()
  args.language = "en"  # Moses' rules differ between languages in abbreviations only
  bert.pretrain(c, args, "bert_multilingual", "BertForPreTraining", common.op("segment_pair"),
                phases=((0.9, 128, 256), (0.1, 512, 256)),
                tokenizer=common.tokenizer("wordpiece", vocab_size=119_547, mask=True,
                                           lowercase=not args.cased))
  mix(c, args, smoothing=0.7)
  c.optim.lr, c.optim.clip_norm = 1e-4, 1.0
  c.optim.optimizer = common.optimizer("adamw", eps=1e-6, weight_decay=0.01)
  c.optim.schedule = common.schedule("linear", warmup=10_000.0)
  c.steps = 1_000_000
  if args.tiny:
    bert.shrink(c)
  return c


def mix(c, args, smoothing: float) -> None:
  """The languages of `args` as sources, drawn by their size to the power of `smoothing`."""
  languages = args.languages.split("+")
  c.data.train = tuple(args.corpus.format(language) for language in languages)
  c.data.smoothing = smoothing
  c.evals = {language: common.evaluator("loss", source=(args.val.format(language),), every=10_000)
             for language in languages}
