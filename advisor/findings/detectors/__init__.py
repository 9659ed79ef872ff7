"""One small function a detector: a case in, a finding, what is missing for one, or None out."""
