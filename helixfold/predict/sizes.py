"""Sizes and counts on the command line."""

import argparse
import re


def positive(word: str) -> int:
    """Return a whole number of at least 1."""
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {word!r}")
    return int(word)


def memory_size(word: str) -> int:
    """Return the bytes of a size such as 8GiB, 6000MB or 16G; what is named without a B is binary."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]+)?) ?([KMGT])(i?B|)", word, re.IGNORECASE)
    if found is None or not float(found[1]):
        raise argparse.ArgumentTypeError(f"must be a size with its unit, such as 8GiB or 6000MB, got {word!r}")
    base = 1000 if found[3].lower() == "b" else 1024
    return int(float(found[1]) * base ** ("KMGT".index(found[2].upper()) + 1))
