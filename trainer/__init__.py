"""A pre-training loop for small language models: one config file in, one run folder out."""
