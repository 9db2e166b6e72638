"""Everything that opens or writes a model's folder: checkpoints, workdirs, pretrained models."""
