"""A declared field that changes nothing is caught.

Every field of every constructor below is changed, where it can matter, and the program of
its initialisation, loss and gradient must change with it. A new field fails the test until
it is in `CHANGES`. Where a field can't matter, setting it is an error: see `REFUSED`.
"""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx import config
from jtx.errors import ConfigError
from jtx.models import MODELS, decoder, encdec, encoder
from jtx.models.backbone import BackboneConfig
from jtx.models.box_head import BoxHeadConfig
from jtx.models.coatnet import CoAtNet, LayersConfig, StagesConfig, StemConfig
from jtx.models.decoder import Decoder
from jtx.models.detr import STACK as DETR_STACK
from jtx.models.detr import Detr, PlacesConfig
from jtx.models.packed_vit import PackedVit
from jtx.models.electra import Electra, GeneratorConfig
from jtx.models.elmo import Elmo
from jtx.models.encdec import EncDec
from jtx.models.encoder import Encoder
from jtx.models.features import FeatureConfig
from jtx.models.global_tokens import GlobalConfig
from jtx.models.image_head import ImageHeadConfig, PrefixConfig
from jtx.models.mae_decoder import DecoderConfig
from jtx.models.masked import MaskedConfig
from jtx.models.patches import PixelConfig
from jtx.models.resnet import ResnetConfig
from jtx.models.rnn import Rnn
from jtx.models.rnn_encdec import RnnEmbeddingConfig, RnnEncDec
from jtx.models.text_head import HeadConfig
from jtx.models.two_towers import ProjectionConfig, SimilarityConfig, TowerConfig, TwoTowers
from jtx.models.vit import GridStackConfig, ImageConfig, Vit
from jtx.models.xlnet import Xlnet
from jtx.nn.activations import ACTIVATIONS
from jtx.nn.attached import Attached
from jtx.nn.attention import PROJECTIONS, QK_NORMS, Attention, AttentionConfig, LayerKind
from jtx.nn.block import PARALLEL, POSITION_AT, BlockConfig, Context, Memory, ResidualConfig
from jtx.nn.characters import CharacterConfig
from jtx.nn.convolution import ConvolutionConfig
from jtx.nn.disentangled import Disentangled
from jtx.nn.grid_kinds import Learned2d, RelativeBias, Rope2d
from jtx.nn.grid_positions import GRID_POSITIONS, GridPosition, LearnedGrid, Sincos2d
from jtx.nn.layers import NORM_POSITIONS, FfnConfig, NormConfig
from jtx.nn.lora import LoraConfig
from jtx.nn.mbconv import MbConvConfig
from jtx.nn.mixture import ExpertsConfig
from jtx.nn.masks import CAUSAL, Rows
from jtx.nn.positions import POSITIONS, Learned, Places, Position, Sinusoidal
from jtx.nn.recurrent import CellConfig, RecurrentConfig
from jtx.nn.relative import Alibi, T5Bias
from jtx.nn.rope import SCALINGS, Linear, Llama3, Ntk, Rope, Scaling, Yarn
from jtx.nn.shapes import shapes_of
from jtx.nn.stack import Segment, Stack, StackConfig
from jtx.nn.transformer_xl import TransformerXl
from jtx.objectives import OBJECTIVES
from jtx.objectives.bilm import BiLm
from jtx.objectives.classify import Classify
from jtx.objectives.contrastive import Contrastive, LateInteraction
from jtx.objectives.cosine import Cosine
from jtx.objectives.detection import CostConfig, Detection
from jtx.objectives.distill import Distill
from jtx.objectives.distill_classes import DistillClasses
from jtx.objectives.dpo import Dpo
from jtx.objectives.electra import ReplacedTokens
from jtx.objectives.image_text import ImageText
from jtx.objectives.lm import Lm
from jtx.objectives.mae import Mae
from jtx.objectives.mlm import Mlm
from jtx.objectives.multi_label import MultiLabel
from jtx.objectives.multiple_choice import MultipleChoice
from jtx.objectives.plm import Plm
from jtx.objectives.seq2seq import Seq2Seq
from jtx.objectives.span import Span
from jtx.objectives.tag import Tag
from jtx.parallel.sharding import unbox
from jtx.train.layer_sums import sums_of

PRE, PRE_NO_NORM = NormConfig(position="pre"), NormConfig(position="pre", attention=False)
BLOCK = BlockConfig(attention=AttentionConfig(num_heads=2), ffn=FfnConfig(dim=8))
PRE_BLOCK = dataclasses.replace(BLOCK, norm=PRE)
MORE_HEADS = dataclasses.replace(BLOCK, attention=AttentionConfig(num_heads=4))
SIZE = dict(width=8, num_layers=2)
STACK = dict(**SIZE, block=BLOCK)
GLOBAL_BLOCK = dataclasses.replace(BLOCK, attention=AttentionConfig(
    num_heads=2, global_projections=True))
LONG_STACK = StackConfig(**SIZE, block=GLOBAL_BLOCK, pattern=("global_tokens",), window=1)
GRID_STACK = dict(**SIZE, block=PRE_BLOCK)
IMAGE = dict(image=ImageConfig(size=4, channels=1, mean=(0.5,), std=(0.5,)), patch_size=2,
             stack=GridStackConfig(**GRID_STACK))
IMAGE_HEAD = dict(task="classes", outputs=2)
VIT = {**IMAGE, "head": ImageHeadConfig(**IMAGE_HEAD)}
STAGES = dict(kinds="CT", num_layers=(1, 3), widths=(8, 8), strides=(1, 2))
COATNET = dict(image=IMAGE["image"], stem=StemConfig(width=8, stride=1),
               stages=StagesConfig(**STAGES), attention=LayersConfig(head_dim=4),
               head=ImageHeadConfig(**IMAGE_HEAD, pool="mean"))
DECODER = dict(num_layers=1, width=8, num_heads=2, ffn_dim=8)
TOWERS = dict(vocab_size=11, image=IMAGE["image"], patch_size=2, image_stack=IMAGE["stack"],
              text_stack=StackConfig(**GRID_STACK, causal=True, position=Learned(8)),
              projection=ProjectionConfig(width=8))
MAE = {**IMAGE, "decoder": DecoderConfig(**DECODER)}
DETR = dict(
    backbone=BackboneConfig(stages=(1, 1), width=4, kind="basic", stem="strided"), num_queries=3,
    image=PixelConfig(), encoder=dataclasses.replace(DETR_STACK, **STACK),
    decoder=dataclasses.replace(DETR_STACK, **STACK), head=BoxHeadConfig(outputs=2))
PACKED = dict(max_side=3, image=PixelConfig(), patch_size=2,
              stack=GridStackConfig(**GRID_STACK, position=Learned2d()),
              head=HeadConfig(task="classes", outputs=3, pool="mean"))
MODEL = dict(vocab_size=11, stack=StackConfig(**STACK))
TRANSLATOR = dict(vocab_size=11, encoder=StackConfig(**STACK, position=Sinusoidal()),
                  decoder=StackConfig(**STACK, position=Sinusoidal(), causal=True))
READER = dict(head=HeadConfig(task="classes", outputs=1, pool="last"), head_start=1)
GPT = dict(vocab_size=11, stack=StackConfig(**STACK, causal=True))
HEAD = dict(task="classes", outputs=1)
REPLACED = dict(task="replaced", pool="none", transform="gelu")
GENERATOR = dict(num_layers=1, width=8, num_heads=2, ffn_dim=8)
ELECTRA = {**MODEL, "head": HeadConfig(**REPLACED), "generator": GeneratorConfig(**GENERATOR)}
ENCODER = {**MODEL, "head": HeadConfig(**HEAD)}
XLNET = {**ENCODER, "stack": StackConfig(**STACK, position=TransformerXl())}
GRU = CellConfig(kind="gru")
RECURRENT = RecurrentConfig(dim=8)
PROJECTED = RecurrentConfig(dim=8, cell=CellConfig(projection=4))
RNN = dict(vocab_size=11, recurrent=RECURRENT, lm=True)
RNN_ENCDEC = dict(vocab_size=11, encoder=RECURRENT, decoder=RECURRENT, attention=4, readout=8,
                  embedding=RnnEmbeddingConfig(width=8))
