"""Encoders against their classes in `transformers`, through files in both directions."""

import itertools
import json

from flax.traverse_util import unflatten_dict
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from jtx.interop import configs, huggingface, tables
from jtx.interop.families import FAMILIES
from jtx.interop.trunks import param_shapes
from jtx.objectives.multi_label import MultiLabel
from jtx.saved.pretrained import load_pretrained, save_pretrained

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed: make test-parity installs it")
transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: see make test-parity")

TOLERANCE = 5e-6  # of the largest value
VOCAB, T, PAD = 61, 11, 1
LENGTHS = (11, 7, 4, 9)
BERT = dict(vocab_size=VOCAB, hidden_size=24, num_hidden_layers=3, num_attention_heads=3,
            intermediate_size=40, max_position_embeddings=16, type_vocab_size=2, pad_token_id=PAD)
MODERN = dict(vocab_size=VOCAB, hidden_size=24, num_hidden_layers=5, num_attention_heads=3,
              intermediate_size=40, local_attention=6, pad_token_id=PAD, eos_token_id=2,
              bos_token_id=3, cls_token_id=3, sep_token_id=2)
# Rows of 11 tokens are beyond the span.
DEBERTA = BERT | dict(relative_attention=True, position_biased_input=False, pos_att_type="c2p|p2c",
                      max_relative_positions=4)
CONFIGS = {
    "Bert": BERT,
    "Roberta": BERT,
    "Albert": BERT | dict(embedding_size=16, hidden_act="gelu_new"),
    "DistilBert": dict(vocab_size=VOCAB, dim=24, n_layers=3, n_heads=3, hidden_dim=40,
                       max_position_embeddings=16, pad_token_id=PAD),
    "ModernBert": MODERN,
    "Deberta": DEBERTA,
    "DebertaV2": DEBERTA | dict(
        share_att_key=True, position_buckets=4, max_relative_positions=8,
        norm_rel_ebd="layer_norm", conv_kernel_size=3, conv_act="gelu"),
    "Electra": BERT | dict(embedding_size=16),
}
T5 = dict(vocab_size=VOCAB, d_model=24, d_kv=10, d_ff=20, num_layers=3, num_heads=4,
          relative_attention_num_buckets=8, relative_attention_max_distance=10)
ALONE = {"T5": T5, "MT5": T5 | dict(feed_forward_proj="gated-gelu"),
         "UMT5": T5 | dict(feed_forward_proj="gated-gelu", num_layers=2)}  # encoders of two stacks
# Of which a few classes are enough; XLM-R and CamemBERT have RoBERTa's tensors.
KIN = {"XLMRoberta": BERT, "Camembert": BERT, "XLMRobertaXL": BERT, "NomicBert": BERT}
HEADS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification",
         "ForQuestionAnswering", "ForMultipleChoice")
