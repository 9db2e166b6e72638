"""The tables of names between Hugging Face's model families and jtx, one a file."""