CHARACTERS = dict(dim=2, filters=((1, 3),), highways=1, max_length=5)
ELMO = dict(vocab_size=260, characters=CharacterConfig(**CHARACTERS), recurrent=PROJECTED,
            bilm=True, output_vocab_size=11)
SINUSOIDAL = {"layout": ({}, "concatenated"), "inclusive": ({}, True), "base": ({}, 100.0),
              "first_position": ({}, 1)}
SKIPPING = StackConfig(**SIZE, block=dataclasses.replace(
    BLOCK, residual=ResidualConfig(drop_path=0.5)))
STACK_CHANGES = {
    "width": ({}, 16),
    "num_layers": ({}, 3),
    "block": ({}, MORE_HEADS),
    "position_at": (dict(position=Learned()), "layers"),
    "pattern": (dict(pattern=("local",), window=1), ("global", "local")),
    "window": (dict(pattern=("local",), window=1), 2),
    "causal": ({}, True),
    "final_norm": (dict(block=PRE_BLOCK), False),
    "share": ({}, True),
    "remat": ({}, "full"),
    "unroll": ({}, 2),
}

# constructor -> field -> other fields by which it comes to matter, and another value
CHANGES = {
    Decoder: {
        "vocab_size": ({}, 12),
        "stack": ({}, StackConfig(**STACK, causal=True, unroll=2)),
        "embedding": ({}, decoder.EmbeddingConfig(norm=True)),
        "lm": (dict(embedding=decoder.EmbeddingConfig(tie=False)), False),
        "head": ({}, HeadConfig(task="classes", outputs=2)),
        "lora": ({}, LoraConfig(rank=2)),
        "dtype": ({}, "bfloat16"),
    },
    decoder.EmbeddingConfig: {
        "width": ({}, 4),
        "scale": ({}, True),
        "norm": ({}, True),
        "tie": ({}, False),
        "output_scale": ({}, 0.5),
        "init_std": ({}, 0.5),
        "soft_cap": ({}, 3.0),
    },
    EncDec: {
        "vocab_size": ({}, 12),
        "src_vocab_size": (dict(embedding=encdec.EmbeddingConfig(tie=("positions",))), 13),
        "encoder": ({}, StackConfig(**STACK, position=Sinusoidal(), unroll=2)),
        "decoder": ({}, StackConfig(**STACK, position=Sinusoidal(), unroll=2)),
        "share_stacks": ({}, True),
        "embedding": ({}, encdec.EmbeddingConfig(scale=False)),
        "seq2seq": (READER | dict(embedding=encdec.EmbeddingConfig(tie=("source",))), False),
        "head": (READER, HeadConfig(task="classes", outputs=2, pool="last")),
        "head_start": (READER, 2),
        "lora": ({}, LoraConfig(rank=2)),
        "dtype": ({}, "bfloat16"),
    },
    encdec.EmbeddingConfig: {
        "tie": ({}, ("source", "positions")),
        "scale": ({}, False),
        "norm": ({}, True),
        "output_scale": ({}, 0.5),
        "output_bias": ({}, True),
        "init_std": ({}, 0.5),
        "final_dropout": ({}, True),
    },
    Encoder: {
        "vocab_size": ({}, 12),
        "stack": ({}, StackConfig(**STACK, causal=True)),
        "globals": (dict(stack=LONG_STACK), GlobalConfig(tokens="none")),
        "embedding": ({}, encoder.EmbeddingConfig(scale=True)),
        "mlm": ({}, True),
        "masked": (dict(mlm=True), MaskedConfig(use_bias=False)),
        "features": ({}, FeatureConfig((-1,))),
        "head": ({}, HeadConfig(task="classes", outputs=2)),
        "lora": ({}, LoraConfig(rank=2)),
        "dtype": ({}, "bfloat16"),
    },
    Electra: {
        "vocab_size": ({}, 12),
        "stack": ({}, StackConfig(**STACK, unroll=2)),
        "globals": (dict(stack=LONG_STACK), GlobalConfig(tokens="none")),
        "embedding": ({}, encoder.EmbeddingConfig(scale=True)),
        "head": ({}, HeadConfig(**{**REPLACED, "transform": "tanh"})),
        "generator": ({}, GeneratorConfig(num_layers=2, width=8, num_heads=2, ffn_dim=8)),
        "disentangled": ({}, True),
        "lora": ({}, LoraConfig(rank=2)),
        "dtype": ({}, "bfloat16"),
    },
    Xlnet: {
        "vocab_size": ({}, 12),
        "stack": ({}, StackConfig(**STACK, position=Rope())),
        "plm": ({}, True),
        "features": ({}, FeatureConfig((-1,))),
        "head": ({}, HeadConfig(task="classes", outputs=2)),
        "lora": ({}, LoraConfig(rank=2)),
        "dtype": ({}, "bfloat16"),
    },
    GeneratorConfig: {
        "num_layers": ({}, 2),
        "width": ({}, 4),
        "num_heads": ({}, 1),
        "ffn_dim": ({}, 4),
    },
    encoder.EmbeddingConfig: {
        "types": ({}, 0),
        "width": ({}, 4),
        "norm": ({}, False),
        "scale": ({}, True),
        "pad_id": ({}, 3),
    },
    Vit: {
        "image": ({}, ImageConfig(size=8, channels=1, mean=(0.5,), std=(0.5,))),
        "patch_size": ({}, 1),
        "stack": ({}, GridStackConfig(**GRID_STACK, unroll=2)),
        "prefix": ({}, PrefixConfig(registers=1)),
        "stem": (dict(patch_size=1), ResnetConfig((1,), 4, 2)),
        "patch_bias": ({}, False),
        "embed_norm": ({}, True),
        "mask_token": ({}, True),
        "head": ({}, ImageHeadConfig(task="classes", outputs=3)),
        "decoder": ({}, DecoderConfig(**DECODER)),
        "lora": ({}, LoraConfig(rank=2)),
        "dtype": ({}, "bfloat16"),
    },
    Detr: {
        "image": ({}, PixelConfig(mean=(0.4,))),
        "backbone": ({}, BackboneConfig(stages=(1,), width=8, stem="strided")),
        "encoder": ({}, StackConfig(**STACK, unroll=2)),
        "decoder": ({}, StackConfig(**STACK, unroll=2)),
        "places": ({}, PlacesConfig(in_encoder=False)),
        "num_queries": ({}, 4),
        "head": ({}, BoxHeadConfig(outputs=3)),
        "lora": ({}, LoraConfig(rank=2)),
        "dtype": ({}, "bfloat16"),
    },
    PackedVit: {
        "max_side": ({}, 4),
        "image": ({}, PixelConfig(channels=1, mean=(0.5,), std=(0.5,))),
        "patch_size": ({}, 1),
        "stack": ({}, GridStackConfig(**GRID_STACK, position=Learned2d(), unroll=2)),
        "head": ({}, HeadConfig(task="classes", outputs=2, pool="mean")),
        "lora": ({}, LoraConfig(rank=2)),
        "dtype": ({}, "bfloat16"),
    },
    BackboneConfig: {
        "stages": ({}, (1, 2)),
        "width": ({}, 8),
        "kind": ({}, "bottleneck"),
        "stem": ({}, "pooled"),
        "groups": ({}, 2),
    },
    PlacesConfig: {
        "kind": ({}, "learned"),
        "at": ({}, "input"),
        "in_encoder": ({}, False),
        "queries_at": ({}, "input"),
        "base": ({}, 100.0),
        "max_side": (dict(kind="learned"), 9),
    },
    BoxHeadConfig: {
        "outputs": ({}, 3),
        "num_layers": ({}, 2),
    },
    PixelConfig: {
        "channels": (dict(mean=(0.4,), std=(0.4,)), 1),
        "mean": ({}, (0.4,)),
        "std": ({}, (0.4,)),
    },
    CoAtNet: {
        "image": ({}, ImageConfig(size=8, channels=1, mean=(0.5,), std=(0.5,))),
        "stem": ({}, StemConfig(width=4)),
        "stages": ({}, StagesConfig(**{**STAGES, "widths": (4, 8)})),
        "convolution": ({}, MbConvConfig(size=5)),
        "attention": ({}, LayersConfig(head_dim=2)),
        "norm": ({}, NormConfig(position="pre", eps=0.1)),
        "drop_path": ({}, 0.5),
        "init_std": ({}, 0.5),
        "head": ({}, ImageHeadConfig(task="classes", outputs=3, pool="mean")),
        "lora": (dict(lora=LoraConfig(rank=2, names=("in$",))), LoraConfig(rank=3, names=("in$",))),
        "dtype": ({}, "bfloat16"),
    },
    StemConfig: {"num_layers": ({}, 1), "width": ({}, 4), "stride": ({}, 2)},
    StagesConfig: {
        "kinds": ({}, "CC"),
        "num_layers": ({}, (1, 2)),
        "widths": ({}, (8, 4)),
        "strides": ({}, (1, 1)),
    },
    MbConvConfig: {
        "size": ({}, 5),
        "expansion": ({}, 2),
        "squeeze": ({}, 0.0),
        "activation": ({}, "relu"),
    },
    LayersConfig: {
        "head_dim": ({}, 2),
        "expansion": ({}, 2),
        "position": ({}, Sincos2d()),
        "dropout": ({}, 0.5),
        "remat": ({}, "full"),
        "unroll": ({}, 2),
    },
    TwoTowers: {
        "vocab_size": ({}, 12),
        "image": ({}, ImageConfig(size=8, channels=1, mean=(0.5,), std=(0.5,))),
        "patch_size": ({}, 1),
        "image_stack": ({}, GridStackConfig(**GRID_STACK, unroll=2)),
        "tower": ({}, TowerConfig(pool="mean")),
        "text_stack": ({}, StackConfig(**GRID_STACK, position=Learned())),
        "projection": ({}, ProjectionConfig(width=4)),
        "pad_id": ({}, 3),
        "similarity": ({}, SimilarityConfig(log_scale=1.0)),
        "lora": ({}, LoraConfig(rank=2)),
        "dtype": ({}, "bfloat16"),
    },
    TowerConfig: {
        "cls": (dict(pool="mean"), False),
        "pool": ({}, "attention"),
        "embed_norm": ({}, False),
        "patch_bias": ({}, True),
    },
    ProjectionConfig: {
        "width": ({}, 4),
        "image": ({}, False),
        "bias": ({}, True),
    },
    SimilarityConfig: {
        "log_scale": ({}, 1.0),
        "biased": ({}, True),
        "bias": (dict(biased=True), -10.0),
    },
    LoraConfig: {
        "rank": ({}, 3),
        "alpha": ({}, 5.0),
        "dropout": ({}, 0.1),
        "names": ({}, ("ffn/in$",)),
    },
    StackConfig: {**STACK_CHANGES, "position": ({}, T5Bias())},
    GridStackConfig: {
        **STACK_CHANGES,
        "block": ({}, dataclasses.replace(PRE_BLOCK, attention=AttentionConfig(num_heads=4))),
        "position": ({}, Rope2d()),
        "position_at": ({}, "layers"),
    },
    ImageConfig: {
        "size": ({}, 8),
        "channels": ({}, 3),
        "mean": ({}, (0.4,)),
        "std": ({}, (0.4,)),
    },
    PrefixConfig: {
        "cls": ({}, False),
        "distillation": ({}, True),
        "registers": ({}, 2),
    },
    ImageHeadConfig: {
        "task": (dict(outputs=None, task="none"), "embedding"),
        "outputs": ({}, 3),
        "pool": ({}, "attention"),
        "norm": ({}, True),
        "transform": ({}, "tanh"),
        "projection": (dict(task="embedding", outputs=None), 3),
        "distilled": ({}, True),
        "dropout": ({}, 0.5),
        "zero": ({}, True),
    },
    DecoderConfig: {
        "num_layers": ({}, 2),
        "width": ({}, 16),
        "num_heads": ({}, 4),
        "ffn_dim": ({}, 16),
        "masked": ({}, 0.5),
        "normalize": ({}, False),
        "position": ({}, Sincos2d()),
    },
    ResnetConfig: {
        "stages": ({}, (1, 1)),
        "width": ({}, 8),
        "groups": ({}, 4),
    },
    ResidualConfig: {
        "layer_scale": ({}, 0.1),
        "drop_path": ({}, 0.1),
        "uniform": (dict(drop_path=0.5), True),
        "init_std": ({}, 0.5),
    },
    GridPosition: {},
    LearnedGrid: {
        "init": ({}, "sincos"),
        "init_std": ({}, 0.5),
        "of_prefix": ({}, False),
        "of_registers": ({}, False),
        "side": ({}, 3),
        "antialias": (dict(side=3), True),
    },
    Learned2d: {"init_std": ({}, 0.5)},
    Sincos2d: {"base": ({}, 100.0), "order": ({}, "column_row")},
    RelativeBias: {"init_std": ({}, 0.5), "per_layer": ({}, True)},
    Rope2d: {"base": ({}, 50.0), "pairing": ({}, "interleaved")},
    Rnn: {
        "vocab_size": ({}, 12),
        "recurrent": ({}, RecurrentConfig(dim=6)),
        "embedding": ({}, RnnEmbeddingConfig(width=8)),
        "dropout": ({}, 0.5),
        "lm": ({}, False),
        "head": ({}, HeadConfig(**HEAD)),
        "dtype": ({}, "bfloat16"),
    },
    RnnEncDec: {
        "vocab_size": ({}, 12),
        "src_vocab_size": ({}, 13),
        "encoder": ({}, RecurrentConfig(dim=8, bidirectional=True)),
        "decoder": ({}, RecurrentConfig(dim=6)),
        "attention": ({}, 0),
        "bridge": ({}, "copy"),
        "readout": ({}, 0),
        "readout_dropout": ({}, 0.5),
        "embedding": ({}, RnnEmbeddingConfig(width=6)),
        "dtype": ({}, "bfloat16"),
    },
    RnnEmbeddingConfig: {
        "width": ({}, 4),
        "tie": ({}, ("source",)),
        "output_bias": ({}, False),
        "init_std": ({}, 0.5),
        "dropout": ({}, 0.5),
    },
    RecurrentConfig: {
        "cell": ({}, GRU),
        "dim": ({}, 6),
        "num_layers": ({}, 2),
        "bidirectional": ({}, True),
        "residual": (dict(num_layers=2), True),
        "dropout": (dict(num_layers=2), 0.5),
    },
    CellConfig: {
        "kind": ({}, "gru"),
        "projection": ({}, 4),
        "forget_bias": ({}, 1.0),
        "cell_clip": ({}, 0.5),
        "projection_clip": (dict(projection=4), 0.5),
        "reset_after": (dict(kind="gru"), False),
    },
    Elmo: {
        "characters": ({}, CharacterConfig(**{**CHARACTERS, "dim": 3})),
        "recurrent": ({}, dataclasses.replace(PROJECTED, num_layers=2)),
        "max_words": ({}, 3),
        "output_vocab_size": ({}, 12),
        "bilm": ({}, False),
        "features": (dict(head=HeadConfig(**HEAD)), FeatureConfig((1,))),
        "head": ({}, HeadConfig(**HEAD)),
        "dropout": ({}, 0.5),
        "dtype": ({}, "bfloat16"),
    },
    CharacterConfig: {
        "dim": ({}, 3),
        "filters": ({}, ((2, 3),)),
        "highways": ({}, 2),
        "max_length": ({}, 6),
        "activation": ({}, "tanh"),
    },
    BiLm: {"logits_chunk": ({}, 4)},
    FeatureConfig: {
        "layers": ({}, (2,)),
        "combine": (dict(layers=(1, 2)), "sum"),
        "lstm_layers": ({}, 1),
    },
    HeadConfig: {
        "task": (dict(task="embedding", outputs=None), "choice"),
        "outputs": ({}, 3),
        "pool": ({}, "mean"),
        "transform": ({}, "tanh"),
        "norm": (dict(transform="tanh"), True),
        "use_bias": (dict(transform="tanh"), False),
        "output_bias": ({}, False),
        "dropout": ({}, 0.5),
        "both_orders": ({}, True),
        "projection": (dict(task="embedding", outputs=None), 3),
        "normalize": (dict(task="embedding", outputs=None), True),
    },
    BlockConfig: {
        "attention": ({}, AttentionConfig(num_heads=4)),
        "ffn": ({}, FfnConfig(dim=12)),
        "norm": ({}, PRE),
        "residual": ({}, ResidualConfig(layer_scale=0.1)),
        "dropout": ({}, 0.5),
        "init_std": ({}, 0.02),
        "parallel": (dict(norm=PRE), "shared_norm"),
        "convolution": ({}, ConvolutionConfig(size=3)),
        "aligned": ({}, ("attention",)),
    },
    AttentionConfig: {
        "num_heads": (dict(head_dim=4), 4),
        "num_kv_heads": ({}, 1),
        "head_dim": ({}, 6),
        "v_head_dim": ({}, 6),
        "biases": ({}, PROJECTIONS),
        "scale": ({}, 2.0),
        "score": ({}, "additive"),
        "soft_cap": ({}, 2.0),
        "qk_norm": ({}, "head"),
        "dropout": ({}, 0.5),
        "global_projections": ({}, True),
    },
    MaskedConfig: {
        "use_bias": ({}, False),
        "positions": ({}, 6),
    },
    GlobalConfig: {
        "tokens": ({}, "second_text"),
        "separator": ({}, 4),
    },
    ConvolutionConfig: {
        "size": ({}, 5),
        "groups": ({}, 2),
        "activation": ({}, "gelu"),
    },
    FfnConfig: {
        "dim": ({}, 12),
        "activation": ({}, "gelu"),
        "gated": ({}, True),
        "bias": ({}, False),
        "dropout": ({}, 0.5),
        "experts": (dict(bias=False), ExpertsConfig(number=3)),
    },
    ExpertsConfig: {
        "number": ({}, 4),
        "active": ({}, 1),
        "normalize": ({}, False),
        "shared": ({}, 1),
        "balance": ({}, 0.5),
        "z_loss": ({}, 0.5),
    },
    NormConfig: {
        "kind": ({}, "rmsnorm"),
        "position": ({}, "pre"),
        "eps": ({}, 1e-3),
        "bias": ({}, False),
        "unit_offset": (dict(kind="rmsnorm"), True),
        "attention": (dict(position="pre"), False),
    },
    Attention: {
        "config": ({}, AttentionConfig(num_heads=4)),
        "norm": (dict(config=AttentionConfig(num_heads=2, qk_norm="head")),
                 NormConfig(kind="rmsnorm")),
        "init_std": ({}, 0.02),
        "out_init_std": ({}, 0.02),
        "aligned": ({}, True),
        "dtype": ({}, jnp.bfloat16),
    },
    Stack: {
        "config": ({}, StackConfig(**STACK, causal=True)),
        "segments": ({}, (Segment(BLOCK, 3),)),
        "cross": ({}, True),
        "below": (dict(config=SKIPPING), 1),
        "of": (dict(config=SKIPPING), 5),
        "kept_as": (dict(config=StackConfig(**STACK, remat="cheap"), dtype=jnp.bfloat16),
                    jnp.uint16),
        "dtype": ({}, jnp.bfloat16),
    },
    Position: {},
    Sinusoidal: SINUSOIDAL,
    Attached: {**SINUSOIDAL, "cross": ({}, True)},
    Learned: {"max_length": ({}, 99), "init": ({}, "sincos"), "init_std": ({}, 0.5),
              "first_position": ({}, 1)},
    Rope: {"base": ({}, 100.0), "pairing": ({}, "interleaved"), "fraction": ({}, 0.5),
           "scaling": ({}, Linear(factor=2.0)), "local_base": ({}, 50.0),
           "local_scaling": ({}, Linear(factor=2.0))},
    Scaling: {},
    Linear: {"factor": ({}, 2.0)},
    Ntk: {"factor": ({}, 2.0)},
    Llama3: {"factor": ({}, 2.0), "low": ({}, 0.5), "high": ({}, 8.0),
             "original_length": ({}, 2000)},
    Yarn: {"factor": ({}, 2.0), "original_length": ({}, 400), "fast": ({}, 4.0),
           "slow": ({}, 40.0), "attention": ({}, 2.0)},
    Alibi: {},
    Disentangled: {"span": ({}, 8), "max_distance": ({}, 400), "terms": ({}, ("p2c",)),
                   "shared": ({}, False), "norm": ({}, False), "norm_eps": ({}, 0.5),
                   "init_std": ({}, 0.5)},
    T5Bias: {"num_buckets": ({}, 8), "max_distance": ({}, 64), "init_std": ({}, 0.5),
             "per_layer": ({}, True)},
    TransformerXl: {"clamp": ({}, 2), "types": ({}, False), "init_std": ({}, 0.5)},
    Classify: {"loss": ({}, "squared_error"), "label_smoothing": ({}, 0.1),
               "class_weights": ({}, (2.0,)), "focal_gamma": ({}, 2.0), "lm_weight": ({}, 0.5)},
    DistillClasses: {"loss": ({}, "sigmoid"), "label_smoothing": ({}, 0.1), "mixup": ({}, 0.5),
                     "cutmix": ({}, 0.5), "class_weights": ({}, (1.0, 2.0)),
                     "focal_gamma": ({}, 2.0), "kind": ({}, "soft"), "weight": ({}, 0.3),
                     "temperature": (dict(kind="soft"), 2.0)},
    Contrastive: {"temperature": ({}, 0.5), "symmetric": ({}, True)},
    LateInteraction: {"temperature": ({}, 0.5), "symmetric": ({}, True)},
    Cosine: {},
    Dpo: {"loss": ({}, "ipo"), "beta": ({}, 0.3), "label_smoothing": ({}, 0.1)},
    Detection: {"l1": ({}, 1.0), "giou": ({}, 1.0), "no_object": ({}, 0.5),
                "cost": ({}, CostConfig(l1=1.0))},
    CostConfig: {"classes": ({}, 3.0), "l1": ({}, 1.0), "giou": ({}, 1.0)},
    Distill: {"pairs": ({}, False), "temperature": ({}, 3.0), "soft_weight": ({}, 1.0),
              "mlm_weight": ({}, 1.0), "cosine_weight": ({}, 2.0)},
    ImageText: {"loss": ({}, "sigmoid"), "chunk": ({}, 1), "max_scale": ({}, 7.0)},
    Lm: {"label_smoothing": ({}, 0.1), "z_loss": ({}, 1e-3), "logits_chunk": ({}, 4)},
    Mae: {},
    Mlm: {"pairs": ({}, False)},
    Plm: {},
    ReplacedTokens: {"weight": ({}, 2.0)},
    MultiLabel: {"pos_weight": ({}, (2.0,)), "focal_gamma": ({}, 2.0), "lm_weight": ({}, 0.5)},
    MultipleChoice: {"lm_weight": ({}, 0.5)},
    Span: {"lm_weight": ({}, 0.5)},
    Tag: {"lm_weight": ({}, 0.5)},
    Seq2Seq: {"bos_id": ({}, 2), "label_smoothing": ({}, 0.3), "z_loss": ({}, 1e-3),
              "logits_chunk": ({}, 4)},
}

