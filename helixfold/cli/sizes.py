"""Sizes and counts on the command line."""

import argparse


def positive(word: str) -> int:
    """A whole number of at least 1."""
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {word!r}")
    return int(word)
