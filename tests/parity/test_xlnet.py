"""XLNet against its classes in `transformers`: hidden states of both streams, heads, and files."""

import jax
import numpy as np
import pytest
import safetensors.numpy

from jtx.api import Classifier
from jtx.data.tokenizers.kinds import unigram
from jtx.objectives.plm import seen_in_order
from jtx.saved.pretrained import load_pretrained, save_pretrained

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed: make test-parity installs it")
transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: see make test-parity")
from tests.parity.test_encoders import (  # noqa: E402
    LENGTHS, MASK, T, TOKENS, TOLERANCE, TYPES, VOCAB, redraw, saved)

SIZES = dict(vocab_size=VOCAB, d_model=24, n_layer=3, n_head=3, d_inner=40, pad_token_id=1)
B = len(LENGTHS)
CLASSES = [(name, {}) for name in (
    "Model", "LMHeadModel", "ForSequenceClassification", "ForTokenClassification",
    "ForQuestionAnsweringSimple", "ForMultipleChoice")] + [
        ("Model", dict(clamp_len=3, ff_activation="relu", layer_norm_eps=1e-3))]


def make_peer(head, **extra):
  config = transformers.XLNetConfig(**SIZES | extra)
  config.num_labels = 3 if head in ("ForSequenceClassification", "ForTokenClassification") else 2
  return redraw(getattr(transformers, f"XLNet{head}")(config).eval())


def pad_left(x):
  """Rows with their real tokens at the end, as XLNet has them."""
  return np.stack([np.roll(row, T - n) for row, n in zip(x, LENGTHS)])


def call(peer, **inputs):
  with torch.no_grad():
    return peer(**{k: torch.from_numpy(np.array(v)) for k, v in inputs.items()})


def peer_outputs(peer):
  """Hidden states of all layers and the head's outputs, of every real token or row."""
  inputs = dict(input_ids=pad_left(TOKENS).astype(int), token_type_ids=pad_left(TYPES).astype(int),
                attention_mask=pad_left(MASK).astype(np.float32))
  if type(peer).__name__.endswith("MultipleChoice"):
    inputs = {k: v.reshape(2, 2, T) for k, v in inputs.items()}
  out = call(peer, **inputs, output_hidden_states=np.array(True), use_mems=np.array(False))
  real = pad_left(MASK)
  hidden = np.stack([h.numpy().reshape(B, T, -1) for h in out.hidden_states[1:]])
  result = {"hidden": hidden[:, real]}
  if "start_logits" in out:
    result["head"] = np.stack([out.start_logits.numpy(), out.end_logits.numpy()], -1)[real]
  elif "logits" in out:
    logits = out.logits.numpy()
    logits = logits.reshape(-1, 1) if logits.shape == (2, 2) else logits
    result["head"] = logits[real] if logits.shape[:2] == (B, T) else logits
  return result


def batch_of(tokens, mask, types):
  positions = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
  return {"text": tokens, "text_segment_ids": mask.astype(np.int32), "text_positions": positions,
          "text_types": types}


BATCH = batch_of(TOKENS, MASK, TYPES)


def outputs(model, params):
  def everything(m, batch):
    states = m.hidden_states(batch)
    result = {"hidden": states[1:]}
    if m.plm:
      result["head"] = m.plm_logits(states[-1])
    elif m.head.task != "none":
      result["head"] = m.outputs(states[-1], batch)
    return result

  out = jax.jit(lambda p: model.apply({"params": p}, BATCH, method=everything))(params)
  out = {k: np.asarray(v) for k, v in out.items()}
  out["hidden"] = out["hidden"][:, MASK]
  if "head" in out:
    out["head"] = out["head"][:, 0] if out["head"].shape[1] == 1 else out["head"][MASK]
  return out


def assert_close(ours, theirs):
  assert ours.shape == theirs.shape
  assert abs(np.asarray(ours) - theirs).max() < TOLERANCE * abs(theirs).max()


@pytest.mark.parametrize("head, extra", CLASSES, ids=str)
def test_outputs_and_files_are_those_of_transformers(head, extra, tmp_path):
  peer = make_peer(head, **extra)
  model, params = load_pretrained(saved(peer, tmp_path / "theirs"), dtype="float32")
  theirs = peer_outputs(peer)
  ours = outputs(model, params)
  assert ours.keys() == theirs.keys()
  for key in theirs:
    assert_close(ours[key], theirs[key])
  save_pretrained(str(tmp_path / "ours"), model, params)
  a, b = (safetensors.numpy.load_file(tmp_path / d / "model.safetensors")
          for d in ("theirs", "ours"))
  assert a.keys() == b.keys()
  for key in a:
    assert a[key].shape == b[key].shape and a[key].tobytes() == b[key].tobytes(), key
  again, info = type(peer).from_pretrained(tmp_path / "ours", output_loading_info=True)
  assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys"))
  for key, value in peer_outputs(again.eval()).items():
    np.testing.assert_array_equal(value, theirs[key])