# What every instance is made with beside the above.
REQUIRED = {
    Decoder: GPT,
    EncDec: TRANSLATOR,
    Encoder: ENCODER,
    Electra: ELECTRA,
    Xlnet: XLNET,
    GeneratorConfig: GENERATOR,
    FeatureConfig: dict(layers=(1,)),
    LoraConfig: dict(rank=2),
    Rnn: RNN,
    RnnEncDec: RNN_ENCDEC,
    RnnEmbeddingConfig: dict(width=8),
    RecurrentConfig: dict(dim=8),
    Elmo: ELMO,
    CharacterConfig: CHARACTERS,
    Vit: VIT,
    Detr: DETR,
    PackedVit: PACKED,
    BackboneConfig: dict(stages=(1, 1), width=4, kind="basic", stem="strided"),
    BoxHeadConfig: dict(outputs=2),
    CoAtNet: COATNET,
    StemConfig: dict(width=8, stride=1),
    StagesConfig: STAGES,
    LayersConfig: dict(head_dim=4),
    TwoTowers: TOWERS,
    ProjectionConfig: dict(width=8),
    StackConfig: STACK,
    GridStackConfig: GRID_STACK,
    ImageConfig: dict(size=4, channels=1, mean=(0.5,), std=(0.5,)),
    ImageHeadConfig: IMAGE_HEAD,
    DecoderConfig: DECODER,
    ResnetConfig: dict(stages=(1,), width=4, groups=2),
    HeadConfig: HEAD,
    BlockConfig: dict(attention=BLOCK.attention, ffn=BLOCK.ffn),
    AttentionConfig: dict(num_heads=2),
    GlobalConfig: dict(tokens="first_text", separator=3),
    Llama3: dict(original_length=1000),  # so that a slow pair is between low and high
    ConvolutionConfig: dict(size=3),
    FfnConfig: dict(dim=8),
    ExpertsConfig: dict(number=3),
    Attention: dict(config=AttentionConfig(num_heads=2)),
    Stack: dict(config=StackConfig(**STACK)),
    Seq2Seq: dict(bos_id=1),
}

