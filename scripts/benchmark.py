"""Measure speed and memory: `python scripts/benchmark.py memory`; the same as `helixfold benchmark`.

`python scripts/benchmark.py gpu` measures all of one GPU, with little more than PyTorch installed.
"""

import sys

from helixfold.benchmark import gpu
from helixfold.cli.main import main

if __name__ == "__main__":
    words = sys.argv[1:]
    sys.exit(gpu.main(words[1:]) if words[:1] == ["gpu"] else main(["benchmark", *words]))
