"""Use cases, one per file. Only this package combines the others. Nothing here prints."""
