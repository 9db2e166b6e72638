"""Ops on examples, documents, images and batches, which a config lists in order."""
