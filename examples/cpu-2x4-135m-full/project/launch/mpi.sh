#!/bin/bash
# bash launch/mpi.sh HOSTFILE [--max_steps 8]: Open MPI starts one launcher on each of 2 nodes; its 4 processes talk over gloo.
# HOSTFILE: a name a line. The nodes see this folder under one path.
set -euo pipefail
CDPATH='' cd "$(dirname "$0")/.."

hostfile=${1:?a file with the names of 2 nodes}
shift
MASTER_ADDR=$(awk '!/^[[:space:]]*(#|$)/ { print $1; exit }' "$hostfile")
export MASTER_ADDR
# --bind-to none: one launcher a node, whose processes share all of its cores
exec mpirun --hostfile "$hostfile" -n 2 --map-by ppr:1:node --bind-to none -x MASTER_ADDR ./train.sh "$@"