CLASSES = [(family, head, {}) for family in CONFIGS for head in HEADS
           if (family, head) != ("Deberta", "ForMultipleChoice")] + [
    ("Bert", "ForPreTraining", {}),
    ("Bert", "ForNextSentencePrediction", {}),
    ("Albert", "ForPreTraining", {}),
    ("Bert", "Model", dict(hidden_act="relu", layer_norm_eps=1e-3, type_vocab_size=3)),
    ("Roberta", "ForMaskedLM", dict(type_vocab_size=1, pad_token_id=0)),
    ("XLMRoberta", "ForMaskedLM", {}),
    ("XLMRoberta", "ForSequenceClassification", dict(type_vocab_size=1)),
    ("Camembert", "ForTokenClassification", {}),
    ("XLMRobertaXL", "ForMaskedLM", {}),
    ("NomicBert", "ForMaskedLM", dict(hidden_act="gelu")),
    ("NomicBert", "ForSequenceClassification", dict(head_dim=10, classifier_dropout=0.2)),
    ("ModernBert", "ForMaskedLM", dict(attention_bias=True, mlp_bias=True, norm_bias=True,
                                       classifier_bias=True)),
    ("ModernBert", "ForSequenceClassification", dict(
        classifier_pooling="mean", classifier_bias=True, classifier_activation="relu",
        local_attention=7)),
    ("ModernBert", "ForMultipleChoice", dict(classifier_pooling="mean")),
    ("ModernBert", "Model", dict(layer_types=["sliding_attention", "full_attention"] * 2
                                 + ["sliding_attention"])),
    ("ModernBert", "Model", dict(num_hidden_layers=1)),
    ("ModernBert", "Model", dict(layer_types=["full_attention"] * 5)),
    ("Electra", "ForPreTraining", {}),
    ("Electra", "ForPreTraining", dict(hidden_act="relu", embedding_size=24)),
    ("Deberta", "Model", dict(max_relative_positions=-1)),  # all within the span
    ("Deberta", "Model", dict(pos_att_type="c2p")),
    ("Deberta", "ForTokenClassification", dict(pos_att_type="p2c", type_vocab_size=0)),
    ("DebertaV2", "Model", dict(position_buckets=-1, norm_rel_ebd="none", conv_kernel_size=0)),
    ("DebertaV2", "Model", dict(position_buckets=8, max_relative_positions=16, conv_groups=3,
                                conv_kernel_size=5, conv_act="tanh")),
    ("DebertaV2", "ForSequenceClassification", dict(num_hidden_layers=1, pooler_hidden_act="relu",
                                                    pos_att_type="p2c")),
    *((family, head, {}) for family in ALONE for head in ("EncoderModel",
                                                          "ForTokenClassification")),
    ("T5", "EncoderModel", dict(num_layers=1, feed_forward_proj="gated-silu", num_heads=1)),
]
NAMES = [f"{family}{head}{''.join(f'-{k}' for k in extra)}" for family, head, extra in CLASSES]
# Those with the most tensors.
RICH = ("BertForPreTraining", "RobertaForMaskedLM", "RobertaForSequenceClassification",
        "AlbertForPreTraining", "DistilBertForMaskedLM", "DistilBertForSequenceClassification",
        "ModernBertForMaskedLM-attention_bias-mlp_bias-norm_bias-classifier_bias",
        "ModernBertForSequenceClassification", "DebertaForMaskedLM", "DebertaV2ForMaskedLM",
        "DebertaV2ForSequenceClassification", "ElectraForMaskedLM", "ElectraForPreTraining",
        "ElectraForMultipleChoice", "MT5ForTokenClassification", "UMT5EncoderModel")


def make_peer(name):
  """A model of `transformers`, every tensor of it redrawn so that attention is far from even."""
  family, head, extra = CLASSES[NAMES.index(name)]
  config = getattr(transformers, f"{family}Config")(**(CONFIGS | ALONE | KIN)[family] | extra)
  config.num_labels = 3 if head in ("ForSequenceClassification", "ForTokenClassification") else 2
  peer = getattr(transformers, family + head)(config).eval()
  return redraw(peer)


def redraw(peer, std=0.5):
  generator = torch.Generator().manual_seed(0)
  with torch.no_grad():
    for p in peer.parameters():
      p.copy_(torch.randn(p.shape, generator=generator) * std)
  return peer


def make_batch():
  random = np.random.default_rng(0)
  tokens = random.integers(4, VOCAB, (len(LENGTHS), T)).astype(np.int32)
  mask = np.arange(T) < np.array(LENGTHS)[:, None]
  types = random.integers(0, 2, tokens.shape).astype(np.int32)
  return tokens, mask, types


TOKENS, MASK, TYPES = make_batch()


def jtx_batch(model, pad):
  positions = np.broadcast_to(np.arange(T, dtype=np.int32), TOKENS.shape)
  number = model.embedding.types
  types = {"text_types": TYPES % number} if number else {}
  return {"text": np.where(MASK, TOKENS, pad), "text_segment_ids": MASK.astype(np.int32),
          "text_positions": positions, **types}


