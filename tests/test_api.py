"""The classes and functions that `import jtx` gives."""

import json
import types

import numpy as np
import pytest

from configs import common
import jtx
from jtx import api
from jtx.api import Classifier, Embedder
from jtx.config import build
from jtx.data.inputs import Reader
from jtx.data.ops.registry import OPS
from jtx.data.ops.text import Lowercase
from jtx.data.tokenizers import kinds
from jtx.data.tokenizers.files import read_tokenizer, save_tokenizers
from jtx.errors import ConfigError, DataError
from jtx.figures.figure import COLUMN, PAGE
from jtx.inference import attention
from jtx.models.text_head import HeadConfig
from jtx.nn.positions import Learned
from jtx.saved import pretrained, trained
from tests.helpers import encoder, run_command
from tests.inference.test_continuations import (
    MODEL as LM, PARAMS as LM_PARAMS, TOKENIZER as LM_TOKENIZER)
from tests.inference.test_texts import TEXTS, alone
from tests.models.test_encoder import BLOCK, D, batch_of, drawn


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
  """A folder with a classifier of jtx, its tokenizer, and what it was made of."""
  tokenizer = kinds.wordpiece(iter(TEXTS), vocab_size=60, min_frequency=1)
  model = encoder(vocab_size=tokenizer.vocab_size, width=D, num_layers=2, block=BLOCK,
                  position=Learned(32),
                  head=HeadConfig(task="classes", outputs=2, transform="tanh"))
  params = drawn(model, batch_of((1, 2)))
  folder = str(tmp_path_factory.mktemp("saved") / "model")
  pretrained.save_pretrained(folder, model, params, tokenizer, labels=("no", "yes"))
  return folder, model, params, tokenizer


def test_the_classifier_of_a_folder(saved):
  folder, model, params, tokenizer = saved
  classify = Classifier(folder, max_length=32, batch_size=2)
  for texts, second in ((TEXTS[:2], None), (TEXTS[:2], TEXTS[1::-1])):
    encodings = tokenizer.encode_texts(texts, second, max_length=32)
    for found, e in zip(classify(texts, second), encodings, strict=True):
      logits = alone(model, params, {"text": e.ids, "text_types": e.types})[0]
      p = np.exp(logits) / np.exp(logits).sum()
      assert found.label == ("no", "yes")[logits.argmax()]
      np.testing.assert_allclose([found.scores["no"], found.scores["yes"]], p, atol=1e-5)
  assert classify([]) == []


class Reverse(Lowercase):
  """An op on texts whose effect no tokenizer hides."""

  def __call__(self, examples, tokenizers):
    return [{**e, **{field: backwards(e[field]) for field in self.fields}} for e in examples]


def backwards(text):
  return " ".join(reversed(text.split()))


def test_texts_are_changed_as_the_run_s_data_is(saved, monkeypatch, caplog):
  run = Reader(("tsv:t.tsv",), [Reverse(fields=("0", "1")),
                                build(OPS, common.op("encode", texts=("0", "1")))])
  texts = TEXTS[:2]
  given = list(map(backwards, texts))
  classify, embed, opened = Classifier(saved[0]), Embedder(saved[0]), api.Opened(saved[0])
  expected = classify(texts, texts[::-1]), embed(texts), opened.predict([{"text": texts[1]}])
  assert classify(given, given[::-1]) != expected[0]
  monkeypatch.setattr("jtx.saved.trained.reader", lambda saved: run)
  classify, embed, opened = Classifier(saved[0]), Embedder(saved[0]), api.Opened(saved[0])
  assert classify(given, given[::-1]) == expected[0]
  np.testing.assert_array_equal(embed(given), expected[1])
  assert opened.predict([{"text": given[1]}]) == expected[2]
  trained.warn_of_changes(api.open_saved(saved[0]))
  assert "changes texts before they become tokens (Reverse), which what is" in caplog.text


