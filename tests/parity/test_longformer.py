"""Longformer against its classes in `transformers`, below and above the window."""

import numpy as np
import pytest
import safetensors.numpy

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed: make test-parity installs it")
transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: see make test-parity")

import jax  # noqa: E402

from jtx.saved.pretrained import load_pretrained, save_pretrained  # noqa: E402

TOLERANCE = 5e-6  # of the largest value
VOCAB, SEP, PAD = 61, 2, 1
CONFIG = dict(vocab_size=VOCAB, hidden_size=24, num_hidden_layers=3, num_attention_heads=3,
              intermediate_size=40, max_position_embeddings=64, type_vocab_size=1,
              attention_window=8, pad_token_id=PAD, sep_token_id=SEP)
LENGTHS = {"below": (6, 5), "above": (41, 30)}


def make_peer(head, window):
  config = transformers.LongformerConfig(**CONFIG | {"attention_window": window})
  config.num_labels = 3 if "Classification" in head else 2
  peer = getattr(transformers, f"Longformer{head}")(config).eval()
  generator = torch.Generator().manual_seed(0)
  with torch.no_grad():
    for p in peer.parameters():
      p.copy_(torch.randn(p.shape, generator=generator) * 0.5)
  return peer


def make_batch(lengths):
  """Pairs of texts as the tokenizer joins them: <s> A </s></s> B </s>."""
  random, T = np.random.default_rng(0), max(lengths)
  tokens = random.integers(4, VOCAB, (len(lengths), T)).astype(np.int32)
  mask = np.arange(T) < np.array(lengths)[:, None]
  for row, length in enumerate(lengths):
    tokens[row, [2 - row, 3 - row, length - 1]] = SEP
  return np.where(mask, tokens, PAD), mask


def theirs(peer, tokens, mask, flags=None):
  inputs = {"input_ids": tokens, "attention_mask": mask}
  if flags is not None:
    inputs["global_attention_mask"] = flags
  if type(peer).__name__.endswith("MultipleChoice"):
    inputs = {k: v.reshape(1, *v.shape) for k, v in inputs.items()}
  with torch.no_grad():
    out = peer(**{k: torch.from_numpy(np.array(v)).long() for k, v in inputs.items()})
  if "start_logits" in out:
    return np.stack([out.start_logits.numpy(), out.end_logits.numpy()], -1)[mask]
  if "last_hidden_state" in out:
    return out.last_hidden_state.numpy()[mask]
  value = out.logits.numpy()
  return value.reshape(-1, 1) if type(peer).__name__.endswith("MultipleChoice") else (
      value[mask] if value.ndim == 3 else value)


def ours(model, params, tokens, mask, flags=None):
  batch = {"text": tokens, "text_segment_ids": mask.astype(np.int32),
           "text_positions": np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32),
                                             tokens.shape)}
  if flags is not None:
    batch["text_global"] = flags

  def outputs(m, batch):
    hidden = m(batch)
    if m.mlm:
      return m.mlm_logits(hidden)
    return hidden if m.head.task == "embedding" else m.outputs(hidden, batch)

  found = jax.jit(lambda p, b: model.apply({"params": p}, b, method=outputs))(params, batch)
  found = np.asarray(found)
  return found[mask] if found.shape[1] == tokens.shape[1] else found[:, 0]


def close(a, b):
  assert a.shape == b.shape
  return abs(a - b).max() / abs(b).max() < TOLERANCE


@pytest.mark.parametrize("head, window, length", [
    ("ForQuestionAnswering", [4, 8, 4], "above"), ("ForSequenceClassification", 8, "below"),
    *(pytest.param(head, 8, "above", marks=pytest.mark.slow) for head in (
        "Model", "ForMaskedLM", "ForTokenClassification", "ForMultipleChoice"))])
def test_outputs_and_files_are_those_of_transformers(head, window, length, tmp_path):
  """With the tokens that the class makes global, and with others; then the same bytes back."""
  peer = make_peer(head, window)
  peer.save_pretrained(tmp_path / "theirs")
  model, params = load_pretrained(str(tmp_path / "theirs"), dtype="float32")
  tokens, mask = make_batch(LENGTHS[length])
  flags = np.random.default_rng(1).random(tokens.shape) < 0.3
  for given in (None, flags):
    assert close(ours(model, params, tokens, mask, given), theirs(peer, tokens, mask, given))
  assert not close(ours(model, params, tokens, mask, ~flags), theirs(peer, tokens, mask, flags))

  save_pretrained(str(tmp_path / "ours"), model, params)
  a, b = (safetensors.numpy.load_file(tmp_path / d / "model.safetensors")
          for d in ("theirs", "ours"))
  assert a.keys() == b.keys() and all(a[k].tobytes() == b[k].tobytes() for k in a)
  again, info = type(peer).from_pretrained(tmp_path / "ours", output_loading_info=True)
  assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys"))
  assert close(theirs(again.eval(), tokens, mask), theirs(peer, tokens, mask))