def peer_outputs(peer):
  """Hidden states, and what heads there are, of every real token or row."""
  config = peer.config
  inputs = {"input_ids": np.where(MASK, TOKENS, config.pad_token_id), "attention_mask": MASK}
  if number := getattr(config, "type_vocab_size", 0):
    inputs["token_type_ids"] = TYPES % number
  if type(peer).__name__.endswith("MultipleChoice"):
    inputs = {k: v.reshape(2, 2, T) for k, v in inputs.items()}
  inputs = {k: torch.from_numpy(np.array(v)).long() for k, v in inputs.items()}
  with torch.no_grad():
    out = peer(**inputs, output_hidden_states=True)
  hidden = np.stack([h.numpy().reshape(*TOKENS.shape, -1) for h in out.hidden_states[1:]])
  if "last_hidden_state" in out:
    hidden[-1] = out.last_hidden_state.numpy()
  result = {"hidden": hidden[:, MASK]}
  for key, value in out.items():
    if key in ("last_hidden_state", "hidden_states"):
      continue
    value = value.numpy()
    if key in ("prediction_logits", "logits") and value.shape[-1] == VOCAB:
      result["mlm"] = value[MASK]
    elif key == "start_logits":
      result["head"] = np.stack([value, out.end_logits.numpy()], -1)[MASK]
    elif key != "end_logits":
      value = value.reshape(-1, 1) if "MultipleChoice" in type(peer).__name__ else value
      value = value[..., None] if value.shape == TOKENS.shape else value  # a score a token
      result["head"] = value[MASK] if value.shape[:2] == TOKENS.shape else value
  return result


def jtx_outputs(model):
  """A jitted function of parameters and a batch, with the same values."""
  @jax.jit
  def run(params, batch):
    def everything(m, batch):
      states = m.hidden_states(batch)
      result = {"hidden": states[1:]}
      if m.mlm:
        result["mlm"] = m.mlm_logits(states[-1])
      if m.head.task != "none":
        result["head"] = m.outputs(states[-1], batch)
      return result
    return model.apply({"params": params}, batch, method=everything)

  def of_real(params, batch):
    out = {k: np.asarray(v) for k, v in run(params, batch).items()}
    out["hidden"] = out["hidden"][:, MASK]
    for key in out.keys() - {"hidden"}:
      out[key] = out[key][:, 0] if out[key].shape[1] == 1 else out[key][MASK]
    return out

  return of_real


def error(ours, theirs):
  """The largest difference, relative to the largest value of each output."""
  assert ours.keys() == theirs.keys()
  assert all(ours[k].shape == theirs[k].shape for k in theirs)
  return max(abs(ours[k] - theirs[k]).max() / abs(theirs[k]).max() for k in theirs)


def saved(peer, path):
  peer.save_pretrained(path)
  return str(path)


@pytest.mark.parametrize("name", NAMES)
def test_outputs_and_files_are_those_of_transformers(name, tmp_path):
  """Hidden states of all layers and the heads' outputs; then the same bytes back."""
  peer = make_peer(name)
  directory = saved(peer, tmp_path / "theirs")
  model, params = load_pretrained(directory, dtype="float32")
  batch = jtx_batch(model, peer.config.pad_token_id)
  theirs = peer_outputs(peer)
  assert error(jtx_outputs(model)(params, batch), theirs) < TOLERANCE

  save_pretrained(str(tmp_path / "ours"), model, params)
  a, b = (safetensors.numpy.load_file(tmp_path / d / "model.safetensors")
          for d in ("theirs", "ours"))
  assert a.keys() == b.keys()
  for key in a:
    assert a[key].dtype == b[key].dtype and a[key].shape == b[key].shape, key
    assert a[key].tobytes() == b[key].tobytes(), key
  again, info = type(peer).from_pretrained(tmp_path / "ours", output_loading_info=True)
  assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys"))
  again.config.pad_token_id = peer.config.pad_token_id
  assert error(peer_outputs(again.eval()), theirs) == 0


def flat_params(wanted, tensors, shapes):
  params = {}
  for entry in wanted:
    tables.read(entry, tensors[entry.name], shapes, params)
  return unflatten_dict(params, sep="/")


