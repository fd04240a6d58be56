#!/bin/bash
# Training on two to four nodes without a scheduler: run this on each, the first of them before the others.
#
#   HOST=node1 bash train_nodes.sh TRAINING_SET RUN --preset initial_training --layout dap=2
#
# It begins once two nodes are there. A node that comes later joins, and the others go on without one that is lost or
# that is asked to end (SIGTERM), with the same batch and from the last checkpoint, as long as the first is there: that is
# where they meet. RUN is on a disk that the nodes share.
set -euo pipefail

training_set=$1 run=$2
shift 2
# With one store for all attempts, nodes that join later may wait for addresses that are not written again.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1

exec torchrun \
    --nnodes 2:4 --nproc-per-node gpu \
    --rdzv-backend c10d --rdzv-endpoint "$HOST:29500" --rdzv-id "$(basename "$run")" \
    --rdzv-conf last_call_timeout=60 --max-restarts 100 --shutdown-timeout 300 \
    -m helixfold.cli.main train "$training_set" --output "$run" --workers 7 --timeout 300 "$@"