@pytest.mark.parametrize("length", [30, 7])
def test_the_memory_is_that_of_transformers(length, tmp_path):
  """Three stretches of a text; the last is predicted in an order, given the memory of the first."""
  peer = make_peer("LMHeadModel", mem_len=length)
  model, params = load_pretrained(saved(peer, tmp_path / "theirs"), dtype="float32")
  random = np.random.default_rng(2)
  order = np.stack([random.permutation(T) for _ in range(B)])
  seen = np.asarray(seen_in_order(order, order >= 0, T))

  @jax.jit
  def run(params):
    memories, more = [], {}
    for start in range(2):
      batch = batch_of(np.roll(TOKENS, start, 1), np.ones_like(MASK), TYPES) | more
      _, memory = model.apply({"params": params}, batch, length, method="remember")
      more = {"text_memory": memory}
      memories.append(memory)
    batch = batch_of(TOKENS, np.ones_like(MASK), TYPES) | more | {"text_pairs": seen}
    return memories, model.apply({"params": params}, batch, order, method="predicted")

  memories, scores = run(params)
  mems, same = {}, dict(token_type_ids=TYPES.astype(int))
  for start, memory in enumerate(memories):
    out = call(peer, input_ids=np.roll(TOKENS, start, 1).astype(int), **same, **mems)
    mems = {"mems": np.stack([m.numpy() for m in out.mems])}
    assert_close(memory, mems["mems"].transpose(2, 0, 1, 3))
  out = call(peer, input_ids=TOKENS.astype(int), **same, **mems,
             perm_mask=1 - seen.astype(np.float32),
             target_mapping=np.eye(T, dtype=np.float32)[order])
  assert_close(scores, out.logits.numpy())


def test_the_query_stream_is_that_of_transformers(tmp_path):
  """With an order of prediction a row, as `perm_mask` and `target_mapping` say it."""
  peer = make_peer("LMHeadModel")
  model, params = load_pretrained(saved(peer, tmp_path / "theirs"), dtype="float32")
  random = np.random.default_rng(1)
  at = np.stack([random.permutation(T - 1)[:4] for _ in range(B)])
  seen = random.random((B, T, T)) < 0.5
  seen[:, :, -1] = True  # else a query may see nothing: theirs then sees all alike, and ours none
  seen &= ~np.eye(T, dtype=bool)
  batch = batch_of(TOKENS, np.ones_like(MASK), TYPES) | {"text_pairs": seen}
  run = jax.jit(lambda p: model.apply({"params": p}, batch, at, method="predicted"))
  out = call(peer, input_ids=TOKENS.astype(int), token_type_ids=TYPES.astype(int),
             perm_mask=1 - seen.astype(np.float32),
             target_mapping=np.eye(T, dtype=np.float32)[at])
  assert_close(run(params), out.logits.numpy())


def test_a_folder_with_a_tokenizer_of_ours_answers_alike(tmp_path):
  """Texts of several lengths, alone and in pairs, whose types count and whose last token does."""
  texts = ["the cat sat on the mat", "a dog", "the dog sat"]
  tokenizer = unigram(iter(texts * 3), vocab_size=30)
  model, params = load_pretrained(saved(
      make_peer("ForSequenceClassification", vocab_size=tokenizer.vocab_size), tmp_path / "peer"))
  path = str(tmp_path / "ours")
  save_pretrained(path, model, params, tokenizer, labels=("a", "b", "c"))
  peer = transformers.AutoModelForSequenceClassification.from_pretrained(path).eval()
  theirs = transformers.AutoTokenizer.from_pretrained(path)
  answer = Classifier(path)
  for second in (None, 3 * [texts[1]]):
    inputs = theirs(texts, second, padding=True, return_tensors="pt")
    with torch.no_grad():
      scores = peer(**inputs).logits.softmax(-1).numpy()
    ours = [list(p.scores.values()) for p in answer(texts, second)]
    np.testing.assert_allclose(ours, scores, atol=1e-5)