EXEMPT = {
    (Dpo, "reference"): "a folder to load from: see test_dpo.py",
    (Distill, "teacher"): "a folder to load from: see test_distill.py",
    (DistillClasses, "teacher"): "likewise: see test_image_objectives.py",
    (DistillClasses, "lm_weight"): "refused: see test_with_lm.py",
    (Classify, "mixup"): "of images: see DistillClasses",
    (Classify, "cutmix"): "of images: see DistillClasses",
    (Elmo, "vocab_size"): "one number alone: see test_elmo.py",
    (Electra, "mlm"): "refused: see REFUSED",
    (Electra, "features"): "refused: see REFUSED",
    (Xlnet, "mlm"): "refused: see REFUSED",
    (Xlnet, "embedding"): "refused: see REFUSED",
    (Xlnet, "globals"): "refused: see REFUSED",
    (Xlnet, "masked"): "refused: see REFUSED",
    (Electra, "masked"): "refused: see REFUSED",
    (HeadConfig, "threshold"): "of what is predicted: see test_tasks.py",
    (ImageHeadConfig, "threshold"): "likewise",
    (BoxHeadConfig, "task"): "whether there is a head: see test_detr.py",
    (LearnedGrid, "trained"): "of the optimiser: see test_optim.py",
    (LoraConfig, "trained"): "of the gradient: see test_lora.py",
    (LayersConfig, "kernel"): "likewise of AttentionConfig",
    (AttentionConfig, "kernel"): "all kernels are one function; which runs is in test_attention.py",
}

