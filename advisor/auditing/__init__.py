"""The checks applied to a plan or report on paper: a run card in, a verdict per claim out."""
