"""Use of trained models: decoding, translation, and predictions for texts and images."""
