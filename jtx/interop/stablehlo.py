"""Models written as StableHLO programs, which run with `jax` and NumPy and without jtx.

A folder holds the program (model.stablehlo, of `jax.export`), the parameters (params.npz), what
goes in and comes out (signature.json), and a module that runs it (run.py).
"""

import json
import os
from typing import Any, Callable, Mapping, Sequence

from flax.traverse_util import flatten_dict, unflatten_dict
import jax
from jax import export
import jax.numpy as jnp
import numpy as np

from jtx import storage
from jtx.data.tokenizers.tokenizer import Tokenizer
from jtx.errors import ConfigError
from jtx.interop import preprocessor
from jtx.interop.attributes import need
from jtx.interop.export import tokenizer_files
from jtx.interop.files import NewDirectory
from jtx.models.heads import TASKS
from jtx.models.patches import ImageConfig

PLATFORMS = ("cpu", "cuda", "tpu")
DTYPES = ("float32", "bfloat16")
RUN = '''"""Runs the program of this folder; it needs jax, numpy and flatbuffers.

  from run import run
  outputs = run({inputs})
"""

import pathlib

from jax import export
import numpy as np

FOLDER = pathlib.Path(__file__).parent
PROGRAM = export.deserialize(bytearray((FOLDER / "model.stablehlo").read_bytes()))
PARAMS = dict(np.load(FOLDER / "params.npz"))


def run(**inputs):
  """The outputs as signature.json has them; the first dimension of all inputs is the batch's."""
  return PROGRAM.call(PARAMS, inputs)
'''


def save(directory: str, model: Any, params: Any, *, length: int = 128,
         labels: Sequence[str] | None = None, tokenizer: Tokenizer | None = None,
         image_ops: Sequence[Any] | None = None, dtype: str = "float32") -> None:
  """Writes a folder with a model's program; all of it, or nothing.

  Args:
    directory: to make; it must not hold anything yet.
    model: of texts or of images.
    params: its parameters.
    length: tokens of a row; shorter texts are padded.
    labels: names of classes or tags.
    tokenizer: of its texts, written beside it.
    image_ops: that make arrays of images, written as preprocessor_config.json.
    dtype: of the computation; parameters are float32.

  Raises:
    ConfigError: a model that has no such program, or the directory is in use.
  """
  if dtype not in DTYPES:
    raise ConfigError(f"dtype={dtype!r}: a program computes in {' or '.join(DTYPES)}")
  try:
    import flatbuffers  # noqa: F401
  except ImportError:
    raise ConfigError("jax.export writes programs by flatbuffers; install the extra `stablehlo`:"
                      " pip install flatbuffers") from None
  model = model.clone(dtype=dtype)
  inputs, function, outputs = _images(model) if "image" in model.example() else _texts(
      model, length)
  exported = _exported(function, params, inputs)
  batch, *row = exported.out_avals[0].shape
  signature = {
      "inputs": {name: {"shape": ["batch", *shape], "dtype": kind, "is": what}
                 for name, (shape, kind, what) in inputs.items()},
      "outputs": {"shape": [str(batch), *row], "dtype": "float32", "is": outputs},
      "labels": labels and list(labels), "platforms": list(exported.platforms),
      "jax": jax.__version__}
  texts = {"signature.json": signature}
  if tokenizer is not None:
    texts |= tokenizer_files(model, tokenizer)
  if image_ops is not None:
    texts[preprocessor.PREPROCESSOR] = preprocessor.content(
        preprocessor.evaluated(image_ops, model.image), _pixels(model.image))
  with NewDirectory(directory) as path:
    storage.write_bytes(os.path.join(path, "model.stablehlo"), exported.serialize())
    storage.write_text(os.path.join(path, "run.py"),
                       RUN.replace("{inputs}", ", ".join(f"{name}={name}" for name in inputs)))
    for name, content in texts.items():
      storage.write_text(os.path.join(path, name),
                         json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    np.savez(os.path.join(path, "params.npz"), **flatten_dict(jax.device_get(params), sep="/"))


Inputs = Mapping[str, tuple[tuple[int, ...], str, str]]  # shape of a row, type and meaning


def _exported(function: Callable, params: Any, inputs: Inputs) -> export.Exported:
  """The program of parameters by path and a batch of any size."""
  batch, = export.symbolic_shape("batch")
  shapes = {name: jax.ShapeDtypeStruct((batch, *shape), kind)
            for name, (shape, kind, _) in inputs.items()}
  flat = {path: jax.ShapeDtypeStruct(x.shape, x.dtype)
          for path, x in flatten_dict(params, sep="/").items()}
  run = lambda params, batch: function(unflatten_dict(params, sep="/"), batch).astype(jnp.float32)
  # Kernels are chosen for the machine that traces, so only a CPU's are for all.
  platforms = PLATFORMS if jax.default_backend() == "cpu" else None
  return export.export(jax.jit(run), platforms=platforms)(flat, shapes)


def _images(model: Any) -> tuple[Inputs, Callable, str]:
  image = model.image
  need(isinstance(image, ImageConfig), f"a {type(model).__name__} takes images of several shapes,"
       " and a StableHLO program those of one")
  inputs = {"image": ((image.size, image.size, image.channels), "uint8",
                      "pixels from 0 to 255, as preprocessor_config.json makes them before it"
                      " rescales and normalises, which the program does")}
  apply = lambda method: lambda params, batch: model.apply({"params": params}, batch, method=method)
  if TASKS[model.head.task].labelled:
    scores = apply("predict")
    return inputs, lambda params, batch: scores(params, batch)[:, 0], "scores of the classes"
  return inputs, apply("features"), "vectors of the images"


def _texts(model: Any, length: int) -> tuple[Inputs, Callable, str]:
  if not hasattr(model, "embed_tokens"):
    raise ConfigError(f"--to=stablehlo: there is no program of {type(model).__name__}; models of"
                      " texts, and of images of one size, that answer in one pass have one")
  length = min(length, model.longest or length)
  inputs = {"ids": ((length,), "int32", "tokens"),
            "types": ((length,), "int32", "0, and 1 in the second text of a pair"),
            "mask": ((length,), "int32", "1 where there is a token, 0 in padding")}

  def function(params, batch):
    places = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), batch["ids"].shape)
    texts = {"text": batch["ids"], "text_types": batch["types"], "text_positions": places,
             "text_segment_ids": batch["mask"]}
    if model.head.task != "none":
      x = model.apply({"params": params}, texts, method="predict")
      return x if model.head.pool == "none" else x[:, 0]
    if "mlm" not in model.heads:
      return model.apply({"params": params}, texts)
    _, states = model.apply({"params": params}, texts, method="masked_states")
    return model.apply({"params": params}, states, method="mlm_logits")

  if model.head.task != "none":
    what = f"the head's outputs (head.task={model.head.task!r})"
  else:
    what = "scores of the vocabulary" if "mlm" in model.heads else "hidden states"
  return inputs, function, what


def _pixels(image: Any) -> dict[str, Any]:
  wide = lambda numbers: list(numbers) * (image.channels if len(numbers) == 1 else 1)
  return {"num_channels": image.channels, "image_mean": wide(image.mean),
          "image_std": wide(image.std)}
