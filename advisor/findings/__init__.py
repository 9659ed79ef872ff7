"""Detectors: each a small function from a case to a finding, an admission of missing data, or nothing."""
