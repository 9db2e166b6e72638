"""Commands that start training on several processes or machines."""
