"""Small models of all families, and helpers, for the tests of this folder."""

import dataclasses

from flax.traverse_util import flatten_dict, unflatten_dict
import numpy as np
import pytest

from jtx.data.tokenizers.kinds import wordpiece
from jtx.errors import ConfigError
from jtx.interop.trunks import param_shapes
from jtx.models.encoder import HeadConfig
from jtx.models.xlnet import Xlnet
from jtx.nn.convolution import ConvolutionConfig
from jtx.nn.disentangled import Disentangled
from jtx.nn.positions import Learned
from jtx.nn.rope import Rope
from jtx.nn.transformer_xl import TransformerXl
from tests.helpers import block, encoder

BLOCK = block(num_heads=3, attention_bias=True, ffn_dim=20, activation="gelu", norm_eps=1e-12,
              attention_dropout=0.1, init_std=0.02)
POOLER = HeadConfig(task="embedding", transform="tanh")
CLASSES = HeadConfig(task="classes", outputs=4, transform="tanh")
BERT = encoder(vocab_size=31, width=12, num_layers=2, block=BLOCK, position=Learned(16), mlm=False,
               head=CLASSES)
PRETRAINING = BERT.clone(
    mlm=True, head=HeadConfig(task="next_sentence", transform="tanh", dropout=0.0))
ROBERTA = encoder(BERT, position=Learned(16, first_position=2), num_token_types=1)
ALBERT = encoder(BERT, embedding_width=8, share_layers=True)
DISTILBERT = encoder(BERT, num_token_types=0, head=HeadConfig(
    task="classes", outputs=4, transform="relu", dropout=0.2))
MODERNBERT = encoder(
    vocab_size=31, width=12, num_layers=4, num_token_types=0, window=3,
    block=block(num_heads=3, ffn_dim=20, activation="gelu", gated=True, use_bias=False,
                norm_position="pre", norm_eps=1e-5, attention_norm=False, dropout=0.0,
                init_std=0.02),
    position=Rope(160_000.0, local_base=10_000.0), pattern=("global", "local", "local"),
    head=HeadConfig(task="classes", outputs=4, transform="gelu", norm=True, use_bias=False,
                    dropout=0.0))
DEBERTA = encoder(
    BERT, num_token_types=0, position=Disentangled(5, 0, shared=False, norm=False),
    block=block(BLOCK, biases=("query", "value", "out")))
DEBERTA_V2 = encoder(
    BERT, num_token_types=0, position=Disentangled(6, 12, norm_eps=1e-12),
    block=block(BLOCK, convolution=ConvolutionConfig(size=3, activation="gelu")))
ELECTRA = encoder(BERT, embedding_width=8, head=HeadConfig(
    task="classes", outputs=4, transform="gelu"))
XLNET = Xlnet(
    vocab_size=31, head=dataclasses.replace(CLASSES, pool="last"), stack=encoder(
        BERT, position=TransformerXl(clamp=4), block=block(
            BLOCK, attention_bias=False, ffn_dropout=0.1)).stack)
MODELS_BY_TYPE = {"bert": BERT, "roberta": ROBERTA, "albert": ALBERT, "distilbert": DISTILBERT,
                  "modernbert": MODERNBERT, "deberta": DEBERTA, "deberta-v2": DEBERTA_V2,
                  "electra": ELECTRA, "xlnet": XLNET}
TOKENIZER = wordpiece(iter(["the cat sat on the mat"] * 3), vocab_size=30, min_frequency=1)
DROP = object()  # an attribute that is left out


def random_params(model, seed=0):
  random = np.random.default_rng(seed)
  return unflatten_dict({path: random.normal(size=shape).astype(np.float32)
                         for path, shape in param_shapes(model).items()}, sep="/")


def equal(a, b):
  a, b = flatten_dict(a), flatten_dict(b)
  assert a.keys() == b.keys()
  for key in a:
    np.testing.assert_array_equal(a[key], b[key], err_msg=str(key))


def message(call, *args, error=ConfigError, **kwargs):
  with pytest.raises(error) as e:
    call(*args, **kwargs)
  assert "\n" not in str(e.value)
  return str(e.value)


def without(*names):
  return lambda tensors: {k: v for k, v in tensors.items() if k not in names}


def change_block(model, **edits):
  return encoder(model, block=block(model.stack.block, **edits))
