"""A package, so that a `tests` of another distribution among the installed ones does not take its place."""
