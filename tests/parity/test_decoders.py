"""Decoder-only models against their classes in `transformers`, through files in both directions."""

import itertools
import json

import jax
import numpy as np
import pytest
import safetensors.numpy

from jtx.interop import huggingface, tables
from jtx.interop.trunks import param_shapes
from jtx.saved.pretrained import load_pretrained, save_pretrained

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed: make test-parity installs it")
transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: see make test-parity")

TOLERANCE = 5e-6  # of the largest value
VOCAB, T, PAD = 61, 11, 1
LENGTHS = (11, 7, 4, 9)
IDS = dict(vocab_size=VOCAB, pad_token_id=PAD, bos_token_id=2, eos_token_id=3)
GPT = IDS | dict(n_positions=16, n_embd=24, n_layer=3, n_head=3)
LLAMA = IDS | dict(hidden_size=24, intermediate_size=20, num_hidden_layers=3, num_attention_heads=4,
                   num_key_value_heads=2)
ONE = dict(num_key_value_heads=1, num_hidden_layers=1, rms_norm_eps=1e-3)
WIDE = dict(head_dim=10, num_key_value_heads=4, hidden_size=20, rope_theta=70.0)
LLAMA3 = dict(rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=16)
YARN = dict(rope_type="yarn", rope_theta=100.0, factor=4.0, original_max_position_embeddings=16)
LINEAR = dict(rope_type="linear", rope_theta=100.0, factor=3.0)
TYPES = ["sliding_attention", "sliding_attention", "full_attention"]
QWEN = LLAMA | dict(layer_types=TYPES, use_sliding_window=True, sliding_window=3)
GEMMA = LLAMA | dict(head_dim=8)
GEMMA3 = GEMMA | dict(sliding_window=4, final_logit_softcapping=8.0)
GEMMA2 = GEMMA3 | dict(attn_logit_softcapping=5.0)
NEOX = IDS | dict(hidden_size=32, intermediate_size=20, num_hidden_layers=3, num_attention_heads=4,
                  rope_parameters=dict(LINEAR, partial_rotary_factor=0.5))
OPT = IDS | dict(hidden_size=24, num_hidden_layers=3, num_attention_heads=4, ffn_dim=20,
                 max_position_embeddings=16, word_embed_proj_dim=24)
BLOOM = IDS | dict(hidden_size=24, n_layer=3, n_head=4)
FALCON = IDS | dict(hidden_size=24, num_hidden_layers=3, num_attention_heads=4, ffn_hidden_size=20,
                    num_kv_heads=2)
