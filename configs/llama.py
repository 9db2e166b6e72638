"""Llama and its kin, pretrained from documents: sizes of Meta's, Mistral, Qwen, Gemma and OLMo.

  python -m experiments.train --workdir=runs/smollm \
    --config=configs/llama.py:smollm_135m,corpus=jsonl:train.jsonl,val=jsonl:val.jsonl

Arguments: a size, of SIZES; those of gpt.py. Without a corpus it is the English Wikipedia of TFDS;
a corpus without val is not evaluated.
Learning rate, batch and steps are those of Touvron et al. 2023, table 2: 3e-4 with 4 million tokens
a batch, 1.5e-4 for the large ones, 10 % of it at the end, and a trillion tokens. A 7B of these took
82,432 hours of A100 GPUs. Not reproduced here.
"""

from jtx.interop.presets import DECODERS

from . import arguments, common, gpt

KIN = ("stories260k", "llama", "smollm", "mistral", "mixtral", "qwen", "gemma", "olmo")
SIZES = {name: name for name in DECODERS if name.startswith(KIN)}
LARGE = ("llama_65b", "llama2_70b", "llama3_70b")
PRESETS = ("", "tiny", "llama3_8b,corpus=documents:.,val=blank_lines:val.txt,vocab=vocab.txt",
           "gemma3_1b,tiny")


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, size="smollm_135m", **gpt.CORPUS_ARGS)
  name, c = arguments.choose(SIZES, args.size, "size"), common.get_config()
  gpt.pretrain(c, args, name, 2048, common.tokenizer("byte_bpe", vocab_size=32_000))
  c.optim.lr, c.batch_size, c.steps = 1.5e-4 if name in LARGE else 3e-4, 2048, 250_000
  if args.tiny:
    gpt.shrink(c)
  return c
