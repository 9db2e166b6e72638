"""Every kind of head says of an input what its model's outputs say, in order."""

import json

import numpy as np
import pytest

from jtx.data.tokenizers import kinds
from jtx.data.tokenizers.files import read_tokenizer
from jtx.errors import ConfigError, DataError
from jtx.inference import tasks
from jtx.inference.tasks import Trained, predict
from jtx.inference.texts import TextClassifier
from jtx.models.heads import TASKS
from jtx.models.text_head import HeadConfig
from jtx.nn.positions import Learned
from tests.helpers import command
from tests.models.test_encoder import batch_of, drawn, small

TEXTS = ["a cat", "the cat sat on the mat", "mat", "a dog sat on a cat"]
TOKENIZER = kinds.wordpiece(iter(TEXTS), vocab_size=60, min_frequency=1)
POOLED = dict(transform="tanh")


def trained(head=HeadConfig(), labels=(), **options):
  model = small(vocab_size=TOKENIZER.vocab_size, num_layers=2, position=Learned(32), head=head,
                mlm=options.pop("mlm", False))
  return Trained(model, drawn(model, batch_of((1, 2))), TOKENIZER, labels, max_length=32,
                 batch_size=3, **options)


def outputs(t, encoding, method="predict"):
  """For one text alone, without padding."""
  batch = {**batch_of(encoding.ids, length=len(encoding.ids)), "text_types": encoding.types[None]}
  return np.asarray(t.model.apply({"params": t.params}, batch, method=method)[0], np.float64)


def softmax(x):
  p = np.exp(x - x.max())
  return p / p.sum()


def encode(*args, **kw):
  return TOKENIZER.encode_texts(*args, max_length=32, **kw)


def test_classes_of_texts_and_of_pairs():
  t = trained(HeadConfig(task="classes", outputs=3, **POOLED), ("x", "y", "z"))
  for second in (None, TEXTS[::-1]):
    inputs = [{"text": a} | ({"second": b} if second else {})
              for a, b in zip(TEXTS, second or TEXTS)]
    for found, e in zip(predict(t, inputs), encode(TEXTS, second), strict=True):
      p = softmax(outputs(t, e)[0])
      assert found["label"] == "xyz"[p.argmax()]
      np.testing.assert_allclose(list(found["scores"].values()), p, atol=1e-5)


@pytest.mark.parametrize("threshold", [0.5, 0.3, 0.9])
def test_labels_are_those_whose_probability_is_large_enough(threshold):
  head = HeadConfig(task="multi_label", outputs=3, threshold=threshold, **POOLED)
  t = trained(head, ("x", "y", "z"))
  sizes = set()
  for found, e in zip(predict(t, [{"text": x} for x in TEXTS]), encode(TEXTS), strict=True):
    p = 1 / (1 + np.exp(-outputs(t, e)[0]))
    assert found["labels"] == [name for name, x in zip("xyz", p) if x >= threshold]
    np.testing.assert_allclose(list(found["scores"].values()), p, atol=1e-5)
    sizes.add(len(found["labels"]))
  classify = TextClassifier(t.model, t.params, TOKENIZER, t.labels)
  assert [x._asdict()["labels"] for x in classify(TEXTS)] == [
      x["labels"] for x in predict(t, [{"text": x} for x in TEXTS])]
  assert min(sizes) < 3 if threshold > 0.5 else max(sizes) > 0


def test_numbers():
  t = trained(HeadConfig(task="classes", outputs=1))
  for found, e in zip(predict(t, [{"text": x} for x in TEXTS]), encode(TEXTS), strict=True):
    assert found["value"] == pytest.approx(outputs(t, e)[0, 0], abs=1e-4)


def test_embeddings_of_the_head_or_the_mean():
  t = trained(HeadConfig(task="embedding", **POOLED))
  for found, e in zip(predict(t, [{"text": x} for x in TEXTS]), encode(TEXTS), strict=True):
    np.testing.assert_allclose(found["embedding"], outputs(t, e)[0], atol=1e-5)
  t = trained()
  for found, e in zip(predict(t, [{"text": x} for x in TEXTS]), encode(TEXTS), strict=True):
    mean = outputs(t, e, "__call__").mean(0)
    np.testing.assert_allclose(found["embedding"], mean / np.linalg.norm(mean), atol=1e-5)


