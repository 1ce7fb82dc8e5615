#!/bin/bash
# bash launch/ssh.sh node-1 … node-2 [-- --max_steps 8]: starts the training on 2 hosts, and ends with it. They see this folder under one
# path, know the first by its name here, and take your key. Ctrl-C saves on all of them.
set -euo pipefail
CDPATH='' cd "$(dirname "$0")/.."

hosts=() count=0
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    hosts+=("$1") count=$((count + 1))
    shift
done
[ $# -eq 0 ] || shift
if [ "$count" -ne 2 ]; then
    echo "launch/ssh.sh: $count hosts, and the plan is for 2 (perfgen update plans for another number)" >&2
    exit 2
fi

start="cd $(printf %q "$PWD") && exec env MASTER_ADDR=$(printf %q "${hosts[0]#*@}") ./train.sh"
[ $# -eq 0 ] || start+=$(printf ' %q' "$@")
declare -A running
# -tt: the training has a terminal, and saves where that closes; ServerAlive: a host that no longer answers has ended
for host in "${hosts[@]}"; do
    ssh -tt -o BatchMode=yes -o ServerAliveInterval=15 -o ServerAliveCountMax=4 "$host" "$start" </dev/null &
    running[$host]=$!
done
trap 'kill "${running[@]}" 2>/dev/null || true' INT TERM HUP

code=0
while [ -n "${!running[*]}" ]; do
    wait -n "${running[@]}" || true # a signal ends it too
    for host in "${!running[@]}"; do
        kill -0 "${running[$host]}" 2>/dev/null && continue
        status=0
        wait "${running[$host]}" || status=$?
        unset "running[$host]"
        [ "$status" -ne 0 ] && [ "$code" -eq 0 ] || continue
        code=$status
        echo "launch/ssh.sh: $host ended with $status; the others are told to save and end" >&2
        [ -z "${!running[*]}" ] || kill "${running[@]}" 2>/dev/null || true
    done
done
exit "$code"
