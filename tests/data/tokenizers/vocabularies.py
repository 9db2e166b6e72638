"""Small vocabularies."""

import tokenizers as hf

PIECES = ("[PAD] [UNK] [CLS] [SEP] [MASK] the cat sat on mat ##s ##ting [ ] mask sep a b c d e f"
          ).split()


def byte_level(add_prefix_space, template=True):
  """A byte-level tokenizer of single bytes, " a" and "ab"; the template is RoBERTa's."""
  pieces = ["<s>", "<pad>", "</s>", "<unk>", "<mask>",
            *sorted(hf.pre_tokenizers.ByteLevel.alphabet()), "Ġa", "ab"]
  backend = hf.Tokenizer(hf.models.BPE(
      vocab={p: i for i, p in enumerate(pieces)}, merges=[("Ġ", "a"), ("a", "b")]))
  backend.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
  if template:
    backend.post_processor = hf.processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=add_prefix_space)
  backend.decoder = hf.decoders.ByteLevel()
  backend.add_special_tokens(pieces[:4])
  backend.add_special_tokens([hf.AddedToken("<mask>", lstrip=True, special=True)])
  return backend
