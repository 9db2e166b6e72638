"""Data: sources, tokenizers, ops and the pipeline that makes batches of them."""


class DataError(ValueError):
  """Data that can't be used; the message is one sentence that names the file or dataset."""