XGLM = IDS | dict(d_model=24, num_layers=3, attention_heads=4, ffn_dim=20)
EAGER = dict(attn_implementation="eager")  # others leave soft caps out
# Three sizes each.
CONFIGS = {
    "OpenAIGPT": [GPT, GPT | dict(n_layer=1, n_head=4, afn="relu", layer_norm_epsilon=1e-3),
                  GPT | dict(n_embd=20, n_head=1, n_positions=11, afn="silu")],
    "GPT2": [GPT, GPT | dict(n_layer=1, n_head=4, n_inner=7, activation_function="relu"),
             GPT | dict(n_embd=20, n_head=1, n_positions=11, layer_norm_epsilon=1e-3)],
    "Llama": [LLAMA | dict(rope_parameters=LLAMA3),
              LLAMA | ONE | dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
              LLAMA | WIDE | dict(rope_parameters=YARN, hidden_act="gelu")],
    "Mistral": [LLAMA | dict(sliding_window=4), LLAMA | ONE | dict(sliding_window=2),
                LLAMA | WIDE | dict(sliding_window=None, tie_word_embeddings=True)],
    "Mixtral": [LLAMA | dict(num_local_experts=5),
                LLAMA | ONE | dict(num_local_experts=2, num_experts_per_tok=1, sliding_window=4),
                LLAMA | WIDE | dict(num_local_experts=3, num_experts_per_tok=3,
                                    rope_theta=1e6, tie_word_embeddings=True)],
    "Qwen2": [QWEN, LLAMA | ONE, QWEN | dict(
        num_key_value_heads=4, layer_types=None, max_window_layers=1, tie_word_embeddings=True)],
    "Qwen3": [QWEN, LLAMA | ONE | dict(attention_bias=True, head_dim=4),
              LLAMA | WIDE | dict(tie_word_embeddings=True, rope_parameters=LINEAR)],
    "Gemma": [GEMMA, GEMMA | ONE | dict(tie_word_embeddings=False), GEMMA | WIDE],
    "Gemma2": [GEMMA2, GEMMA2 | ONE | dict(query_pre_attn_scalar=7),
               GEMMA2 | WIDE | dict(layer_types=TYPES, final_logit_softcapping=None)],
    "Gemma3Text": [GEMMA3 | dict(layer_types=TYPES, rope_parameters={
                       "full_attention": LINEAR, "sliding_attention": {
                           "rope_type": "default", "rope_theta": 30.0}}),
                   GEMMA | ONE | dict(sliding_window=3),
                   GEMMA | WIDE | dict(sliding_window=5, sliding_window_pattern=3,
                                       query_pre_attn_scalar=7)],
    "Olmo2": [LLAMA, LLAMA | ONE | dict(attention_bias=True),
              LLAMA | dict(num_key_value_heads=4, hidden_size=40, tie_word_embeddings=True)],
    "GPTNeoX": [NEOX, NEOX | dict(num_hidden_layers=1, use_parallel_residual=False,
                                  attention_bias=False, rope_parameters=None),
                NEOX | dict(num_attention_heads=1, hidden_size=20, tie_word_embeddings=True,
                            hidden_act="relu", layer_norm_eps=1e-3)],
    "OPT": [OPT, OPT | dict(num_hidden_layers=1, enable_bias=False, activation_function="gelu"),
            OPT | dict(word_embed_proj_dim=8, do_layer_norm_before=False)],
    "Bloom": [BLOOM, BLOOM | dict(n_layer=1, n_head=3), BLOOM | dict(
        n_head=6, layer_norm_epsilon=1e-3)],
    "Falcon": [FALCON | dict(new_decoder_architecture=True),
               FALCON | dict(num_hidden_layers=1, bias=True),
               FALCON | dict(multi_query=False, parallel_attn=False, num_kv_heads=4,
                             tie_word_embeddings=False)],
    "XGLM": [XGLM, XGLM | dict(num_layers=1, scale_embedding=False),
             XGLM | dict(d_model=20, attention_heads=1, activation_function="relu")],
}
LM = {"OpenAIGPT": "LMHeadModel", "GPT2": "LMHeadModel"}  # others have ForCausalLM
CASES = [(family, case, "lm") for family in CONFIGS for case in range(3)]
CASES += [(family, 0, "classes") for family in CONFIGS if family != "XGLM"]
CASES += [(family, 1, "Model") for family in CONFIGS]
CASES += [(family, 0, "DoubleHeadsModel") for family in LM]


def make_peer(family, case, head):
  """A model of `transformers`, every tensor of it redrawn."""
  config = getattr(transformers, f"{family}Config")(**CONFIGS[family][case], **EAGER)
  config.num_labels = 3
  if head == "lm":
    name = (family.removesuffix("Text") if family == "Gemma3Text" else family) + (
        LM[family] if family in LM else "ForCausalLM")
  else:
    name = family + {"classes": "ForSequenceClassification"}.get(head, head)
  return redraw(getattr(transformers, name)(config).eval())


def redraw(peer, std=0.4):
  generator = torch.Generator().manual_seed(0)
  with torch.no_grad():
    for p in peer.parameters():
      p.copy_(torch.randn(p.shape, generator=generator) * std)
  return peer


TOKENS = np.random.default_rng(0).integers(4, VOCAB, (len(LENGTHS), T)).astype(np.int32)
MASK = np.arange(T) < np.array(LENGTHS)[:, None]
BATCH = {"text": np.where(MASK, TOKENS, PAD), "text_segment_ids": MASK.astype(np.int32),
         "text_positions": np.broadcast_to(np.arange(T, dtype=np.int32), TOKENS.shape)}


