"""Tokenizers of files."""

import json

from benchmarks.bad_inputs.case import Case

WORDS = "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]) + "\n"


def train(name, sentence, files, path="t", more=""):
  return Case(name, "train --config=jtx.configs.classify:tiny --workdir=w"
              f" --config.tokenizer.kind=\"{{'name':'file','path':'{path}'}}\" {more}", sentence,
              files)


def edited(change):
  """The tokenizer.json of the sound folder, changed."""
  def write(path, made):
    config = json.loads((made / "hf" / "tokenizer.json").read_text())
    path.write_text(json.dumps(change(config)))
  return write


def without(key):
  return edited(lambda c: {k: v for k, v in c.items() if k != key})


CASES = [
    train("no folder", "nowhere", {}, "nowhere"),
    train("an empty folder", "t", {"t/x": ""}),
    train("no JSON", "tokenizer.json", {"t/tokenizer.json": "{"}),
    train("JSON of something else", "tokenizer.json", {"t/tokenizer.json": "[]"}),
    train("no model in it", "tokenizer.json", {"t/tokenizer.json": without("model")}),
    train("a model that is none", "tokenizer.json", {"t/tokenizer.json": edited(
        lambda c: c | {"model": {"type": "Magic"}})}),
    train("ids that are text", "tokenizer.json", {"t/tokenizer.json": edited(
        lambda c: c | {"model": c["model"] | {"vocab": {"a": "b"}}})}),
    train("ids below 0", "tokenizer.json", {"t/tokenizer.json": edited(
        lambda c: c | {"model": c["model"] | {"vocab": {"a": -1}}})}),
    train("deep JSON", "tokenizer.json", {"t/tokenizer.json": "[" * 100_000 + "]" * 100_000}),
    train("a vocabulary without special tokens", "t", {"t/vocab.txt": "a\nb\nc\n"}),
    train("a vocabulary with a word twice", "vocab.txt", {"t/vocab.txt": WORDS + "a\n"}),
    train("an empty vocabulary", "t", {"t/vocab.txt": ""}),
    train("a vocabulary that is no UTF-8", "vocab.txt", {"t/vocab.txt": b"\xff\xfe\n"}),
    train("merges without a vocabulary", "t", {"t/merges.txt": "a b\n"}),
    train("a vocabulary without merges", "t", {"t/vocab.json": "{}"}),
    train("a SentencePiece model that is none", "t", {"t/spiece.model": b"none"}),
    train("a vocabulary of 2,000,000 lines for 40 rows", "vocab_size=40", {
        "t/vocab.txt": lambda path, _: path.write_text(
            WORDS + "".join(f"w{i}\n" for i in range(2_000_000)))},
          more="--config.model.vocab_size=40"),
    train("a vocabulary of another size than the model", "vocab_size=99", {"t/vocab.txt": WORDS},
          more="--config.model.vocab_size=99"),
    Case("merges that are none", "train --config=jtx.configs.nmt_numbers:tiny --workdir=w"
         " --config.tokenizer.kind=\"{'name':'subword_nmt','merges':'m','vocab_size':0}\"", "m",
         {"x": ""}),
    Case("a kind that is none", "train --config=jtx.configs.nmt_numbers:tiny --workdir=w"
         " --config.tokenizer.kind=\"{'name':'bpee'}\"", "bpee"),
]