# Where a field can't matter: constructor, its fields, and the sentence.
REFUSED = [
    (StackConfig, dict(pattern=("local:2",), window=1), "window=1 is for layers of kind local or"),
    (StackConfig, dict(pattern=("global:2",)), "'global:2' is not a kind with a window of its own"),
    (StackConfig, dict(pattern=("local:x",)), "'local:x' is not a kind with a window of its own"),
    (StackConfig, dict(block=GLOBAL_BLOCK), "global_projections=True goes with layers of kind"),
    (StackConfig, dict(block=GLOBAL_BLOCK, pattern=("global_tokens:1",), causal=True),
     "and causal=True"),
    (Encoder, dict(globals=GlobalConfig(tokens="none")), "is for layers of kind 'global_tokens'"),
    (Encoder, dict(globals=GlobalConfig(tokens="first_text"), stack=LONG_STACK),
     "needs globals.separator"),
    (PackedVit, dict(head=HeadConfig(task="classes", outputs=3)), "head.pool='first': no token of"),
    (PackedVit, dict(head=HeadConfig(task="classes", outputs=3, pool="mean", both_orders=True)),
     "head.both_orders is of pairs"),
    (Encoder, dict(embedding=encoder.EmbeddingConfig(pad_id=3)), "fills rows up to a length"),
    (Encoder, dict(masked=MaskedConfig(use_bias=True)), "go with mlm=True"),
    (Electra, dict(masked=MaskedConfig(positions=8)), "go with mlm=True"),
    (Xlnet, dict(masked=MaskedConfig(positions=8)), "go with mlm=True"),
    (Encoder, dict(mlm=True, masked=MaskedConfig(positions=8), stack=StackConfig(
        **SIZE, block=PRE_BLOCK)), "goes with stack.block.norm.position='post'"),
    (Xlnet, dict(globals=GlobalConfig(tokens="none")), "is for layers of kind 'global_tokens'"),
    (StackConfig, dict(window=2), "window=2 is for layers of kind local or global_tokens"),
    (StackConfig, dict(position=Rope(local_base=50.0)), "position.local_base=50.0 is for local"),
    (StackConfig, dict(position=Rope(local_scaling=Linear(factor=2.0))), "local_scaling is for lo"),
    (StackConfig, dict(position_at="layers"), "position_at='layers' is for positions that are"),
    (StackConfig, dict(position=Rope(), position_at="shared"), "and Rope is not; leave it 'stem'"),
    (StackConfig, dict(position=Attached(), position_at="layers"), "and Attached is not"),
    (StackConfig, dict(position=Attached(cross=True)), "position.cross=True is for stacks with"),
    (StackConfig, dict(final_norm=False), "final_norm=False goes with norm.position='pre'"),
    (GridStackConfig, dict(position=Rope2d(), position_at="shared"), "and Rope2d is not"),
    (Vit, dict(stack=GridStackConfig(**GRID_STACK, final_norm=False),
               head=ImageHeadConfig(**IMAGE_HEAD, norm=True)), "stack.final_norm=False: head.norm"),
    (LearnedGrid, dict(init="sincos", init_std=0.5), "position.init_std=0.5 goes with position.i"),
    (LearnedGrid, dict(of_prefix=False, of_registers=False), "of_registers=False goes with posit"),
    (AttentionConfig, dict(score="additive", scale=2.0), "go with attention.score='dot'"),
    (AttentionConfig, dict(score="additive", soft_cap=2.0), "go with attention.score='dot'"),
    (NormConfig, dict(kind="rmsnorm", bias=False), "norm.bias=False goes with norm.kind='layern"),
    (NormConfig, dict(unit_offset=True), "norm.unit_offset=True goes with norm.kind='rmsnorm'"),
    (NormConfig, dict(attention=False), "norm.attention=False goes with norm.position='pre'"),
    (StackConfig, dict(block=dataclasses.replace(
        BLOCK, convolution=ConvolutionConfig(size=3)), causal=True), "sees later places"),
    (StackConfig, dict(block=dataclasses.replace(
        PRE_BLOCK, convolution=ConvolutionConfig(size=3))), "goes with norm.position='post'"),
    (ConvolutionConfig, dict(size=0, groups=2), "go with convolution.size"),
    (Disentangled, dict(norm=False, norm_eps=0.5), "norm_eps=0.5 goes with position.norm=True"),
    (BlockConfig, dict(aligned=("cross",)), "valid are: attention, cross_attention"),
    (StackConfig, dict(block=dataclasses.replace(BLOCK, aligned=("cross_attention",))),
     "this stack has no cross_attention"),
    (BlockConfig, dict(parallel="own_norms"), "goes with norm.position='pre' and"),
    (BlockConfig, dict(parallel="own_norms", norm=NormConfig(position="sandwich")),
     "goes with norm.position='pre' and"),
    (BlockConfig, dict(parallel="shared_norm", norm=PRE_NO_NORM), "and norm.attention=True"),
    (HeadConfig, dict(normalize=True), "head.normalize=True goes with head.task='embedding'"),
    (HeadConfig, dict(norm=True), "head.norm=True goes with a head.transform"),
    (HeadConfig, dict(use_bias=False), "head.use_bias=False goes with a head.transform"),
    (HeadConfig, dict(task="embedding", outputs=None, output_bias=False), "head.output_bias=False"),
    (HeadConfig, dict(task="span", pool="none", outputs=3), "a head for 'span' has 2"),
    (HeadConfig, dict(task="embedding"), "head.outputs=1: head.task='embedding' has none"),
    (HeadConfig, dict(threshold=0.3), "head.threshold=0.3 goes with head.task='multi_label'"),
    (ImageHeadConfig, dict(threshold=0.3), "head.threshold=0.3 goes with head.task='multi_label'"),
    (Classify, dict(loss="sigmoid", class_weights=(1.0,)), "class_weights goes with loss='cross"),
    (Classify, dict(loss="squared_error", focal_gamma=2.0), "focal_gamma with classes, not l"),
    (ImageHeadConfig, dict(task="embedding"), "head.outputs and head.distilled go with"),
    (FeatureConfig, dict(layers=(), combine="sum"), "go with features.layers"),
    (FeatureConfig, dict(layers=(), lstm_layers=1), "go with features.layers"),
    (Encoder, dict(features=FeatureConfig((1,)), head=HeadConfig()), "head.task is 'none'"),
    (Encoder, dict(features=FeatureConfig((1,)), lora=LoraConfig(rank=2)), "leave lora.rank 0"),
    (LoraConfig, dict(rank=0, alpha=2.0), "lora.alpha=2.0 goes with lora.rank above 0"),
    (LoraConfig, dict(rank=0, trained=("embed",)), "lora.trained=.* goes with lora.rank above 0"),
    (ResnetConfig, dict(stages=()), "stem.width and stem.groups go with stem.stages"),
    (Electra, dict(mlm=True), "mlm and features are of model.name='encoder'"),
    (Electra, dict(features=FeatureConfig((1,))), "mlm and features are of model.name='encoder'"),
    (Electra, dict(stack=StackConfig(**STACK, position=Learned(), position_at="layers")),
     "a generator shares the embeddings' positions"),
    (Xlnet, dict(mlm=True), "mlm=True is of model.name='encoder'; 'xlnet' has plm"),
    (Xlnet, dict(embedding=encoder.EmbeddingConfig(types=2, norm=False)), "token embeddings alone"),
    (Xlnet, dict(stack=StackConfig(**STACK, position=Learned())), "a Learned is added to embedd"),
    (Xlnet, dict(stack=StackConfig(**STACK, causal=True)), "'global' and not causal; an order"),
    (EncDec, dict(head_start=1), "head_start=1 goes with a head, and head.task is 'none'"),
    (EncDec, dict(head=HeadConfig(task="classes", outputs=2)), "head_start=None goes with a head"),
    (EncDec, dict(share_stacks=True, lora=LoraConfig(rank=2)), "lora.rank=2 has no place with"),
    (EncDec, dict(src_vocab_size=13), "needs one vocabulary, not 13 source and 11 target tokens"),
]


