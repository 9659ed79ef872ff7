"""Programs that train, each behind one adapter."""
