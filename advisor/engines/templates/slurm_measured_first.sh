if [ ! -e "$RUN/log.jsonl" ]; then  # the machine is measured first, and the plan made again
    srun --nodes=1 --ntasks=1 --ntasks-per-node=1 "$PYTHON" @arrival@
    status=$?
    [ ! -e "$RUN/@stop_asked@" ] || exit 75
    [ "$status" != @stops@ ] || exit @stops@
fi
[ -e "$RUN/@config_after@" ] || cp run.yaml "$RUN/@config_after@"
