"""Tokenizers, their kinds, and encodings of texts and pairs."""
