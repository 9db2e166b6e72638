"""Sources of examples: files, archives, embedded sets and TFDS."""
