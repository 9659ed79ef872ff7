"""Readers that turn any training log into one table: a sniffer, and one small file per format."""
