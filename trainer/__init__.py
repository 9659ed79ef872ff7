"""A pre-training loop for small language models. It reads one configuration file and writes one run folder."""
