"""XLM-R (Conneau et al. 2020): RoBERTa of a hundred languages, which are sampled by size^0.3.

  python -m experiments.train --config=configs/xlm_roberta.py:base --workdir=runs/xlmr

trains on Wikipedias of TFDS (wiki40b has 41 languages; the authors took 2.5 TB of Common Crawl in
100). Arguments: a size (base, large); languages, joined by "+"; corpus and val, your own sources
with {} for the language, as in jsonl:{}.jsonl; vocab; position; tiny. The paper trains 1,500,000
steps of 8,192 rows on 500 V100; rates and warm-up here are RoBERTa's, since it does not tell them.
It reports 76.2 and 80.9 on XNLI for base and large, fine-tuned on English alone. Not yet reproduced
here. To try that on your own data: configs/classify.py:init=runs/xlmr,others=dev.de.tsv+dev.fr.tsv.
"""

from . import arguments, bert, bert_multilingual, common, roberta

PRESETS = ("", "tiny", "position=rope",
           "large,languages=en+de,corpus=jsonl:{},val=jsonl:{}.val,vocab=tokenizer.json")


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, size="base", **bert_multilingual.LANGUAGE_ARGS)
  _, lr, warmup = arguments.choose(roberta.SIZES, args.size, "size")
  args.language = "en"  # Moses' rules differ between languages in abbreviations only
  c = common.get_config()
  bert.pretrain(c, args, f"xlmr_{args.size}", "XLMRobertaForMaskedLM",
                common.op("full_sentences"), phases=((1.0, 512, 8192),),
                tokenizer=common.tokenizer("unigram", vocab_size=250_002, mask=True))
  bert_multilingual.mix(c, args, smoothing=0.3)
  roberta.optimise(c, lr, warmup)
  c.steps = 1_500_000
  if args.tiny:
    bert.shrink(c)
  return c
