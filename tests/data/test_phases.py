"""Phases: streams with rows of other lengths, one after the other."""

import numpy as np
import pytest

from jtx.data.ops.pretrain import DocSentences, SegmentPair
from jtx.data.packing import Pad
from jtx.data.phases import Begun, Phases
from jtx.data.pipeline import iterate
from tests.data.streams import (
    PAD, assert_same, assert_same_all, document_stream, documents_of, prepared_of, stream_of)


@pytest.fixture(scope="module")
def two_phases(corpus):
  """A function that makes Phases of 4 steps of 8 short rows, then 4 longer ones."""
  prepared, recipe = documents_of(corpus, SegmentPair())
  long = recipe._replace(layout=Pad(("text",), (48,)))

  def make(rows=(None, None), cursor=(0, 0), active=0):
    cursors = [cursor if i == active else (0, 0) for i in range(2)]
    return Phases([
        document_stream(prepared, recipe, window=4, rows=rows[0], cursor=cursors[0]),
        document_stream(prepared, long, window=4, seed=5 + (1 << 32), batch_size=4, rows=rows[1],
                        cursor=cursors[1])], [0, 4])
  return make


def test_phases_change_batches_at_their_steps(two_phases):
  phases = two_phases()
  sizes = [phases.batch_size(step) for step in range(9)]
  assert sizes == [8] * 4 + [4] * 5
  batches = [phases.batch(step) for step in range(9)]
  assert [batch["text"].shape for batch in batches] == [(8, 24)] * 4 + [(4, 48)] * 5
  assert [batch["mlm_labels"].shape[1] for batch in batches] == [4] * 4 + [7] * 5  # 15 %
  assert max(int((b["text_segment_ids"] > 0).sum(1).max()) for b in batches[4:]) > 40
  alone = two_phases().streams
  for step in range(9):
    assert_same(batches[step], alone[step >= 4].batch(step - 4 * (step >= 4)))
  assert_same_all(iterate(phases, 2, 7, threads=2, workers=0), batches[2:7])


def test_phases_resume_by_cursor_within_a_phase(two_phases):
  whole = two_phases()
  batches = [whole.batch(step) for step in range(12)]
  assert whole.cursor(4) == (0, 0) != whole.cursor(3)
  assert whole.cursor(11)[0] > 0  # in another window than the phase began in
  for step in range(12):
    resumed = two_phases(cursor=whole.cursor(step), active=int(step >= 4))
    assert resumed.cursor(step) == whole.cursor(step)
    assert_same_all((resumed.batch(s) for s in range(step, 12)), batches[step:])


def test_phases_are_read_in_parts(two_phases):
  whole = two_phases()
  parts = [two_phases(rows=(range(4), range(2))), two_phases(rows=(range(4, 8), range(2, 4)))]
  for step in (0, 3, 4, 8):
    joined = [part.batch(step) for part in parts]
    assert_same({k: np.concatenate([j[k] for j in joined]) for k in joined[0]}, whole.batch(step))


def test_a_phase_without_steps_is_passed_over(corpus):
  prepared, recipe = documents_of(corpus, DocSentences())
  streams = [document_stream(prepared, recipe, batch_size=n) for n in (1, 2, 3)]
  phases = Phases(streams, [0, 2, 2])
  assert [phases.batch_size(step) for step in range(4)] == [1, 1, 3, 3]


def test_epochs_go_on_with_data_of_another_size():
  """At half an epoch of 40 examples, 80 others take their place, a row each."""
  lengths = dict(layout=PAD, batch_size=10, window=0)
  small, large = (prepared_of(number, layout=PAD) for number in (40, 80))
  before = Phases([stream_of(small, **lengths)], [0])
  assert [before.epochs(step) for step in (0, 2, 4, 10)] == [0, 0.5, 1, 2.5]
  for step, expected in ((2, [0.5, 0.625, 0.75]), (4, [1, 1.125, 1.25]), (10, [2.5, 2.625, 2.75])):
    begun = Begun(step, before.epochs(step))
    after = Phases([stream_of(large, cursor=before.cursor(step), **lengths)], [0], begun)
    assert [after.epochs(step + i) for i in range(3)] == expected
    same = Phases([stream_of(small, cursor=before.cursor(step), **lengths)], [0], begun)
    for later in range(step, step + 20):
      assert same.epochs(later) == before.epochs(later)


def test_a_later_phase_counts_its_own_epochs(two_phases):
  whole = two_phases()
  for step, active in ((3, 0), (4, 1), (6, 1)):
    resumed = two_phases(cursor=whole.cursor(step), active=active)
    resumed.begun = Begun(step, 9.0)
    more = 9.0 - whole.epochs(step)
    for later in range(step, 9):
      in_phase = (later > 4) == (step > 4)
      assert resumed.epochs(later) == pytest.approx(whole.epochs(later) + more * in_phase)
