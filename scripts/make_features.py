"""Make features: `python scripts/make_features.py --structures DIR -o STORE`; the same as `helixfold features`."""

import sys

from helixfold.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["features", *sys.argv[1:]]))
