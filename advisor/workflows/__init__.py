"""Use cases, one file each: the only place that joins rooms. They print nothing."""
