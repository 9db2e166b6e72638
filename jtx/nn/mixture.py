"""The fields of a mixture of experts; `jtx.nn.experts` makes it."""

import dataclasses
from typing import Any

from jtx.errors import ConfigError
from jtx.ranges import NotNegative, Size, SizeOrNone


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertsConfig:
  """The fields of a mixture of experts (Shazeer et al. 2017; Jiang et al. 2024).

  No token is dropped: experts have room for as many as come.
  """
  number: SizeOrNone = 0  # 0: there are none, and the feed-forward sub-layer is one
  active: Size = 2  # experts of a token
  normalize: bool = True  # their weights add up to 1; else they are of a softmax over all experts
  shared: SizeOrNone = 0  # as wide as so many experts: what every token takes as well
  balance: NotNegative = 0.01  # weight of the balance loss (Fedus et al. 2021, equation 4)
  z_loss: NotNegative = 0.001  # weight of the router's z-loss (Zoph et al. 2022, equation 5)

  def __post_init__(self):
    if self.number and self.active > self.number:
      raise ConfigError(f"experts.active={self.active} is more than experts.number={self.number}")
    for name in ("active", "normalize", "shared", "balance", "z_loss"):
      if not self.number and (value := getattr(self, name)) != getattr(ExpertsConfig, name):
        raise ConfigError(f"experts.{name}={value} goes with experts.number of 1 or more")

  def check(self, ffn: Any) -> None:
    """Raises ConfigError where experts can't be of the kind that the fields of `ffn` say."""
    if self.number and (ffn.bias or ffn.dropout):
      raise ConfigError("ffn.experts go with ffn.bias=False and ffn.dropout=0")
