"""Published laws and shared thresholds, one implementation each; they know no profile and no hardware."""
