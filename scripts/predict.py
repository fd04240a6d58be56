"""Predict structures: `python scripts/predict.py FILE.fasta --output DIR`; the same as `helixfold predict`."""

import sys

from helixfold.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["predict", *sys.argv[1:]]))
