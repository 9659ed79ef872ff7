"""Any training log in, one table out: a sniffer and one small file per format."""