@pytest.mark.parametrize("name", RICH)
def test_a_changed_tensor_shows(name, tmp_path):
  """One that a table forgot, or mixed up with another, would not pass unnoticed."""
  peer = make_peer(name)
  directory = saved(peer, tmp_path / "theirs")
  model, params = load_pretrained(directory, dtype="float32")
  run, batch = jtx_outputs(model), jtx_batch(model, peer.config.pad_token_id)
  theirs = peer_outputs(peer)
  fits = lambda params, batch=batch: error(run(params, batch), theirs) < TOLERANCE
  assert fits(params)
  assert not fits(params, {**batch, "text_segment_ids": np.ones_like(batch["text_segment_ids"])})

  shapes = param_shapes(model)
  source = huggingface.open_source(directory)
  wanted = list(tables.entries(source.family.names.rows_for(model.heads),
                               model.stacks, shapes))
  files = huggingface.Tensors(directory, source.family.names)
  tensors = {e.name: files.get(e.name) for e in wanted}
  # A key's bias adds the same to all scores of a query.
  no_effect = [n for n in tensors if n.endswith(("key.bias", "k_lin.bias"))]
  for zeroed in tensors.keys() - set(no_effect):
    changed = {**tensors, zeroed: np.zeros_like(tensors[zeroed])}
    assert not fits(flat_params(wanted, changed, shapes)), zeroed
  for a, b in itertools.combinations(tensors, 2):
    if tensors[a].shape == tensors[b].shape and not {a, b} <= set(no_effect):
      changed = {**tensors, a: tensors[b], b: tensors[a]}
      assert not fits(flat_params(wanted, changed, shapes)), (a, b)


@pytest.mark.parametrize("family", CONFIGS)
def test_packed_documents_equal_documents_of_their_own(family, tmp_path):
  peer = make_peer(f"{family}ForSequenceClassification")
  model, params = load_pretrained(saved(peer, tmp_path / "theirs"), dtype="float32")
  theirs = peer_outputs(peer)
  b, c = 1, 2  # rows of 7 and of 4 tokens
  pack = lambda x: np.concatenate([x[b, :LENGTHS[b]], x[c, :LENGTHS[c]]])[None]
  batch = jtx_batch(model, PAD)
  packed = {k: pack(v) for k, v in batch.items()}
  packed["text_segment_ids"] = pack(np.array([[0], [1], [2], [0]]) * np.ones((1, T), np.int32))
  hidden = model.apply({"params": params}, packed)
  heads = model.apply({"params": params}, packed, 2, method="predict")
  rows = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
  alone = np.concatenate([theirs["hidden"][-1][rows == r] for r in (b, c)])
  assert abs(np.asarray(hidden)[0] - alone).max() < TOLERANCE * abs(theirs["hidden"][-1]).max()
  assert abs(np.asarray(heads)[0] - theirs["head"][[b, c]]).max() < TOLERANCE * abs(
      theirs["head"]).max()


@pytest.mark.parametrize("family, length, more", [
    ("Deberta", 300, {}), ("Deberta", 700, {}),  # within the span of 512, and beyond it
    ("DebertaV2", 700, dict(position_buckets=128)), ("DebertaV2", 700, {})])
def test_long_rows_of_deberta(family, length, more, tmp_path):
  """Hidden states at published spans and buckets."""
  config = getattr(transformers, f"{family}Config")(**CONFIGS[family] | dict(
      num_hidden_layers=2, max_position_embeddings=512, max_relative_positions=-1) | (
          dict(position_buckets=256) | more if family == "DebertaV2" else {}))
  peer = redraw(getattr(transformers, f"{family}Model")(config).eval())
  model, params = load_pretrained(saved(peer, tmp_path / "theirs"), dtype="float32")
  tokens = np.random.default_rng(0).integers(4, VOCAB, (1, length)).astype(np.int32)
  batch = {"text": tokens, "text_segment_ids": np.ones_like(tokens),
           "text_positions": np.arange(length, dtype=np.int32)[None]}
  ours = np.asarray(jax.jit(model.apply)({"params": params}, batch))
  with torch.no_grad():
    theirs = peer(torch.from_numpy(tokens).long()).last_hidden_state.numpy()
  assert abs(ours - theirs).max() < TOLERANCE * abs(theirs).max()


