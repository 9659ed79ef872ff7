# What is done on the other side of `ssh`, in plain sh: a section is sent by its name. Nothing here is composed of what a
# person typed: words come as arguments. There, under ~/.training-advisor: runs/ID with the export and the run folder
# `run`, data/FINGERPRINT and envs/HASH.

#: here
# A run holds its lock for life, and its children with it: no pid that was used again is taken for it.
cd "$HOME/@root@/runs/$1" 2>/dev/null || { printf '\001advisor gone\n'; exit 0; }
held() { [ -e lock ] && ! flock -n lock true; }

#: python
for python in "${BASE_PYTHON:-python3}" python3.12 python3.13 python3.11; do
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break
    python=
done

#: check
printf '\001advisor here\n'
for tool in bash tar flock setsid nohup; do command -v "$tool" >/dev/null || echo "missing $tool"; done
@python@
[ -n "$python" ] && echo "python $("$python" -V 2>&1)" || echo "missing python3.11 or newer"
echo "free $(df -Pk "$HOME" | awk 'NR == 2 {print $4}')"
nvidia-smi --query-gpu=name,memory.total,memory.used --format=csv,noheader,nounits 2>/dev/null | sed 's/^/card /'
exit 0

#: unpack
mkdir -p "$HOME/@root@/$1" && tar -xf - -C "$HOME/@root@/$1"

#: size
file="$HOME/@root@/$1"; [ -e "$file" ] && size=$(wc -c < "$file") || size=0
printf '\001advisor %s\n' $size

#: append
file="$HOME/@root@/$1"; mkdir -p "$(dirname "$file")" && cat >> "$file"

#: start
@here@
exec 9> lock
flock -n 9 || { echo "the run is going on there already" >&2; exit 1; }
mkdir -p run && rm -f run/stop-asked
setsid nohup bash start.sh < /dev/null >> run/stdout.log 2>&1 &
echo $! > pid
printf '\001advisor started\n'

#: look
# $2, $3: what is here already of the log and of what was printed; $4: the most bytes to send of each; $5: the log
@here@
if held; then state=running; elif [ -e lock ]; then state=over; else state=gone; fi
size() { [ -e "$1" ] && wc -c < "$1" || echo 0; }
part() { n=$(($1 - $2)); [ $n -gt "$3" ] && n=$3; [ $n -gt 0 ] || n=0; echo $n; }
log=$(size "run/$5") out=$(size run/stdout.log)
some=$(part $log $2 $4) more=$(part $out $3 $4)
printf '\001advisor %s %s %s %s %s\n' $state $log $some $out $more
[ $some -eq 0 ] || tail -c +$(($2 + 1)) "run/$5" | head -c $some
[ $more -eq 0 ] || tail -c +$(($3 + 1)) run/stdout.log | head -c $more

#: rest
@here@
printf '\001advisor rest\n'
cd run && exec tar -cf - --exclude=./checkpoints --exclude="./$2" --exclude=./stdout.log .

#: saved
@here@
printf '\001advisor checkpoints\n'; mkdir -p run/checkpoints; cd run && exec tar -cf - checkpoints

#: measured
# What is not there is not sent: an empty list of files is none to tar.
@here@
printf '\001advisor measured\n'; cd run && set --
for name in @files@; do [ -e "$name" ] && set -- "$@" "$name"; done
exec tar -cf - -T /dev/null "$@"

#: stop
@here@
held || exit 0
touch run/stop-asked
pid=$(cat pid)
kill -TERM "$pid" 2>/dev/null || kill -TERM -- "-$pid"

#: kill
# The workers of torchrun have sessions of their own: who descends from the run is found by its parents.
@here@
held || exit 0
pid=$(cat pid)
cat /proc/[0-9]*/status 2>/dev/null | awk '/^Pid:/ {p = $2} /^PPid:/ {print p, $2}' | awk -v root="$pid" '
    {up[$1] = $2}
    END {for (p in up) for (a = p; a > 1; a = up[a]) if (a == root) {print p; break}}' | xargs -r kill -KILL
kill -KILL -- "-$pid" 2>/dev/null
exit 0

#: start_script
#!/usr/bin/env bash
# Makes the environment in ~/@root@/envs/@environment@ where there is none yet, then runs run.sh
set -euo pipefail
cd "$(dirname "$0")"
env=$HOME/@root@/envs/@environment@
trap 'trap "" TERM; kill -TERM 0; exit 75' TERM
@python@
mkdir -p "$env"
(flock 8; cp setup.sh requirements.txt "$env"; BASE_PYTHON=$python bash "$env/setup.sh") 8> "$env/lock" &
wait $!
trap - TERM
export PYTHON="$env/.venv/bin/python" RUN="$PWD/run"
exec bash run.sh
