if [ ! -e "$RUN/log.jsonl" ]; then  # the machine is measured first, and the plan made again
    "$PYTHON" @arrival@ &
    child=$!
    wait "$child"
    status=$?
    while kill -0 "$child" 2>/dev/null; do wait "$child"; done
    [ "$stopped" = no ] || exit 75
    [ "$status" != @stops@ ] || exit @stops@
fi
[ -e "$RUN/@config_after@" ] || cp run.yaml "$RUN/@config_after@"
