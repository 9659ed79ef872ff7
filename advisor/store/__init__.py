"""Reads and writes calibrations, plans, run folders, the index of runs and the ledger of scores."""