def peer_outputs(peer, **more):
  """Hidden states of the layers, and what heads there are, of every real token or row."""
  inputs = {"input_ids": BATCH["text"], "attention_mask": MASK, **more}
  if type(peer).__name__.endswith("DoubleHeadsModel"):
    inputs = {"input_ids": inputs["input_ids"].reshape(2, 2, T)}  # GPT-1 takes no mask of choices
    inputs["mc_token_ids"] = np.array(LENGTHS).reshape(2, 2) - 1
  inputs = {k: torch.from_numpy(np.array(v)).long() for k, v in inputs.items()}
  with torch.no_grad():
    out = peer(**inputs, output_hidden_states=True)
  hidden = [h.numpy().reshape(*TOKENS.shape, -1)[MASK] for h in out.hidden_states[1:-1]]
  result = {"hidden": np.stack(hidden)} if hidden else {}
  if "last_hidden_state" in out:
    result["last"] = out.last_hidden_state.numpy()[MASK]
  if "mc_logits" in out:
    result["head"] = out.mc_logits.numpy().reshape(-1, 1)
  if "logits" in out:
    logits = out.logits.numpy()
    if logits.shape[-1] == VOCAB:
      result["lm"] = logits.reshape(*TOKENS.shape, -1)[MASK]
    else:
      result["head"] = logits
  return result


def jtx_outputs(model, params, batch=BATCH):
  """The same values."""
  @jax.jit
  def run(params, batch):
    def everything(m, batch):
      states = m.hidden_states(batch)
      result = {"hidden": states[1:-1], "last": states[-1]}
      if m.lm:
        result["lm"] = m.logits(states[-1])
      if m.head.task != "none":
        result["head"] = m.outputs(states[-1], batch)
      return result
    return model.apply({"params": params}, batch, method=everything)

  out = {k: np.asarray(v) for k, v in run(params, batch).items()}
  mask = np.asarray(batch["text_segment_ids"]) > 0
  result = {"hidden": out["hidden"][:, mask]} if len(out["hidden"]) else {}
  result |= {k: out[k][mask] for k in ("last", "lm") if k in out}
  if "head" in out:
    result["head"] = out["head"][:, 0]
  if "lm" in result or "head" in result:
    del result["last"]
  return result


def error(ours, theirs):
  """The largest difference, relative to the largest value of each output."""
  assert ours.keys() == theirs.keys()
  assert all(ours[k].shape == theirs[k].shape for k in theirs)
  return max(abs(ours[k] - theirs[k]).max() / abs(theirs[k]).max() for k in theirs)


def saved(peer, path, **options):
  peer.save_pretrained(path, **options)
  return str(path)


def same_files(a, b):
  a, b = (safetensors.numpy.load_file(f"{d}/model.safetensors") for d in (a, b))
  assert a.keys() == b.keys()
  for key in a:
    assert a[key].dtype == b[key].dtype and a[key].shape == b[key].shape, key
    assert a[key].tobytes() == b[key].tobytes(), key


@pytest.mark.parametrize("family, case, head", CASES)
def test_outputs_and_files_are_those_of_transformers(family, case, head, tmp_path):
  """Hidden states of all layers and the heads' outputs; then the same bytes back."""
  peer = make_peer(family, case, head)
  directory = saved(peer, tmp_path / "theirs")
  model, params = load_pretrained(directory, dtype="float32")
  theirs = peer_outputs(peer)
  assert error(jtx_outputs(model, params), theirs) < TOLERANCE
  shapes = param_shapes(model).values()
  assert sum(int(np.prod(s)) for s in shapes) == sum(p.numel() for p in peer.parameters())

  ours = str(tmp_path / "ours")
  save_pretrained(ours, model, params, like=directory)
  if (family, head) != ("OpenAIGPT", "DoubleHeadsModel"):  # has the other of two tied names
    same_files(directory, ours)
  again, info = type(peer).from_pretrained(ours, output_loading_info=True, **EAGER)
  assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys"))
  again.config.pad_token_id = PAD
  assert error(peer_outputs(again.eval()), theirs) < TOLERANCE / 5


def own_tensors(directory, model):
  """The tensors of a model's files, by the entries of its family."""
  source = huggingface.open_source(directory)
  shapes, names = param_shapes(model), source.family.names
  files = huggingface.Tensors(directory, names, huggingface.ties_embeddings(source))
  wanted = list(tables.entries(names.rows_for(model.heads), model.stacks, shapes))
  return shapes, wanted, {e.name: files.get(e.name) for e in wanted}