def test_a_vector_of_every_token():
  t = trained(HeadConfig(task="token_embeddings", pool="none", projection=3))
  for found, e in zip(predict(t, [{"text": x} for x in TEXTS]), encode(TEXTS), strict=True):
    assert found["tokens"] == TOKENIZER.tokens(e.ids) and len(found["embeddings"]) == len(e.ids)
    np.testing.assert_allclose(found["embeddings"], outputs(t, e), atol=1e-5)


def test_a_tag_for_every_word_and_none_for_what_is_cut_off(monkeypatch):
  t = trained(HeadConfig(task="tags", outputs=2, pool="none"), ("O", "B-x"))
  words = [["the", "dogat", "sat"], ["a"], ["dog"] * 40]
  found = predict(t, [{"words": w} for w in words])
  for w, f, e in zip(words, found, encode(words, words=True), strict=True):
    scores = outputs(t, e)
    first = [int(np.flatnonzero(e.word == i)[0]) if i in e.word else None for i in range(len(w))]
    assert f == {"words": w, "tags": [
        None if place is None else ("O", "B-x")[scores[place].argmax()] for place in first]}
  assert found[2]["tags"][-1] is None and found[2]["tags"][0] is not None
  # Were only the first token of each word "B-x", all words were.
  encoded = encode(words[:1], words=True)
  assert (np.bincount(encoded[0].word[encoded[0].word >= 0]) > 1).any()
  of_first = [np.eye(2)[(np.diff(e.word, prepend=-1) != 0).astype(int)] for e in encoded]
  monkeypatch.setattr(type(t), "run", lambda self, examples: of_first)
  assert predict(t, [{"words": words[0]}])[0]["tags"] == ["B-x"] * 3


def test_answers_are_pieces_of_the_context():
  t = trained(HeadConfig(task="span", pool="none"))
  context = " ".join(["the cat sat on the mat"] * 8)
  found = predict(t, [{"question": "a dog", "context": context},
                      {"question": "cat", "context": TEXTS[1]}])
  for f, c in zip(found, (context, TEXTS[1])):
    assert f["answer"] == f["n_best"][0]["text"]
    assert all(c[a["start"]:a["end"]] == a["text"] for a in f["n_best"])
    scores = [a["score"] for a in f["n_best"]]
    assert scores == sorted(scores, reverse=True)
  # One window: the best of all spans, tried one by one.
  e, = encode(["cat"], [TEXTS[1]])
  logits, inside = outputs(t, e), np.flatnonzero(e.text == 1)
  best = max((logits[i, 0] + logits[j, 1], i, j) for i in inside for j in inside if j >= i)
  assert found[1]["answer"] == TEXTS[1][e.offsets[best[1], 0]:e.offsets[best[2], 1]]
  assert found[1]["no_answer_score"] == pytest.approx(logits[0].sum(), abs=1e-4)
  # None answers always; else it is held against the difference, as the evaluation does.
  difference = found[1]["no_answer_score"] - found[1]["n_best"][0]["score"]
  for threshold, answer in ((difference + 0.01, found[1]["answer"]), (difference - 0.01, "")):
    again, = predict(t._replace(no_answer=threshold), [{"question": "cat", "context": TEXTS[1]}])
    assert again["answer"] == answer
    assert again["n_best"][0]["text"] == found[1]["answer"]


def test_choices():
  t = trained(HeadConfig(task="choice", **POOLED))
  inputs = [{"prompt": "a cat", "choices": ["sat", "on the mat", "dog"]},
            {"prompt": "mat", "choices": ["a", "the dog"]}]
  for x, found in zip(inputs, predict(t, inputs), strict=True):
    pairs = encode([x["prompt"]] * len(x["choices"]), x["choices"])
    p = softmax(np.array([outputs(t, e)[0, 0] for e in pairs]))
    assert found["choice"] == p.argmax()
    np.testing.assert_allclose(found["scores"], p, atol=1e-5)


def test_the_order_of_two_texts():
  t = trained(HeadConfig(task="next_sentence", **POOLED))
  found, = predict(t, [{"text": "a cat", "second": "sat"}])
  e, = encode(["a cat"], ["sat"])
  assert found["in_order"] == pytest.approx(softmax(outputs(t, e)[0])[0], abs=1e-5)


def test_replaced_tokens():
  t = trained(HeadConfig(task="replaced", pool="none", transform="gelu"))
  inputs = [{"text": TEXTS[1], "second": TEXTS[0]}, {"text": TEXTS[2], "second": TEXTS[2]}]
  encodings = encode([TEXTS[1], TEXTS[2]], [TEXTS[0], TEXTS[2]])
  for found, e in zip(predict(t, inputs), encodings, strict=True):
    assert found["tokens"] == TOKENIZER.tokens(e.ids)
    np.testing.assert_allclose(found["replaced"], 1 / (1 + np.exp(-outputs(t, e)[:, 0])), atol=1e-5)


