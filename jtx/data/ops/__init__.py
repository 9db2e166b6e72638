"""Data ops, which a config lists in order."""
