"""Preferences by sentiment, made from SST-2: kind reviews are chosen, unkind ones rejected.

  python -m benchmarks.sentiment --data=FOLDER --output=DIR [--sentences=2] [--passes=8]
  python -m benchmarks.sentiment --policy=W --reference=W --judge=W [--number=512] [--seed=0]

The first writes reviews_*.jsonl for configs/instruct.py and pairs_*.jsonl for configs/dpo.py: train
and dev, by which to choose a recipe, of the first nine tenths and the last tenth of
FOLDER/train.tsv, whose lines are a sentence, a tab, and 1 or 0, and test of dev.tsv. A review is
some sentences of one sentiment, and no sentence is in two of these files. The second draws reviews
by a policy and by its reference at temperature 1, has a classifier judge them, and tells the
policy's KL from the reference, the mean over reviews of log p - log p_ref. Its last line is one
JSON object.
"""

import collections
import json
import os
import random
from typing import Any, Iterator, Sequence

from absl import flags
import jax
import numpy as np

from experiments import cli

DATA = flags.DEFINE_string("data", "", "Folder of train.tsv and dev.tsv.")
OUTPUT = flags.DEFINE_string("output", "", "Folder for what is made.")
SENTENCES = flags.DEFINE_integer("sentences", 2, "Of a review.", lower_bound=1)
PASSES = flags.DEFINE_integer("passes", 8, "Over the sentences, each in other reviews.",
                              lower_bound=1)
POLICY = flags.DEFINE_string("policy", "", "Workdir of configs/dpo.py.")
REFERENCE = flags.DEFINE_string("reference", "", "Workdir of configs/instruct.py.")
JUDGE = flags.DEFINE_string("judge", "", "Workdir of configs/classify.py.")
NUMBER = flags.DEFINE_integer("number", 512, "Reviews that are drawn.", lower_bound=1)
SEED = flags.DEFINE_integer("seed", 0, "Of what is drawn.", lower_bound=0)
NEW = 128  # tokens of a review that is drawn, at most

PROMPT = [{"role": "user", "content": "review"}]
KIND, UNKIND = "1", "0"  # labels


def said(text: str) -> list[dict[str, str]]:
  return [{"role": "assistant", "content": text}]


def read(path: str) -> dict[str, str]:
  """The label of each sentence; those with both labels are left out."""
  found: dict[str, set[str]] = collections.defaultdict(set)
  with open(path, encoding="utf-8") as f:
    for line in f:
      sentence, label = line.rstrip("\n").split("\t")
      found[sentence].add(label)
  return {sentence: labels.pop() for sentence, labels in found.items() if len(labels) == 1}


def reviews(labels: dict[str, str], label: str, size: int, draw: random.Random) -> list[str]:
  """Each sentence of a label once, so many in a review, in a drawn order."""
  sentences = [sentence for sentence, other in labels.items() if other == label]
  draw.shuffle(sentences)
  return [" . ".join(sentences[i:i + size]) for i in range(0, len(sentences) - size + 1, size)]


def made(labels: dict[str, str], size: int, passes: int,
         seed: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
  """Conversations of all reviews, and pairs of a kind and an unkind one."""
  draw, talks, pairs = random.Random(seed), [], []
  for _ in range(passes):
    kind, unkind = (reviews(labels, label, size, draw) for label in (KIND, UNKIND))
    both = kind + unkind
    draw.shuffle(both)
    talks += [{"messages": PROMPT + said(text)} for text in both]
    pairs += [{"prompt": PROMPT, "chosen": said(a), "rejected": said(b)}
              for a, b in zip(kind, unkind)]
  return talks, pairs


def split(folder: str) -> dict[str, dict[str, str]]:
  """Labels of the sentences of each part, of which no two have one in common."""
  test, rest = (read(os.path.join(folder, f"{name}.tsv")) for name in ("dev", "train"))
  sentences = [sentence for sentence in rest if sentence not in test]
  cut = len(sentences) * 9 // 10
  of = lambda part: {sentence: rest[sentence] for sentence in part}
  return {"train": of(sentences[:cut]), "dev": of(sentences[cut:]), "test": test}


def write() -> None:
  os.makedirs(OUTPUT.value, exist_ok=True)
  for part, labels in split(DATA.value).items():
    found = made(labels, SENTENCES.value, PASSES.value, SEED.value)
    for name, lines in zip(("reviews", "pairs"), found):
      file = f"{name}_{part}.jsonl"
      with open(os.path.join(OUTPUT.value, file), "w", encoding="utf-8") as f:
        f.writelines(json.dumps(line) + "\n" for line in lines)
      print(f"{file}: {len(lines)} of {len(labels)} sentences")


def drawn(workdir: str, number: int, seed: int) -> tuple[Any, np.ndarray, list[Any]]:
  """A generator, its prompt's tokens, and what it says behind it so many times."""
  import jtx
  opened = jtx.Generator(workdir, max_new_tokens=NEW, temperature=1.0, seed=seed)
  prompt = opened.generator.of_messages(opened.template(), PROMPT)
  return opened, prompt, [best[0] for best in opened.generator([prompt] * number)]


def log_probs(opened: Any, prompt: np.ndarray, texts: Sequence[Any]) -> Iterator[float]:
  """Of what another model said, its end included where it came to one."""
  from jtx.data import batching
  model, end = opened.model, opened.trained.tokenizer.eos_id
  score = jax.jit(lambda params, batch: jax.nn.log_softmax(model.apply(
      {"params": params}, batch, method=lambda m, b: m.logits(m(b, False)))))
  for text in texts:
    answer = [*text.tokens, end][:len(text.log_probs)]
    ids = np.array([*prompt, *answer], np.int32)
    batch = batching.pad("text", [ids], 1, len(prompt) + NEW, pad_id=0)
    places = np.arange(len(prompt) - 1, len(ids) - 1)
    yield float(np.asarray(score(opened.params, batch))[0, places, ids[places + 1]].sum())


def measure() -> None:
  import jtx
  judge, result = jtx.Classifier(JUDGE.value), {"number": NUMBER.value, "seed": SEED.value}
  for name, workdir in (("reference", REFERENCE.value), ("policy", POLICY.value)):
    opened, prompt, texts = drawn(workdir, NUMBER.value, SEED.value)
    labels = [p.label for p in judge([t.text for t in texts])]
    if name == "reference":
      reference = opened
    result[name] = {
        "kind": float(np.mean([label == KIND for label in labels])),
        "tokens": float(np.mean([len(t.log_probs) for t in texts])),
        "different": len({t.text for t in texts}), "samples": [t.text for t in texts[:5]]}
  own = np.array([sum(t.log_probs) for t in texts])
  kl = own - np.array(list(log_probs(reference, prompt, texts)))
  check = np.array(list(log_probs(opened, prompt, texts[:8])))
  np.testing.assert_allclose(own[:8], check, rtol=1e-4)  # one text, as generated and as read
  result |= {"kl": float(kl.mean()), "kl_standard_error": float(kl.std() / len(kl) ** 0.5)}
  print(json.dumps(result))


def main() -> None:
  needed = (POLICY, REFERENCE, JUDGE) if POLICY.value else (DATA, OUTPUT)
  for flag in needed:
    if not flag.value:
      raise cli.UsageError(f"--{flag.name} is missing; see --help")
  measure() if POLICY.value else write()


if __name__ == "__main__":
  cli.run(main)
