"""Train a model: `python scripts/train.py TRAINING_SET --output DIR`; the same as `helixfold train`.

On several GPUs: `torchrun --nproc-per-node 8 --max-restarts 3 scripts/train.py TRAINING_SET --output DIR`.
"""

import sys

from helixfold.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