@pytest.mark.parametrize("call, message", [
    (lambda folder: Classifier(folder)(["a", 3]), "input 2 is 3, which is not a text"),
    (lambda folder: Classifier(folder)(["a"], [None]), "input 1 is None, which is not a text"),
    (lambda folder: Classifier(folder)([("a", "b"), ["c", "d"]]),
     "input 1 is ('a', 'b'), which is not a text; of pairs, give the first texts in one list, and"
     " the others in another as second="),
    (lambda folder: Embedder(folder)([float("nan")]), "input 1 is nan, which is not a text"),
    (lambda folder: Embedder(folder, batch_size=-1), "batch_size=-1: valid are whole numbers"),
    (lambda folder: Classifier(folder, max_length=2.5), "max_length=2.5: valid are whole numbers"),
])
def test_arguments_that_can_not_be(saved, call, message):
  with pytest.raises((ConfigError, DataError)) as error:
    call(saved[0])
  assert str(error.value).startswith(message)


def test_a_model_that_is_opened_is_not_loaded_again(saved):
  opened = api.Opened(saved[0], max_length=32)
  classify = Classifier(opened, max_length=16, batch_size=2)
  assert classify.params is opened.params and classify.saved is opened.saved
  assert (classify.max_length, classify.batch_size, opened.max_length) == (16, 2, 32)
  assert classify(TEXTS) == Classifier(saved[0], max_length=16, batch_size=2)(TEXTS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mean", "first"])
def test_the_embedder_of_a_folder(saved, kind):
  folder, model, params, tokenizer = saved
  vectors = Embedder(folder, pool=kind, max_length=32, batch_size=2)(TEXTS)
  assert vectors.shape == (len(TEXTS), D)
  for vector, e in zip(vectors, tokenizer.encode_texts(TEXTS, max_length=32)):
    batch = {**batch_of(e.ids, length=len(e.ids)), "text_types": e.types[None]}
    hidden = np.asarray(model.apply({"params": params}, batch)[0])
    x = hidden[0] if kind == "first" else hidden.mean(0)
    np.testing.assert_allclose(vector, x / np.linalg.norm(x), atol=1e-5)
  raw = Embedder(folder, pool=kind, normalize=False, max_length=32)(TEXTS[:1])
  assert abs(np.linalg.norm(raw[0]) - 1) > 1e-2
  assert Embedder(folder)([]).shape == (0, D)


def test_texts_are_cut_to_the_models_positions(saved):
  folder, model, *_ = saved
  long = " ".join(TEXTS * 10)
  embed = Embedder(folder)  # asks for 256 tokens, and the model has 32 positions
  assert embed.max_length == model.stack.position.limit == 32
  np.testing.assert_allclose(embed([long])[0], Embedder(folder, max_length=32)([long])[0])


def test_what_is_no_classifier_says_so(saved, tmp_path):
  _, model, params, tokenizer = saved
  params = {k: v for k, v in params.items() if k != "task_head"}
  folder = str(tmp_path / "trunk")
  bare = model.clone(head=HeadConfig())
  pretrained.save_pretrained(folder, bare, params, tokenizer, format="jtx")
  with pytest.raises(ConfigError, match="its head is for 'none', not for classes"):
    Classifier(folder)
  with pytest.raises(ConfigError, match="pool='max': valid are 'first', 'last' and 'mean'"):
    Embedder(folder, pool="max")


def test_a_tokenizer_of_another_size(saved, tmp_path):
  _, model, params, _ = saved
  other = kinds.wordpiece(iter(["xyz " * 3]), vocab_size=30, min_frequency=1)
  assert other.vocab_size != model.vocab_size
  folder = str(tmp_path / "other")
  pretrained.save_pretrained(folder, model, params, format="jtx")
  save_tokenizers({"text": other.to_json()}, folder)
  with pytest.raises(ConfigError, match=f"{other.vocab_size} tokens.*{model.vocab_size}"):
    Embedder(folder)


INPUTS = {
    "tags": [{"words": text.split()} for text in TEXTS],
    "span": [{"question": "a cat", "context": " ".join(TEXTS * 3)},
             {"question": "dog", "context": TEXTS[1]}],
    "mlm": [{"text": f"{text} [MASK]"} for text in TEXTS],
    "classes": [{"text": text, "second": "mat"} for text in TEXTS],
}
USE = {  # what the command's output becomes
    "tags": lambda d: [x._asdict() for x in jtx.Tagger(d, batch_size=2)(TEXTS)],
    "span": lambda d: [x._asdict() for x in jtx.Answerer(d)(
        *zip(*(x.values() for x in INPUTS["span"])))],
    "mlm": lambda d: [{"masks": x} for x in jtx.FillMask(d)([x["text"] for x in INPUTS["mlm"]])],
    "classes": lambda d: [x._asdict() for x in Classifier(d)(TEXTS, ["mat"] * len(TEXTS))],
}


@pytest.mark.slow
@pytest.mark.parametrize("task", USE)
def test_values_are_those_of_the_command(saved, task, tmp_path):
  _, model, _, tokenizer = saved
  # A text alone is not for the head of pairs, which a BERT has beside that of masked tokens.
  head = HeadConfig(task="next_sentence", transform="tanh") if task == "mlm" else HeadConfig(
      task=task, outputs=2, **({"transform": "tanh"} if task == "classes" else {"pool": "none"}))
  if task == "mlm":
    (tmp_path / "vocab.txt").write_text("\n".join(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(set(" ".join(TEXTS).split()))]))
    tokenizer = read_tokenizer(tmp_path / "vocab.txt")
  model = model.clone(head=head, mlm=task == "mlm", vocab_size=tokenizer.vocab_size)
  folder, lines, output = (str(tmp_path / name) for name in ("model", "in.jsonl", "out.jsonl"))
  labels = ("O", "B") if task in ("tags", "classes") else None
  pretrained.save_pretrained(folder, model, drawn(model, batch_of((1, 2))), tokenizer, "jtx",
                             labels)
  with open(lines, "w", encoding="utf-8") as f:
    f.writelines(json.dumps(x) + "\n" for x in INPUTS[task])
  run_command("predict", f"--workdir={folder}", f"--input={lines}", f"--output={output}")
  found = json.loads(json.dumps(USE[task](folder)))
  with open(output, encoding="utf-8") as f:
    for ours, theirs in zip(found, map(json.loads, f), strict=True):
      same(ours, theirs)


