#!/bin/sh
# ./train.sh [--max_steps 8]: the 8 processes of this machine.
# Whatever starts the nodes (train.sbatch, launch/) starts this there. PROGRAM=preflight.py looks at nodes and links, and trains nothing.
set -eu
CDPATH='' cd "$(dirname "$0")"
[ ! -d .venv ] || PATH=$PWD/.venv/bin:$PATH
# shellcheck source=/dev/null
. ./env.sh
export PYTORCH_ALLOC_CONF="${PYTORCH_ALLOC_CONF-expandable_segments:True}"
exec torchrun --standalone --local-addr=localhost --nproc-per-node 8 --shutdown-timeout 600 "${PROGRAM-train.py}" "$@"
