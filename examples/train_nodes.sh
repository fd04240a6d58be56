#!/bin/bash
# Training on two to four nodes without a scheduler: run this on each node, on the first node first.
#
#   HOST=node1 bash train_nodes.sh TRAINING_SET RUN --preset initial_training --layout dap=2
#
# Training starts with two nodes, and later nodes join. If a node is lost or receives SIGTERM, the others continue from
# the last checkpoint with the same batch size. The first node must stay, because it hosts the rendezvous. RUN is on a
# disk that the nodes share.
set -euo pipefail

training_set=$1 run=$2
shift 2
# With one store for all attempts, nodes that join later might wait for addresses that are never written again.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1

exec torchrun \
    --nnodes 2:4 --nproc-per-node gpu \
    --rdzv-backend c10d --rdzv-endpoint "$HOST:29500" --rdzv-id "$(basename "$run")" \
    --rdzv-conf last_call_timeout=60 --max-restarts 100 --shutdown-timeout 300 \
    -m helixfold.cli.main train "$training_set" --output "$run" --workers 7 --timeout 300 "$@"
