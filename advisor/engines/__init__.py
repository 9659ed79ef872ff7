"""Where runs are started: one backend an engine; jobs, guards and the state of a run are the same for all."""
