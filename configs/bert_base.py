"""BERT Base (Devlin et al. 2019); see bert.py, whose arguments it takes."""

from . import bert

PRESETS = ("tiny",)


def get_config(arg: str = ""):
  return bert.get_config(f"base,{arg}")