class Programs:
  """Initialisation of what is configured, its loss, and this with the gradient, as text.

  Each is made when it is looked at.
  """

  def __init__(self, init, loss, inputs):
    self._init, self._loss, self._inputs = init, loss, inputs

  @functools.cached_property
  def _params(self):
    return unbox(shapes_of(self._init, jax.random.key(0))["params"])

  @functools.cached_property
  def shapes(self) -> str:
    return str(self._params)

  @functools.cached_property
  def init(self) -> str:
    drawn = jax.jit(lambda key: unbox(self._init(key))["params"])
    return text_of(drawn.trace(jax.random.key(0)))

  @functools.cached_property
  def forward(self) -> str:
    return self._text(self._loss)

  @functools.cached_property
  def gradient(self) -> str:
    return self._text(jax.value_and_grad(self._loss))

  def _text(self, of_params) -> str:
    return text_of(jax.jit(of_params).trace(self._params, self._inputs, jax.random.key(0)))


def text_of(traced) -> str:
  """A program with its constants, and without the addresses of functions."""
  constants = [np.asarray(x).tobytes() for x in traced.jaxpr.consts]
  return re.sub(r" at 0x\w+", "", str(traced.jaxpr)) + str(constants)


def differ(a: Programs, b: Programs) -> bool:
  """Most fields change what is looked at first, and takes the least time."""
  parts = "shapes", "forward", "init", "gradient"
  return any(getattr(a, part) != getattr(b, part) for part in parts)


