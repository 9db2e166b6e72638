"""Where texts that the model of a folder goes on with begin and end, and how talks are written."""

from jtx.interop import generation
from jtx.saved.folder import HuggingFace, Run, Saved


def begin_ids(saved: Saved) -> tuple[int, ...] | None:
  """The tokens that stand before a prompt; None is those of the tokenizer."""
  if not isinstance(saved, Run):
    return None
  begins = [op.begin for op in saved.config.data.ops if op.name == "tokenize"]
  return None if not begins else (saved.tokenizer().bos_id,) if begins[0] else ()


def end_ids(saved: Saved) -> tuple[int, ...]:
  """The tokens that end a generated text; () is the tokenizer's end token."""
  return generation.end_ids(saved.directory) if isinstance(saved, HuggingFace) else ()


def chat_template(saved: Saved) -> str:
  """How a conversation is written, in Jinja; "" where nothing tells."""
  written = []
  if isinstance(saved, Run):
    written = [op.template for op in saved.config.data.ops if "template" in op]
  return next(filter(None, written), getattr(saved.tokenizer(), "chat_template", ""))
