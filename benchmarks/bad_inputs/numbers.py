"""Numbers out of their ranges, of all sections."""

import re

from benchmarks.bad_inputs.case import Case

BASE = {
    "text": "jtx.configs.nmt_numbers:tiny", "classes": "jtx.configs.classify:tiny",
    "images": "jtx.configs.vit:tiny", "masked": "jtx.configs.bert:tiny",
}


def case(base: str, key: str, value: str) -> Case:
  """A number, and its key with what it must be; the decoder's keys follow the encoder's."""
  path = re.escape(key).replace("encoder", "(en|de)coder")
  told = f"{path}=nan is not a number" if value == "nan" else f"{path}[^ ]*: must be "
  return Case(f"{key}={value}", f"train --config={BASE[base]} --workdir=w --config.{key}={value}",
              f"config.{told}")


CASES = [case("text", *pair) for pair in (
    ("seed", "-1"), ("seed", "99999999999"), ("prng", "philox"), ("steps", "0"), ("steps", "-5"),
    ("log_every", "0"), ("epochs", "nan"), ("epochs", "inf"), ("epochs", "-1.0"),
    ("batch_size", "0"), ("batch_size", "1000000000"), ("optim.lr", "-0.1"), ("optim.lr", "nan"),
    ("optim.ema", "2.0"), ("optim.ema", "nan"), ("optim.ema", "1.0"), ("optim.clip_norm", "nan"),
    ("optim.clip_norm", "-1.0"), ("optim.accumulate", "-1"), ("mesh.data", "-3"),
    ("checkpoint.every", "0"), ("checkpoint.keep", "0"), ("checkpoint.keep_every", "-1"),
    ("checkpoint.average", "0"), ("data.window", "-1"), ("data.threads", "-1"),
    ("data.workers", "-1"), ("data.workers", "1000000"), ("data.smoothing", "nan"),
    ("decode.batch_size", "0"), ("decode.max_source_length", "0"),
    ("decode.max_target_length", "-1"), ("decode.method.beam", "0"),
    ("decode.method.alpha", "nan"), ("decode.method.n_best", "0"),
    ("objective.label_smoothing", "2.0"), ("objective.label_smoothing", "-1.0"),
    ("objective.label_smoothing", "nan"), ("objective.logits_chunk", "-1"),
    ("model.encoder.width", "0"), ("model.encoder.num_layers", "0"),
    ("model.encoder.num_layers", "10000000"), ("model.decoder.block.attention.num_heads", "-1"),
    ("model.decoder.block.dropout", "1.5"), ("model.decoder.block.ffn.dim", "0"),
    ("model.encoder.block.norm.eps", "-1.0"), ("model.encoder.block.residual.drop_path", "1.0"),
    ("model.encoder.position.base", "0.0"), ("tokenizer.kind.vocab_size", "1000000000000"),
    ("tokenizer.kind.vocab_size", "-1"), ("tokenizer.kind.min_frequency", "-1"))] + [
    case("classes", *pair) for pair in (
        ("optim.optimizer.b1", "2.0"), ("optim.optimizer.b2", "nan"),
        ("optim.optimizer.eps", "-1.0"), ("optim.optimizer.weight_decay", "nan"),
        ("optim.schedule.warmup", "nan"), ("optim.schedule.warmup", "inf"),
        ("optim.schedule.end", "-0.5"), ("objective.focal_gamma", "-1.0"),
        ("objective.mixup", "-0.1"), ("model.head.dropout", "1.0"), ("model.head.outputs", "0"),
        ("model.vocab_size", "0"), ("data.ops[0].max_length", "0"), ("checkpoint.patience", "-1"),
        ("model.stack.window", "-1"), ("model.stack.unroll", "-2"))] + [
    case("images", *pair) for pair in (
        ("model.patch_size", "0"), ("model.image.size", "-8"), ("model.image.channels", "0"),
        ("data.ops[0].max_bad", "2.0"), ("data.ops[0].channels", "2"), ("objective.cutmix", "nan"))
] + [case("masked", *pair) for pair in (
    ("data.ops[4].rate", "0.0"), ("model.stack.position.max_length", "0"),
    ("model.embedding.types", "-1"))]