def program(instance) -> Programs:
  """What `instance` configures."""
  match instance:
    case EncDec():
      if instance.head.task != "none":
        return text_program(instance, Probe())
      return model_program(instance, Seq2Seq(1))
    case Electra():
      return text_program(instance, Total(ReplacedTokens(), instance))
    case GeneratorConfig():
      return program(Electra(**{**ELECTRA, "generator": instance}))
    case ReplacedTokens():
      model = Electra(**ELECTRA)
      return text_program(model, Total(instance, model))
    case Encoder():  # and Xlnet
      return text_program(instance, Probe())
    case Plm():
      model = Xlnet(**XLNET, plm=True)
      return text_program(model, Total(instance, model))
    case Elmo() if instance.head.task == "none":
      return text_program(instance, Total(BiLm(), instance) if instance.bilm else Hidden(),
                          text_targets=jnp.arange(12).reshape(2, 6) % 7)
    case Elmo():
      return text_program(instance, Probe())
    case CharacterConfig():
      return program(Elmo(**{**ELMO, "characters": instance}))
    case BiLm():
      return text_program(Elmo(**ELMO), Total(instance, Elmo(**ELMO)),
                          text_targets=jnp.arange(12).reshape(2, 6) % 7)
    case RnnEncDec():
      return model_program(instance, Seq2Seq(1))
    case RnnEmbeddingConfig():
      return model_program(RnnEncDec(**{**RNN_ENCDEC, "embedding": instance}), Seq2Seq(1))
    case RecurrentConfig():
      return text_program(Rnn(vocab_size=11, recurrent=instance), Hidden())
    case CellConfig():
      return program(RecurrentConfig(dim=8, cell=instance))
    case Decoder() | Rnn():
      return text_program(instance, Probe() if instance.head.task != "none" else Scores())
    case decoder.EmbeddingConfig():
      return text_program(Decoder(**GPT, embedding=instance), Scores())
    case encdec.EmbeddingConfig():
      return model_program(EncDec(**TRANSLATOR, embedding=instance), Seq2Seq(1))
    case encoder.EmbeddingConfig():
      stack = StackConfig(**STACK, position=Learned())
      whole = {**ENCODER, "stack": stack, "head": HeadConfig(task="embedding")}
      return text_program(Encoder(**whole, embedding=instance), Probe())
    case GridStackConfig():
      return image_program(Vit(**{**VIT, "stack": instance}), Probe())
    case StackConfig():
      return text_program(Encoder(**{**ENCODER, "stack": instance}), Probe())
    case MaskedConfig():
      model = Encoder(**MODEL, mlm=True, head=HeadConfig(task="next_sentence"), masked=instance)
      return text_program(model, Total(Mlm(), model))
    case GlobalConfig():
      return text_program(Encoder(**{**ENCODER, "stack": LONG_STACK}, globals=instance), Probe())
    case FeatureConfig():
      return text_program(Encoder(**ENCODER, features=instance), Probe())
    case LoraConfig():
      return text_program(Encoder(**ENCODER, lora=instance), Probe())
    case HeadConfig():
      return text_program(Encoder(**{**MODEL, "head": instance}), Probe())
    case Vit():
      return image_program(instance, Mae() if instance.decoder.num_layers else Probe())
    case CoAtNet():
      return image_program(instance, Probe())
    case StemConfig() | StagesConfig() | MbConvConfig() | LayersConfig():
      field = {StemConfig: "stem", StagesConfig: "stages", MbConvConfig: "convolution",
               LayersConfig: "attention"}[type(instance)]
      return program(CoAtNet(**{**COATNET, field: instance}))
    case TwoTowers():
      return pair_program(instance, ImageText())
    case Detr():
      return detector_program(instance, Detection())
    case PackedVit():
      return packed_program(instance, Classify())
    case BackboneConfig():
      return program(Detr(**{**DETR, "backbone": instance}))
    case PlacesConfig():
      return program(Detr(**{**DETR, "places": instance}))
    case BoxHeadConfig():
      return program(Detr(**{**DETR, "head": instance}))
    case Detection():
      return detector_program(Detr(**DETR), instance)
    case CostConfig():
      return program(Detection(cost=instance))
    case TowerConfig():
      return pair_program(TwoTowers(**TOWERS, tower=instance), ImageText())
    case ProjectionConfig():
      return pair_program(TwoTowers(**{**TOWERS, "projection": instance}), ImageText())
    case SimilarityConfig():
      return pair_program(TwoTowers(**TOWERS, similarity=instance), ImageText(loss="sigmoid"))
    case ImageText():
      return pair_program(TwoTowers(**TOWERS), instance)
    case PixelConfig() if not isinstance(instance, ImageConfig):
      return program(Detr(**{**DETR, "image": instance}))
    case ImageConfig():
      return image_program(Vit(**{**VIT, "image": instance}), Probe())
    case PrefixConfig():
      head = ImageHeadConfig(**IMAGE_HEAD, pool="mean")
      return image_program(Vit(**{**VIT, "head": head}, prefix=instance), Probe())
    case ImageHeadConfig():
      prefix = PrefixConfig(distillation=True)
      return image_program(Vit(**IMAGE, head=instance, prefix=prefix),
                           Hidden() if instance.task == "none" else Probe())
    case DecoderConfig():
      return image_program(Vit(**IMAGE, decoder=instance), Mae())
    case Mae():
      return program(DecoderConfig(**REQUIRED[DecoderConfig]))
    case ResnetConfig():
      image = dataclasses.replace(VIT["image"], size=16)
      return image_program(Vit(**{**VIT, "image": image, "patch_size": 1}, stem=instance), Probe())
    case ResidualConfig():
      block = dataclasses.replace(PRE_BLOCK, residual=instance)
      return program(GridStackConfig(**SIZE, block=block))
    case GridPosition():
      stack = GridStackConfig(**{**GRID_STACK, "width": 16}, position=instance)
      return image_program(Vit(**{**VIT, "stack": stack}, prefix=PrefixConfig(registers=1)),
                           Probe())
    case DistillClasses():
      model = Vit(**VIT)
      return image_program(model, Total(instance, model))
    case LateInteraction():
      model = Decoder(**GPT, head=HeadConfig(task="token_embeddings", pool="none"))
      return text_program(model, Total(instance, model), matched=jnp.ones((2, 1), int))
    case Contrastive() | Cosine():
      model = Decoder(**GPT, head=HeadConfig(task="embedding"))
      return text_program(model, Total(instance, model), matched=jnp.ones((2, 1), int))
    case Dpo():
      model = Decoder(**GPT)
      return text_program(model, Total(instance, model), preferred=jnp.ones((2, 1), int))
    case Mlm():  # and Distill
      model = Encoder(**MODEL, mlm=True, head=HeadConfig(task="next_sentence"))
      return text_program(model, Total(instance, model))
    case MultiLabel():
      model = Decoder(**GPT, head=HeadConfig(task="multi_label", outputs=1))
      return text_program(model, Total(instance, model), label=jnp.zeros((2, 1, 1), int))
    case Classify() | MultipleChoice():
      model = Decoder(**GPT, head=HeadConfig(**HEAD))
      return text_program(model, Total(instance, model))
    case Span() | Tag():
      model = Decoder(**GPT, head=HeadConfig(task="span", pool="none"))
      return text_program(model, Total(instance, model))
    case Lm():
      return text_program(Decoder(**GPT), instance)
    case Seq2Seq():
      return model_program(EncDec(**TRANSLATOR), instance)
    case BlockConfig():
      own = dict(block=dataclasses.replace(  # for cross-attention
          instance, parallel="none", convolution=ConvolutionConfig()))
      return model_program(translator(dict(block=instance), own), Seq2Seq(1))
    case ConvolutionConfig():
      return program(dataclasses.replace(BLOCK, convolution=instance))
    case FfnConfig():
      return program(dataclasses.replace(BLOCK, ffn=instance))
    case ExpertsConfig():
      ffn = FfnConfig(dim=8, bias=False, experts=instance)
      return model_program(translator({}, dict(block=dataclasses.replace(BLOCK, ffn=ffn))),
                           Told())
    case NormConfig():
      return program(dataclasses.replace(BLOCK, norm=instance))
    case Scaling():
      return program(Rope(scaling=instance))
    case Position():
      fields = dict(position=instance)
      if isinstance(instance, Rope):
        fields |= dict(pattern=("global", "local"), window=1)
      alone = dataclasses.replace(instance, cross=False) if instance.crosses else instance
      return model_program(translator({**fields, "position": alone}, fields), Seq2Seq(1))
    case AttentionConfig():
      return program(Attention(instance))
    case Attention():
      return layer_program(instance, lambda x, ctx: ((x, x), dict(
          kinds=(LayerKind(CAUSAL),), places=ctx.places.replace(causal=True), train=ctx.train,
          rows=Rows(q_flags=SOME, k_flags=SOME))))
    case Stack():
      return layer_program(instance, lambda x, ctx: ((x, ctx), {}))
  raise AssertionError(f"no program for a {type(instance).__name__}")


def translator(of_encoder, of_decoder) -> EncDec:
  """The translator of `TRANSLATOR` with other fields of its stacks."""
  return EncDec(**TRANSLATOR | dict(
      encoder=dataclasses.replace(TRANSLATOR["encoder"], **of_encoder),
      decoder=dataclasses.replace(TRANSLATOR["decoder"], **of_decoder)))


def model_program(model, objective) -> Programs:
  tokens = jnp.arange(12).reshape(2, 6) % 9 + 1
  batch = {f"{side}{suffix}": value for side in ("src", "tgt") for suffix, value in {
      "": tokens, "_segment_ids": tokens * 0 + 1, "_positions": tokens * 0 + jnp.arange(6)}.items()}

  def loss(params, batch, key):
    return objective(model, params, batch, train=True, rngs={"dropout": key})["loss"][0]

  return Programs(lambda key: model.init(key, objective.model_inputs(batch)), loss, batch)


class Probe:
  """The sum of a head's outputs, whatever they are."""

  def model_inputs(self, batch):
    return batch

  def __call__(self, model, params, batch, train, rngs):
    outputs = model.apply({"params": params}, batch, 1, train, rngs=rngs, method="predict")
    return {"loss": (outputs.sum(), 1)}


class Total:
  """What the train step makes of an objective's terms; a model that is taught teaches itself."""

  def __init__(self, objective, model):
    self.objective, self.taught = objective, hasattr(objective, "taught_by")
    if self.taught:
      self.objective = objective.taught_by(model)

  def model_inputs(self, batch):
    return batch

  def __call__(self, model, params, batch, train, rngs):
    extra = {"teacher": params} if self.taught else {}
    sums = self.objective(model, params, batch, train=train, rngs=rngs, **extra)
    weights = self.objective.weights(batch)
    return {"loss": (sum(sums[name][0] / weight for name, weight in weights.items()), 1)}


class Told(Seq2Seq):
  """With the losses that layers have of themselves."""

  def __init__(self):
    super().__init__(1)

  def __call__(self, model, params, batch, **options):
    sums = sums_of(Seq2Seq(1), model, params, batch, **options)
    return {"loss": (sums["loss"][0] + sums["expert_loss"][0], 1)}


class Hidden(Probe):
  """The sum of hidden states."""

  def __call__(self, model, params, batch, train, rngs):
    return {"loss": (model.apply({"params": params}, batch, train, rngs=rngs).sum(), 1)}


class Scores(Probe):
  """The sum of scores of the next token, where the model has them; else of hidden states."""

  def __call__(self, model, params, batch, train, rngs):
    apply = functools.partial(model.apply, {"params": params})
    x = apply(batch, train, rngs=rngs)
    return {"loss": ((apply(x, method="logits") if model.lm else x).sum(), 1)}


def image_program(model, objective) -> Programs:
  size, channels = model.image.size, model.image.channels
  pixels = jnp.arange(2 * size * size * channels).reshape(2, size, size, channels) % 251
  batch = {"image": pixels.astype(jnp.uint8), "label": jnp.array([[0], [1]]),
           "real": jnp.ones((2, 1), int)}

  def loss(params, batch, key):
    return objective(model, params, batch, train=True, rngs={"dropout": key})["loss"][0]

  return Programs(lambda key: model.init(key, objective.model_inputs(batch)), loss, batch)


