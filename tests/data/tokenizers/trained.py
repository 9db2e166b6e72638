"""Kinds of tokenizers, and texts that are hard for them."""


TRAINED = ("bpe", "byte_bpe", "wordpiece", "unigram")
HOSTILE = ["<eos>", "<pad> a <bos>b<unk> </s>", "zwei<eos>drei <eos>", "##<eos> ▁<eos> Ġ<eos>"]
