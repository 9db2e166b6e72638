"""Data: sources, tokenizers, ops and the pipeline that makes batches of them."""