def packed_program(model, objective) -> Programs:
  """Of two images in a row, and one in another."""
  numbers = model.patch_size**2 * model.image.channels
  segments = jnp.array([[1, 1, 1, 2, 2, 0], [1, 1, 0, 0, 0, 0]])
  places = jnp.array([[[0, 0], [0, 1], [1, 0], [0, 0], [1, 0], [0, 0]], [[0, 0], [0, 1]] * 3])
  batch = {"patch": (jnp.arange(12 * numbers).reshape(2, 6, numbers) % 251).astype(jnp.uint8),
           "patch_places": places, "patch_segment_ids": segments,
           "patch_positions": jnp.array([[0, 1, 2, 0, 1, 0], [0, 1, 0, 0, 0, 0]]),
           "label": jnp.array([[0, 1], [1, 0]]), "real": jnp.array([[1, 1], [1, 0]])}

  def loss(params, batch, key):
    return objective(model, params, batch, train=True, rngs={"dropout": key})["loss"][0]

  return Programs(lambda key: model.init(key, objective.model_inputs(batch)), loss, batch)


def text_program(model, objective, **more) -> Programs:
  tokens = jnp.arange(12).reshape(2, 6) % 9 + 1
  row = {"": tokens, "_segment_ids": tokens * 0 + 1, "_positions": tokens * 0 + jnp.arange(6),
         "_types": tokens % 2, "_answers": tokens % 2}
  names = "text", "choice_0", "choice_1", "chosen", "rejected", "each_0", "each_1"
  batch = {f"{f}{suffix}": value for f in names for suffix, value in row.items()}
  batch |= dict.fromkeys(("label", "start", "end"), jnp.zeros((2, 1), int)) | {"tags": tokens % 2}
  batch |= {"mlm_positions": tokens[:, :2] % 6, "mlm_labels": tokens[:, :2]}
  batch |= more

  def loss(params, batch, key):
    return objective(model, params, batch, train=True, rngs={"dropout": key})["loss"][0]

  return Programs(lambda key: model.init(key, objective.model_inputs(batch)), loss, batch)


def pair_program(model, objective) -> Programs:
  """Of images and their texts."""
  size, channels = model.image.size, model.image.channels
  pixels = jnp.arange(2 * size * size * channels).reshape(2, size, size, channels) % 251
  return text_program(model, Total(objective, model), image=pixels.astype(jnp.uint8),
                      real=jnp.ones((2, 1), int))


def detector_program(model, objective) -> Programs:
  """Of images of two sizes, with an object in one of them."""
  objective = objective.with_model(model)
  pixels = jnp.arange(2 * 64 * model.image.channels).reshape(2, 8, 8, -1) % 251
  batch = {"image": pixels.astype(jnp.uint8), "size": jnp.array([[8, 8], [5, 8]]),
           "boxes": jnp.full((2, 2, 4), 0.5), "box_classes": jnp.array([[1, -1], [-1, -1]])}

  def loss(params, batch, key):
    sums = Total(objective, model)(model, params, batch, train=True, rngs={"dropout": key})
    return sums["loss"][0]

  return Programs(lambda key: model.init(key, objective.model_inputs(batch)), loss, batch)


SOME = {"global": jnp.arange(6)[None] == jnp.array([[0], [2]])}


def layer_program(module, arguments) -> Programs:
  """Of a module; `arguments` gives those of its call, and its keywords, for x and a context."""
  x, memory = jnp.ones((2, 6, 8)), jnp.ones((2, 5, 8))
  places = Places(jnp.broadcast_to(jnp.arange(6), (2, 6)))
  context = lambda memory, train: Context(
      places, memory=Memory(memory, jnp.ones((2, 5), int)), train=train)

  def loss(params, inputs, key):
    x, memory = inputs
    args, keywords = arguments(x, context(memory, True))
    return module.apply({"params": params}, *args, **keywords,
                        rngs={"dropout": key})[0].astype(jnp.float32).sum()

  args, keywords = arguments(x, context(memory, False))
  return Programs(lambda key: module.init(key, *args, **keywords), loss, (x, memory))


@functools.cache
def unchanged(constructor, context: tuple) -> Programs:
  return program(constructor(**{**REQUIRED.get(constructor, {}), **dict(context)}))


# Programs of whole models take longest: they are in the slow set.
FAST = (Attention, AttentionConfig, Stack)
FIELDS = [pytest.param(c, f, marks=[pytest.mark.slow] * (c not in FAST))
          for c in CHANGES for f in config.fields(c) if (c, f) not in EXEMPT]


@pytest.mark.parametrize("constructor, field", FIELDS, ids=lambda x: getattr(x, "__name__", x))
def test_a_field_changes_the_program(constructor, field):
  assert field in CHANGES[constructor], f"add {constructor.__name__}.{field} to CHANGES"
  context, value = CHANGES[constructor][field]
  changed = constructor(**{**REQUIRED.get(constructor, {}), **context, field: value})
  assert differ(program(changed), unchanged(constructor, tuple(context.items())))


@pytest.mark.slow
@pytest.mark.parametrize("constructor", CHANGES, ids=lambda c: c.__name__)
def test_the_same_fields_are_the_same_program(constructor):
  """Without this, a difference would say nothing."""
  make = lambda: constructor(**REQUIRED.get(constructor, {}))
  assert not differ(program(make()), unchanged(constructor, ()))


@pytest.mark.slow
@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize("field", CHANGES[StackConfig])
def test_a_field_of_either_stack_of_a_translator_changes_the_program(side, field):
  context, value = CHANGES[StackConfig][field]
  stack = functools.partial(StackConfig, **{**STACK, **context})
  tie = encdec.EmbeddingConfig(tie=("output",))
  made = lambda stack: EncDec(**{**TRANSLATOR, "embedding": tie, side: stack})
  assert differ(program(made(stack(**{field: value}))), program(made(stack())))


@pytest.mark.parametrize("constructor, fields, message", REFUSED)
def test_a_field_that_would_do_nothing_is_refused(constructor, fields, message):
  with pytest.raises(ConfigError, match=message):
    program(constructor(**{**REQUIRED.get(constructor, {}), **fields})).forward


def test_every_registered_constructor_is_covered():
  registered = {*MODELS.values(), *OBJECTIVES.values(), *POSITIONS.values(),
                *GRID_POSITIONS.values(), *SCALINGS.values()}
  assert registered <= set(CHANGES)


@pytest.mark.parametrize("constructor", list(CHANGES), ids=lambda c: c.__name__)
def test_sections_of_a_covered_constructor_are_covered(constructor):
  for field, (_, default) in config.fields(constructor).items():
    if dataclasses.is_dataclass(default):
      assert type(default) in CHANGES, field


@pytest.mark.slow
def test_choices_are_different_programs():
  """Not only the one alternative of a field, but all of its choices."""
  attention = [AttentionConfig(num_heads=2, qk_norm=q) for q in QK_NORMS]
  attention += [AttentionConfig(num_heads=2, biases=(b,)) for b in PROJECTIONS]
  blocks = [dataclasses.replace(BLOCK, norm=NormConfig(position=p)) for p in NORM_POSITIONS]
  blocks += [dataclasses.replace(BLOCK, ffn=FfnConfig(dim=8, activation=a))
             for a in ACTIVATIONS if a != "relu"]
  blocks += [dataclasses.replace(PRE_BLOCK, parallel=p) for p in PARALLEL if p != "none"]
  positions = [Rope(scaling=s) for s in (Scaling(), Linear(factor=2.0), Ntk(factor=2.0),
                                         Llama3(original_length=1000), Yarn())]
  models = [translator({}, dict(remat=r)) for r in ("dots", "full")]
  learned = translator(*2 * [dict(position=Learned())])  # tables, which can be tied
  models += [learned.clone(embedding=encdec.EmbeddingConfig(tie=tie)) for tie in (
      (), ("source",), ("output",), ("positions",), encdec.TIES)]
  stacks = [StackConfig(**STACK, position=Learned(), position_at=at) for at in POSITION_AT]
  programs = list(map(program, attention + blocks + positions + models + stacks))
  assert len({(p.init, p.gradient) for p in programs}) == len(programs)


def test_no_stale_entries():
  for constructor, changes in CHANGES.items():
    assert set(changes) <= set(config.fields(constructor))
  assert all(field in config.fields(constructor) for constructor, field in EXEMPT)
