"""What trained models answer: decoding, translation, texts and images."""
