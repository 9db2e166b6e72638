"""Compiling ahead of time for chips that are not here, and reading what was compiled."""
