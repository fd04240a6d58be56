"""Measure speed and memory: `python scripts/benchmark.py memory`; the same as `helixfold benchmark`.

`python scripts/benchmark.py gpu` runs all measurements of one GPU and needs little more than PyTorch.
"""

import sys

from helixfold.benchmark import gpu
from helixfold.cli.main import main

if __name__ == "__main__":
    words = sys.argv[1:]
    sys.exit(gpu.main(words[1:]) if words[:1] == ["gpu"] else main(["benchmark", *words]))
