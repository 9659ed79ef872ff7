#!/usr/bin/env bash
@options@
cd "$SLURM_SUBMIT_DIR"
@here@
exec "$PYTHON" @command@
