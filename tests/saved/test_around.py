"""Which tokens stand around the texts of runs whose pairs are made of documents."""

import pytest

from configs import bart, t5
from jtx.data.dataset import Dataset
from jtx.saved import speaking
from jtx.saved.folder import Run


@pytest.mark.slow
@pytest.mark.parametrize("config, size, begin, start", [
    (t5, "t5_small", False, "begin"), (bart, "bart_base", True, "end")])
def test_texts_are_read_as_they_were_in_pretraining(config, size, begin, start):
  """T5's inputs have an end token alone, BART's a begin token, too; an export's as well."""
  c = config.get_config(f"{size},tiny")
  run = Run("nowhere")
  run.config, run.data = c, Dataset(c.data, c.tokenizer)
  data = run.data
  batch = next(iter(data.eval_batches(c.evals.val.source, 8, range(8))))
  tokenizer, used = data.tokenizers["text"], batch["src_segment_ids"][:, 0] > 0
  assert used.any()
  assert set(batch["src"][used, 0] == tokenizer.bos_id) == {begin}
  assert data.around == (begin, True)
  assert run.originals().bare is not begin
  assert speaking.around_texts(run) == (begin, start)
