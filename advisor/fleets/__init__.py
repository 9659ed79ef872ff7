"""Plans many runs over few GPUs: what to buy, what to start when, on what, and how likely each deadline is."""
