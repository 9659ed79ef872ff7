"""What became of runs: scored against their plans, held against each other, kept in the ledger."""
