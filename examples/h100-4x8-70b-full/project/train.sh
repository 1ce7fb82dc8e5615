#!/bin/sh
# MASTER_ADDR=<the first node> ./train.sh [--max_steps 8]: the 8 processes of this node; on each of the 4 nodes within ten minutes.
# Whatever starts the nodes (train.sbatch, launch/) starts this there. PROGRAM=preflight.py looks at nodes and links, and trains nothing.
set -eu
CDPATH='' cd "$(dirname "$0")"
[ ! -d .venv ] || PATH=$PWD/.venv/bin:$PATH
: "${MASTER_ADDR:?the node at which all meet}"
# shellcheck source=/dev/null
. ./env.sh
exec python meeting.py --nodes 4 --port 29500 torchrun --nnodes 4 --nproc-per-node 8 --shutdown-timeout 2040 --rdzv-backend c10d --rdzv-conf read_timeout=600 --rdzv-endpoint "$MASTER_ADDR:29500" "${PROGRAM-train.py}" "$@"
