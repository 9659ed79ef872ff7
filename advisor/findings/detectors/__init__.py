"""Detectors: small functions that turn a case into a finding, into a note that data are missing, or into None."""
