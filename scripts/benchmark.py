"""Measure speed and memory: `python scripts/benchmark.py memory`; the same as `helixfold benchmark`."""

import sys

from helixfold.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["benchmark", *sys.argv[1:]]))
