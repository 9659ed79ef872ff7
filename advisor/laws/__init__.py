"""Published laws and shared thresholds, independent of profiles and hardware."""
