"""A corpus that was tokenised once: its files, read and written."""
