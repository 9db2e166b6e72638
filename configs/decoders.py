"""Fine-tuning of language models: the arguments and the recipe that its configs share."""

from ml_collections import ConfigDict

from jtx import hub
from jtx.errors import ConfigError
from jtx.saved.folder import open_saved

from . import common

# Arguments that `finetune` reads; a config adds its own.
DECODER_ARGS = dict(
    init="",  # a Hugging Face folder, a name of its Hub, or a workdir; "" is fresh parameters
    vocab_size=0,  # of fresh parameters: of a byte-level BPE of the data; 0 is characters
    train="train.jsonl",
    dev="dev.jsonl",
    template="",  # of conversations, a file with Jinja; "" is the tokenizer's, or TEMPLATE
    max_length=512,  # tokens of a row, in which several texts have room
    batch=16,  # rows
    lr=2e-5,
    epochs=3.0,
    tiny=False,  # seconds, on embedded data
)

# Who speaks, a line break, and what is said; an answer ends with the end token.
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}:\n"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}{{ eos_token }}"
    "{% endgeneration %}\n{% else %}{{ message.content }}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}assistant:\n{% endif %}")


def finetune(c: ConfigDict, args: ConfigDict) -> str:
  """Makes a config train a decoder, that of `args.init` or a small fresh one.

  Args:
    c: to edit.
    args: of `DECODER_ARGS`.

  Returns:
    The chat template for data of conversations; "" is the tokenizer's own.
  """
  template = TEMPLATE
  if args.init:
    if args.vocab_size:
      raise ConfigError("config arguments init and vocab_size exclude each other: init brings its"
                        " tokenizer")
    c.init_from = hub.place(args.init)
    saved = open_saved(args.init)
    c.model = common.model("decoder", **saved.trunk_fields("decoder"))
    c.tokenizer.kind = common.tokenizer("file", path=c.init_from)
    template = "" if saved.tokenizer().chat_template else TEMPLATE
  else:
    c.model = common.model("decoder", stack=dict(
        width=256, num_layers=6, unroll=-1, position=common.position("rope"), block=dict(
            attention=dict(num_heads=4, dropout=0.0, biases=()),
            ffn=dict(dim=1024, activation="silu", gated=True, bias=False),
            norm=dict(kind="rmsnorm", position="pre"), dropout=0.0)))
    c.tokenizer.kind = common.tokenizer("characters", unknown=True)
    if args.vocab_size:
      c.tokenizer.kind = common.tokenizer("byte_bpe", vocab_size=args.vocab_size,
                                           split_digits=True)
  if args.template:
    with open(args.template, encoding="utf-8") as f:
      template = f.read()
  c.optim.optimizer = common.optimizer("adamw", b2=0.95, weight_decay=0.01)
  c.optim.schedule = common.schedule("cosine", warmup=0.03)
  c.optim.lr, c.optim.clip_norm = args.lr, 1.0
  c.batch_size, c.epochs, c.log_every = args.batch, args.epochs, 50
  return template


def shrink(c: ConfigDict, source: str) -> None:
  """Makes the config run in seconds, on embedded data."""
  common.apply(c, {"model.stack": common.TINY_STACK})
  c.steps, c.epochs, c.batch_size, c.log_every = 4, None, 8, 2
  c.checkpoint.every = c.checkpoint.keep = 2
  c.data.train = (f"{source}:test",)  # an eighth of the split `train`
  for name in c.evals:
    c.evals[name].source = (f"{source}:val",)
  c.data.ops[-1].lengths = (128,) * len(c.data.ops[-1].lengths)