def masking(tmp_path, head=HeadConfig()):
  """A model of masked tokens, and a vocab.txt of BERT's form, which has a mask."""
  (tmp_path / "vocab.txt").write_text("\n".join(
      ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "cat", "sat", "dog", "##s"]) + "\n")
  tokenizer = read_tokenizer(tmp_path / "vocab.txt")
  model = small(vocab_size=tokenizer.vocab_size, num_layers=1, position=Learned(32), mlm=True,
                head=head)
  return Trained(model, drawn(model, batch_of((1, 2))), tokenizer, ())


def test_texts_that_the_task_does_not_take_have_masks(tmp_path):
  """A BERT of pairs has two heads: a text alone is for that of masked tokens."""
  t = masking(tmp_path, HeadConfig(task="next_sentence", **POOLED))
  pair = {"text": "a [MASK] sat", "second": "a dog"}
  alone, = predict(t, [{"text": "a [MASK] sat"}])
  assert len(alone["masks"]) == 1 and len(alone["masks"][0]) == tasks.TOP
  assert predict(t, [pair])[0].keys() == {"in_order"}
  assert predict(t, [pair], "mlm")[0].keys() == {"masks"}
  with pytest.raises(DataError, match="input 2 has no 'second', which others have"):
    predict(t, [pair, {"text": "a [MASK]"}])


def test_masked_tokens(tmp_path):
  t = masking(tmp_path)
  model, tokenizer = t.model, t.tokenizer
  found, none = predict(t, [{"text": "a [MASK] sat [MASK]"}, {"text": "a cat"}])
  ids = [2, 5, 4, 7, 4, 3]
  hidden = model.apply({"params": t.params}, batch_of(ids, length=6))
  logits = np.asarray(model.apply({"params": t.params}, hidden, method="mlm_logits"))[0]
  assert none == {"masks": []}
  for place, mask in zip((2, 4), found["masks"], strict=True):
    p = softmax(logits[place])
    best = np.argsort(-p)[:tasks.TOP]
    assert list(mask) == tokenizer.tokens(best)
    np.testing.assert_allclose(list(mask.values()), p[best], atol=1e-5)


@pytest.mark.parametrize("head, inputs, message", [
    (HeadConfig(task="classes", outputs=2), [{"text": "a"}, {"txt": "b"}],
     "input 2: a model whose head is for 'classes' needs 'text', a text; the input has txt"),
    (HeadConfig(task="classes", outputs=2), [{"text": "a", "second": "b"}, {"text": "b"}],
     "input 2 has no 'second', which others have"),
    (HeadConfig(task="tags", outputs=2, pool="none"), [{"words": "a b"}],
     "input 1: a model whose head is for 'tags' needs 'words', a list of texts; the input has"
     " words='a b'"),
    (HeadConfig(task="next_sentence"), [{"text": "a"}],
     "input 1: a model whose head is for 'next_sentence' needs 'second', a text; the input has"
     " text"),
])
def test_what_an_input_lacks(head, inputs, message):
  with pytest.raises(DataError) as e:
    predict(trained(head), inputs)
  assert str(e.value) == message


def test_masks_need_a_tokenizer_that_has_one():
  with pytest.raises(ConfigError, match="its tokenizer has no mask"):
    predict(trained(mlm=True), [{"text": "a"}])


def test_no_inputs():
  assert predict(trained(HeadConfig(task="choice")), []) == []


def test_lines_and_objects_become_inputs(tmp_path):
  (tmp_path / "a.txt").write_text("one text\na pair\tof texts\n")
  with command("predict") as module:
    read_inputs = module.plain_inputs
  read = lambda name, by_word=False: read_inputs(str(tmp_path / name), (), by_word)
  assert read("a.txt") == [{"text": "one text"}, {"text": "a pair", "second": "of texts"}]
  assert read("a.txt", True) == [{"words": ["one", "text"]},
                                 {"words": ["a", "pair", "of", "texts"]}]
  rows = [{"question": "q", "context": "c\tc"}, {"question": "ü", "context": "d"}]
  (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
  assert read("b.jsonl") == rows


def test_every_task_of_a_head_has_predictions():
  assert tasks.HEADS.keys() == TASKS.keys() | {"mlm"}