def same(a, b):
  """That values of JSON are equal, numbers up to the rounding of another batch."""
  assert type(a) is type(b)
  if isinstance(a, dict):
    assert a.keys() == b.keys()
    a, b = list(a.values()), list(b.values())
  if isinstance(a, list):
    assert len(a) == len(b)
    for x, y in zip(a, b):
      same(x, y)
  else:
    assert a == (pytest.approx(b, abs=1e-5) if isinstance(b, float) else b)


def test_inputs_are_lists_and_heads_fit(saved):
  folder, *_ = saved
  with pytest.raises(ConfigError, match="its head is for 'classes', not for tags; jtx.Classifier"):
    jtx.Tagger(folder)
  classify = Classifier(folder)
  with pytest.raises(DataError, match=r"inputs are lists: give \['a cat'\] for 'a cat'"):
    classify("a cat")
  with pytest.raises(DataError, match="2 inputs and 1 second ones"):
    classify(["a", "b"], ["c"])


@pytest.mark.parametrize("task, heads, images, told", [
    ("none", {"lm"}, False, "'lm', not for translations; jtx.Generator takes it"),
    ("none", {"mlm"}, False, "'mlm', not for translations; jtx.FillMask takes it"),
    ("none", set(), False, "'none', not for translations; jtx.Embedder takes it"),
    ("classes", {"classes", "lm"}, False, "'classes', not for translations; jtx.Classifier takes"),
    ("none", {"mae"}, True, "'mae', not for translations"),
])
def test_a_model_for_something_else_names_the_class_that_takes_it(
    monkeypatch, task, heads, images, told):
  model = types.SimpleNamespace(heads=frozenset(heads), head=types.SimpleNamespace(task=task))
  monkeypatch.setattr(api, "takes_images", lambda model: images)
  monkeypatch.setattr(api, "open_saved", lambda directory: types.SimpleNamespace(
      load=lambda step: (model, {})))
  with pytest.raises(ConfigError) as found:
    jtx.Translator("w")
  assert str(found.value).startswith(f"w: its head is for {told}")
  assert ("takes it" in str(found.value)) != images


