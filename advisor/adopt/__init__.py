"""Any command that trains, made a citizen: its knobs found, measured in short bursts, planned, guarded."""