ODD = {
    "Bert": [dict(hidden_size=30, num_attention_heads=5, num_hidden_layers=1),
             dict(intermediate_size=7, type_vocab_size=1, max_position_embeddings=9),
             dict(vocab_size=101, num_hidden_layers=4)],
    "Albert": [dict(hidden_size=30, num_attention_heads=5, num_hidden_layers=1),
               dict(intermediate_size=7, type_vocab_size=1, embedding_size=3),
               dict(vocab_size=101, num_hidden_layers=4, embedding_size=40)],
    "DistilBert": [dict(dim=30, n_heads=5, n_layers=1),
                   dict(hidden_dim=7, max_position_embeddings=9),
                   dict(vocab_size=101, n_layers=4)],
    "ModernBert": [dict(hidden_size=30, num_attention_heads=3, num_hidden_layers=1),
                   dict(intermediate_size=7, norm_bias=True, mlp_bias=True, classifier_bias=True),
                   dict(vocab_size=101, num_hidden_layers=4, attention_bias=True)],
}
ODD["Roberta"] = ODD["Bert"]
ODD["Electra"] = ODD["Albert"]
ODD["Deberta"] = [dict(hidden_size=30, num_attention_heads=5, num_hidden_layers=1),
                  dict(intermediate_size=7, type_vocab_size=0, max_relative_positions=9),
                  dict(vocab_size=101, num_hidden_layers=4, pos_att_type="p2c")]
ODD["DebertaV2"] = [dict(hidden_size=30, num_attention_heads=5, num_hidden_layers=1, conv_groups=2),
                    dict(intermediate_size=7, conv_kernel_size=5, position_buckets=-1),
                    dict(vocab_size=101, num_hidden_layers=4, norm_rel_ebd="none")]


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("case", range(3))
@pytest.mark.parametrize("head", ["ForMaskedLM", "ForTokenClassification"])
def test_parameter_counts_are_those_of_transformers(family, case, head):
  config = getattr(transformers, f"{family}Config")(**CONFIGS[family] | ODD[family][case])
  config.num_labels = 5
  peer = getattr(transformers, family + head)(config)
  fields = huggingface.model_fields(json.loads(config.to_json_string()), family + head)
  shapes = param_shapes(configs.make_model(
      FAMILIES[config.model_type], fields))
  theirs = sum(p.numel() for p in peer.parameters())
  assert sum(int(np.prod(s)) for s in shapes.values()) == theirs


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_files_load_as_float32(dtype, tmp_path):
  peer = make_peer("BertForMaskedLM").to(getattr(torch, dtype))
  model, params = load_pretrained(saved(peer, tmp_path / "theirs"))
  np.testing.assert_array_equal(
      params["embed"]["embedding"],
      peer.bert.embeddings.word_embeddings.weight.detach().float().numpy())
  assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype("float32")}
  save_pretrained(str(tmp_path / "ours"), model, params, dtype=dtype)
  again = transformers.BertForMaskedLM.from_pretrained(tmp_path / "ours", dtype="auto")
  assert again.dtype == peer.dtype
  for (name, a), b in zip(again.named_parameters(), peer.parameters()):
    assert torch.equal(a, b), name


def test_sharded_files_load(tmp_path):
  peer = make_peer("ModernBertForMaskedLM")
  peer.save_pretrained(tmp_path / "parts", max_shard_size="20KB")
  assert len(list((tmp_path / "parts").glob("model-*.safetensors"))) > 2
  _, whole = load_pretrained(saved(peer, tmp_path / "whole"))
  _, parts = load_pretrained(str(tmp_path / "parts"))
  jax.tree.map(np.testing.assert_array_equal, whole, parts)


@pytest.mark.parametrize("family", CONFIGS)
def test_labels_that_do_not_exclude_one_another(family, tmp_path):
  """`problem_type` both ways, and the loss of PyTorch with weights of labels that are there."""
  peer = make_peer(f"{family}ForSequenceClassification")
  peer.config.problem_type = "multi_label_classification"
  model, params = load_pretrained(saved(peer, tmp_path / "theirs"), dtype="float32")
  assert model.head.task == "multi_label"
  labels, weights = np.random.default_rng(0).integers(0, 2, (len(LENGTHS), 3)), (0.5, 1.0, 3.0)
  batch = {**jtx_batch(model, PAD), "label": labels[:, None]}
  total, number = MultiLabel(weights)(model, params, batch, train=False)["loss"]
  scores = torch.from_numpy(peer_outputs(peer)["head"])
  theirs = torch.nn.functional.binary_cross_entropy_with_logits(
      scores, torch.from_numpy(labels).float(), pos_weight=torch.tensor(weights))
  assert float(total / number) == pytest.approx(float(theirs), rel=1e-4)
  save_pretrained(str(tmp_path / "ours"), model, params, labels=("a", "b", "c"))
  again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "ours")
  assert again.config.problem_type == "multi_label_classification"
  again.config.pad_token_id = peer.config.pad_token_id  # which no tokenizer told the export
  np.testing.assert_array_equal(peer_outputs(again.eval())["head"], scores.numpy())


