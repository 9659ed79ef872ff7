"""Checks of a plan or report on paper: they turn a run card into one verdict for each claim."""
