"""Convert model parameters: `python scripts/convert_weights.py --help`; the same as `helixfold weights convert`."""

import sys

from helixfold.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["weights", "convert", *sys.argv[1:]]))