def fitting(directory, model, batch, theirs, mask):
  """The tensors of a folder, and whether the logits of some tensors are those that are expected."""
  shapes, wanted, tensors = own_tensors(directory, model)
  run = jax.jit(lambda p: model.apply(
      {"params": p}, model.apply({"params": p}, batch), method="logits"))

  def fits(tensors):
    params = {}
    for entry in wanted:
      tables.read(entry, tensors[entry.name], shapes, params)
    params = huggingface.unflatten_dict(params, sep="/")
    return abs(np.asarray(run(params))[mask] - theirs).max() < TOLERANCE * abs(theirs).max()

  return tensors, fits


@pytest.mark.parametrize("family", CONFIGS)
def test_a_changed_tensor_shows(family, tmp_path):
  """One that a table forgot, or mixed up with another, would not pass unnoticed."""
  peer = make_peer(family, 0, "lm")
  directory = saved(peer, tmp_path / "theirs")
  model, params = load_pretrained(directory, dtype="float32")
  theirs = peer_outputs(peer)["lm"]
  tensors, fits = fitting(directory, model, BATCH, theirs, MASK)
  assert fits(tensors)
  # A key's bias adds the same to all scores of a query where positions do not turn it; the output
  # biases of parallel sub-layers are added to one another.
  no_effect = {n for n in tensors if n.endswith("k_proj.bias")} if family in ("OPT", "XGLM") else {}
  summed = ("attention.dense.bias", "mlp.dense_4h_to_h.bias") if family == "GPTNeoX" else ()
  first = {n for n in tensors if ".0." in n or not any(c.isdigit() for c in n)}
  for zeroed in first - set(no_effect):
    assert not fits({**tensors, zeroed: np.zeros_like(tensors[zeroed])}), zeroed
  for a, b in itertools.combinations(sorted(first), 2):
    if tensors[a].shape == tensors[b].shape and not {a, b} <= set(no_effect) and not (
        a.endswith(summed) and b.endswith(summed)):
      assert not fits({**tensors, a: tensors[b], b: tensors[a]}), (a, b)


@pytest.mark.parametrize("gap", [8190, 100_000])
def test_rope_of_llama3_at_far_positions(gap, tmp_path):
  """Three tokens, and the others `gap` places behind them.

  Very far off the peer's frequencies, computed in float32, are what differs: it is given ours.
  """
  rope = dict(LLAMA3, rope_theta=500_000.0, original_max_position_embeddings=8192)
  config = transformers.LlamaConfig(**LLAMA | dict(head_dim=64), rope_parameters=rope, **EAGER)
  peer = redraw(transformers.LlamaForCausalLM(config).eval(), 0.2)
  model, params = load_pretrained(saved(peer, tmp_path / "theirs"), dtype="float32")
  positions = np.arange(T) + gap * (np.arange(T) >= 3)
  positions = np.broadcast_to(positions.astype(np.int32), TOKENS.shape)
  ours = jtx_outputs(model, params, {**BATCH, "text_positions": positions})
  frequencies = model.stack.position.scaling.frequencies(64, 500_000.0)
  theirs = peer.model.rotary_emb.inv_freq
  np.testing.assert_allclose(theirs, frequencies, rtol=5e-7)
  if gap > 10_000:
    theirs.copy_(torch.from_numpy(frequencies.astype(np.float32)))
  assert error(ours, peer_outputs(peer, position_ids=positions)) < TOLERANCE


@pytest.mark.parametrize("family, edits", [
    ("Gemma", {"hidden_act": "gelu", "hidden_activation": "relu"}),
    ("Gemma2", {"hidden_act": "relu", "hidden_activation": "gelu"})])
def test_activations_of_a_gemma_are_those_of_its_generation(family, edits, tmp_path):
  directory = saved(make_peer(family, 0, "lm"), tmp_path / "theirs")
  path = tmp_path / "theirs" / "config.json"
  path.write_text(json.dumps(json.loads(path.read_text()) | edits))
  peer = getattr(transformers, f"{family}ForCausalLM").from_pretrained(directory, **EAGER).eval()
  model, params = load_pretrained(directory, dtype="float32")
  assert error(jtx_outputs(model, params), peer_outputs(peer)) < TOLERANCE
