"""Hugging Face folders: their configs, weights and tokenizers."""

import json
import os
import shutil
import struct

from benchmarks.bad_inputs.case import Case


def folder(*changes):
  """A copy of the sound folder, changed in place."""
  def write(path, made):
    if path.is_dir():
      shutil.rmtree(path)
    path.unlink(missing_ok=True)
    shutil.copytree(made / "hf", path)
    for change in changes:
      change(path)
  return write


def configured(**edits):
  def change(path):
    file = path / "config.json"
    config = json.loads(file.read_text()) | edits
    file.write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))
  return change


def put(name, content):
  return lambda path: (path / name).write_bytes(
      content if isinstance(content, bytes) else content.encode())


def gone(name):
  return lambda path: (path / name).unlink()


def tensors(edit):
  """Edits the header and the bytes of the weights."""
  def change(path):
    file = path / "model.safetensors"
    data = file.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8:8 + size]), bytearray(data[8 + size:])
    header, body = edit(header, body)
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(body))
  return change


def nan(header, body):
  first = next(v for k, v in header.items() if k != "__metadata__")
  start = first["data_offsets"][0]
  body[start:start + 4] = struct.pack("<f", float("nan"))
  return header, body


def renamed(header, body):
  key = next(k for k in header if k != "__metadata__")
  return {(k + "x" if k == key else k): v for k, v in header.items()}, body


def reshaped(header, body):
  key = next(k for k in header if k != "__metadata__" and len(header[k]["shape"]) == 2)
  header[key]["shape"] = header[key]["shape"][::-1]
  return header, body


def far(header, body):
  key = next(k for k in header if k != "__metadata__")
  header[key]["data_offsets"] = [0, 2 ** 50]
  return header, body


def index(target):
  """Weights in parts, one of which is outside of the folder."""
  def change(path):
    os.rename(path / "model.safetensors", path / "part.safetensors")
    weights = path / "model.safetensors.index.json"
    weights.write_text(json.dumps({"weight_map": {"a": target}}))
  return change


def convert(name, sentence, *changes):
  return Case(name, "convert --from_hf=m --workdir=w", sentence, {"m": folder(*changes)})


CASES = [
    Case("no folder", "convert --from_hf=none --workdir=w", "none"),
    Case("an empty folder", "convert --from_hf=m --workdir=w", "m", {"m/x": ""}),
    convert("no config", "config.json", gone("config.json")),
    convert("a config that is no JSON", "config.json", put("config.json", "{")),
    convert("a config that is a list", "config.json", put("config.json", "[]")),
    convert("a config of depth 100,000", "config.json", put("config.json", "[" * 100_000)),
    convert("no kind of model", "model_type", configured(model_type=...)),
    convert("another kind of model", "mamba", configured(model_type="mamba")),
    convert("an architecture that is none", "BertForMagic",
            configured(architectures=["BertForMagic"])),
    convert("a width that is a word", "hidden_size", configured(hidden_size="big")),
    convert("a width of 0", "hidden_size|width", configured(hidden_size=0)),
    convert("a width below 0", "hidden_size|width", configured(hidden_size=-4)),
    convert("a width that heads do not divide", "hidden_size|num_heads|heads",
            configured(num_attention_heads=5)),
    convert("layers that are not in the weights", "layer|encoder", configured(num_hidden_layers=9)),
    convert("10^7 layers", "num_layers|num_hidden_layers", configured(num_hidden_layers=10 ** 7)),
    convert("an activation that is none", "magic", configured(hidden_act="magic")),
    convert("an epsilon that is nan", "eps|config.json",
            put("x", ""), configured(layer_norm_eps=float("nan"))),
    convert("a dropout of 2", "dropout|hidden_dropout_prob", configured(hidden_dropout_prob=2.0)),
    convert("a vocabulary of 10^12", "vocab_size", configured(vocab_size=10 ** 12)),
    convert("another number of words", "vocab|word_embeddings", configured(vocab_size=33)),
    convert("no weights", "model.safetensors|weights", gone("model.safetensors")),
    convert("empty weights", "model.safetensors", put("model.safetensors", b"")),
    convert("weights that are none", "model.safetensors", put("model.safetensors", b"x" * 100)),
    convert("weights that are cut", "model.safetensors", lambda path: os.truncate(
        path / "model.safetensors", (path / "model.safetensors").stat().st_size // 2)),
    convert("a header of 2^60 bytes", "model.safetensors",
            put("model.safetensors", struct.pack("<Q", 2 ** 60) + b"{}")),
    convert("a tensor of another name", "biasx.* is none of the model's", tensors(renamed)),
    convert("a tensor of another shape", "shape|\\(", tensors(reshaped)),
    convert("a tensor outside of the file", "model.safetensors", tensors(far)),
    convert("weights that are nan", "finite|nan", tensors(nan)),
    convert("a part of weights above the folder", "\\.\\./secret", index("../secret.safetensors")),
    convert("a part of weights at the root", "/etc", index("/etc/passwd")),
    convert("a part of weights that is missing", "other.safetensors", index("other.safetensors")),
    convert("a pickle", "pickle|pytorch_model.bin|safetensors", lambda path: os.rename(
        path / "model.safetensors", path / "pytorch_model.bin")),
    convert("modules that are no list", "modules.json", put("modules.json", '{"a": 1}')),
    convert("a module that is none of ours", "Dense", put("modules.json", json.dumps(
        [{"type": "Transformer", "path": ""}, {"type": "Dense", "path": "2_Dense"}]))),
    convert("a module outside of the folder", "\\.\\./1_Pooling", put("modules.json", json.dumps(
        [{"type": "Transformer", "path": ""}, {"type": "Pooling", "path": "../1_Pooling"}]))),
    convert("a module without its folder", "1_Pooling", put("modules.json", json.dumps(
        [{"type": "Transformer", "path": ""}, {"type": "Pooling", "path": "1_Pooling"}]))),
    convert("a tokenizer that is none", "tokenizer", put("tokenizer.json", "{")),
    Case("weights that are nan, to predict", "predict --workdir=m --input={made}/dev.tsv",
         "finite|nan", {"m": folder(tensors(nan))}),
    Case("a folder to start from that is none", "train --config=jtx.configs.classify:tiny"
         " --workdir=w --config.init_from=nowhere", "nowhere"),
    Case("a folder of another width to start from", "train --config=jtx.configs.classify:tiny"
         " --workdir=w --config.init_from={made}/hf --config.model.stack.width=48", "width|shape"),
    Case("a start from another family", "train --config=jtx.configs.vit:tiny --workdir=w"
         " --config.init_from={made}/hf", "vit|encoder|hf"),
]
