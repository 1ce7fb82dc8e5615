#!/bin/sh
# MASTER_ADDR=<the first node> ./train.sh [--max_steps 8]: the 8 processes of this node; on each of the 2 nodes within ten minutes.
# Whatever starts the nodes (train.sbatch, launch/) starts this there. PROGRAM=preflight.py looks at nodes and links, and trains nothing.
set -eu
CDPATH='' cd "$(dirname "$0")"
[ ! -d .venv ] || PATH=$PWD/.venv/bin:$PATH
: "${MASTER_ADDR:?the node at which all meet}"
# shellcheck source=/dev/null
. ./env.sh
export PET_SHUTDOWN_TIMEOUT="${PET_SHUTDOWN_TIMEOUT-600}"
exec python meeting.py --nodes 2 --port 29500 accelerate launch --config_file accelerate.yaml --rdzv_conf read_timeout=600 --main_process_ip "$MASTER_ADDR" "${PROGRAM-train.py}" "$@"
