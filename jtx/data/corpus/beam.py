"""Writing a prepared corpus with Apache Beam, on more than one machine.

Beam's workers need jtx, the sources and the output folder, under the same paths. A shard that
Beam tries twice, or in two places at once, has the same bytes.
"""

from typing import Iterator, Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from jtx.data.corpus import writer


class MakeShard(beam.DoFn):
  """Numbers of shards in, the same out when they are made."""

  def __init__(self, plan: writer.Plan):
    self.plan = plan.closed()

  def setup(self) -> None:
    self.plan = self.plan.opened()

  def process(self, number: int) -> Iterator[int]:
    writer.make_shard(self.plan, number)
    yield number


def make_shards(plan: writer.Plan, arguments: Sequence[str]) -> None:
  """Makes all shards; `arguments` are those of a Beam pipeline, such as --runner=..."""
  with beam.Pipeline(options=PipelineOptions(list(arguments))) as pipeline:
    numbers = pipeline | "Shards" >> beam.Create(range(len(plan.shards)))
    numbers | "Spread" >> beam.Reshuffle() | "Make" >> beam.ParDo(MakeShard(plan))