def test_a_saved_tokenizer_loads_in_transformers(tmp_path):
  from jtx.data.tokenizers.kinds import wordpiece
  texts = ["the cat sat on the mat", "a dog, unaffected, ran"] * 3
  tokenizer = wordpiece(iter(texts), vocab_size=60, min_frequency=1)
  peer = make_peer("BertForSequenceClassification")
  model, params = load_pretrained(saved(peer, tmp_path / "theirs"))
  save_pretrained(str(tmp_path / "ours"), model, params, tokenizer, labels=("no", "maybe", "yes"))
  theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
  for text in [*texts, "The unaffected dog sat"]:
    assert theirs(text, add_special_tokens=False)["input_ids"] == tokenizer.encode(text).tolist()
  pair = texts[0], texts[1]
  ours = tokenizer.encode_texts([pair[0]], [pair[1]], max_length=40)[0]
  encoded = theirs(*pair, return_token_type_ids=True)
  assert encoded["input_ids"] == ours.ids.tolist()
  assert encoded["token_type_ids"] == ours.types.tolist()
  assert theirs.pad_token_id == tokenizer.pad_id and theirs.eos_token_id == tokenizer.eos_id
  assert theirs.model_max_length == 16
  config = transformers.AutoConfig.from_pretrained(tmp_path / "ours")
  assert config.id2label == {0: "no", 1: "maybe", 2: "yes"} and config.pad_token_id == 0


@pytest.mark.slow
@pytest.mark.parametrize("family", ["Bert", "ModernBert"])
def test_the_published_widths(family, tmp_path):
  config = getattr(transformers, f"{family}Config")(num_hidden_layers=4)
  peer = getattr(transformers, f"{family}ForMaskedLM")(config).eval()
  redraw(peer, 0.05)
  model, params = load_pretrained(saved(peer, tmp_path / "theirs"), dtype="float32")
  tokens = np.random.default_rng(0).integers(0, 30000, (2, 160)).astype(np.int32)
  mask = np.arange(160) < np.array([[160], [90]])
  batch = {"text": tokens, "text_segment_ids": mask.astype(np.int32),
           "text_positions": np.broadcast_to(np.arange(160), tokens.shape)}
  ours = jax.jit(lambda p, b: model.apply({"params": p}, model.apply({"params": p}, b),
                                          method="mlm_logits"))(params, batch)
  with torch.no_grad():
    theirs = peer(input_ids=torch.from_numpy(tokens).long(),
                  attention_mask=torch.from_numpy(mask).long()).logits.numpy()
  assert abs(np.asarray(ours) - theirs)[mask].max() < TOLERANCE * abs(theirs[mask]).max()


@pytest.mark.parametrize("kind", ["ConditionalGeneration", "SequenceClassification"])
def test_the_encoder_of_a_whole_t5(kind, tmp_path):
  """As `T5EncoderModel.from_pretrained` takes it, and fine-tuned to tag."""
  config = transformers.T5Config(**T5 | dict(feed_forward_proj="gated-gelu", num_decoder_layers=2,
                                             pad_token_id=0, decoder_start_token_id=0))
  directory = saved(redraw(getattr(transformers, f"T5For{kind}")(config).eval()), tmp_path / "t5")
  peer = transformers.T5EncoderModel.from_pretrained(directory).eval()
  model, params = load_pretrained(directory, architecture="T5EncoderModel", dtype="float32")
  theirs = peer_outputs(peer)
  assert error(jtx_outputs(model)(params, jtx_batch(model, 0)), theirs) < TOLERANCE

  kind, fields = huggingface.finetuned_fields(huggingface.open_source(directory), "tags")
  assert kind == "encoder"
  fields["head"]["outputs"] = 3
  tagger = configs.make_model(FAMILIES["t5 encoder"], fields)
  found, missing = huggingface.load_params(directory, tagger)
  assert all(path.startswith("task_head/") for path in missing)
  assert jax.tree.all(jax.tree.map(np.array_equal, found, params))