def test_a_figure_of_heads_of_a_language_model(tmp_path):
  jtx.save_pretrained(str(tmp_path / "m"), LM, LM_PARAMS, LM_TOKENIZER, format="jtx")
  weights = attention.of_text(LM, LM_PARAMS, LM_TOKENIZER, "abba")
  e, = LM_TOKENIZER.encode_texts(["abba"], max_length=32)
  expected = LM.apply({"params": LM_PARAMS}, batch_of(e.ids, length=len(e.ids)),
                      method="attention_weights")["decoder"][:, 0]
  np.testing.assert_allclose(weights.values, expected, atol=1e-6)
  assert (np.triu(weights.values, 1) == 0).all() and weights.queries == LM_TOKENIZER.tokens(e.ids)
  figure = jtx.attention(str(tmp_path / "m"), "abba", layers=[1])
  assert sum(bool(axes.images and axes.get_title()) for axes in figure.axes) == expected.shape[1]


def test_a_figure_of_heads(saved):
  folder, model, params, tokenizer = saved
  text = TEXTS[1]
  weights = attention.of_text(model, params, tokenizer, text)
  e, = tokenizer.encode_texts([text], max_length=32)
  batch = {**batch_of(e.ids, length=len(e.ids)), "text_types": e.types[None]}
  expected = model.apply({"params": params}, batch, method="attention_weights")["encoder"][:, 0]
  np.testing.assert_allclose(weights.values, expected, atol=1e-6)
  assert weights.queries == weights.keys == tokenizer.tokens(e.ids)
  L, N = weights.values.shape[:2]
  maps = attention.panels(weights, [-1], [1])
  assert list(maps) == [f"layer {L}, head 1"]
  np.testing.assert_array_equal(maps[f"layer {L}, head 1"], weights.values[-1, 0])
  means = attention.panels(weights, mean=True)
  assert list(means) == [f"layer {i + 1}" for i in range(L)]
  np.testing.assert_allclose(means["layer 1"], weights.values[0].mean(0), atol=1e-7)
  with pytest.raises(ConfigError, match=f"heads: there is no 9; valid are 1 to {N}"):
    attention.panels(weights, heads=[9])
  figure = jtx.attention(folder, text)
  drawn_maps = [axes for axes in figure.axes if axes.images and axes.get_title()]
  assert len(drawn_maps) == L * N and figure.get_size_inches()[0] in (COLUMN, PAGE)
  for axes, values in zip(drawn_maps, weights.values.reshape(L * N, *weights.values.shape[2:])):
    np.testing.assert_allclose(axes.images[0].get_array(), values, atol=1e-6)
  assert drawn_maps[0].images[0].norm.vmax == pytest.approx(weights.values.max(), abs=1e-6)
  assert (figure.get_supxlabel(), figure.get_supylabel()) == ("key", "query")


def test_what_is_for_use_from_python_is_found_in_the_package():
  assert jtx.Embedder is api.Embedder and jtx.Classifier is api.Classifier
  assert all(getattr(jtx, name) is getattr(pretrained, name)
             for name in ("load_pretrained", "load_tokenizer", "save_pretrained"))
  with pytest.raises(AttributeError, match="module 'jtx' has no attribute 'load_pretraned'"):
    jtx.load_pretraned
