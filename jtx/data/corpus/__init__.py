"""Prepared corpora: tokenised once, written to files, read at random."""
