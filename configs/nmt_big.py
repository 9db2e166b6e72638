"""Transformer big (Vaswani et al. 2017); see `nmt_base`, whose arguments it takes."""

from . import nmt_base

PRESETS = nmt_base.PRESETS[2:]


def get_config(arg: str = ""):
  return nmt_base.get_config(f"big,{arg}")
