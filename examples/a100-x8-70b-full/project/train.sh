#!/bin/sh
# ./train.sh [--max_steps 8]: the 4 processes of this machine.
# Whatever starts the nodes (train.sbatch, launch/) starts this there. PROGRAM=preflight.py looks at nodes and links, and trains nothing.
set -eu
CDPATH='' cd "$(dirname "$0")"
[ ! -d .venv ] || PATH=$PWD/.venv/bin:$PATH
# shellcheck source=/dev/null
. ./env.sh
export PET_SHUTDOWN_TIMEOUT="${PET_SHUTDOWN_TIMEOUT-2100}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS-32}"
export PYTORCH_ALLOC_CONF="${PYTORCH_ALLOC_CONF-pinned_max_round_threshold_mb:64,pinned_max_cached_size_mb:64,expandable_segments:True}"
exec accelerate launch --config_file accelerate.yaml "${PROGRAM-train.py}" "$@"
