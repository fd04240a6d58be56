"""The demonstration model in the package: its file, its measured accuracy, and the note on its results.

`NAME` is the name of its preset, `WEIGHTS` its parameter file, `FACTS` the file with its accuracy, both in `DIRECTORY`.
`MARK` is the first word of the note.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from helixfold.weights.checkpoint import read_header
from helixfold.weights.load import file_format

NAME = "small"  # of its preset
DIRECTORY = Path(__file__).parent / "packaged"
WEIGHTS, FACTS = DIRECTORY / f"{NAME}.safetensors", DIRECTORY / f"{NAME}.json"
MARK = "DEMONSTRATION"  # first word of its note


@cache
def facts() -> dict[str, Any]:
    """Return the measured accuracy and the training data of the model, from the file `FACTS`; cached."""
    return dict(json.loads(FACTS.read_text(encoding="utf-8")))


def note(*, descendant: bool = False) -> str:
    """Return the warning that the terminal, every output file and the report show.

    With `descendant`, it is for parameters whose training started from the packaged ones.
    """
    measured = facts()
    # On families that are not in the training set.
    alone, template = (each["mean"] for each in (measured["held_out_lddt_ca"], measured["template"]["lddt_ca"]))
    parameters = "parameters trained further from " if descendant else ""
    return (
        f"{MARK}: made by {parameters}'{NAME}', the small model that comes with helixfold, so do not rely on this "
        f"structure. The mean CA-lDDT of '{NAME}' is {alone:.2f} on unseen families, {template:.2f} with a template; "
        "'helixfold weights download' fetches DeepMind's parameters."
    )


def is_packaged(path: Path) -> bool:
    """Return whether the tensors in a file have the checksum of the packaged ones, whatever its name."""
    return file_format(path) == "safetensors" and read_header(path).sha256 == read_header(WEIGHTS).sha256


def ancestor(path: Path) -> str | None:
    """Return the name of the packaged model if a file has its parameters, or parameters trained from them; else None.

    Only files in helixfold's format record this.
    """
    if file_format(path) != "safetensors":
        return None
    return NAME if is_packaged(path) else read_header(path).descends_from
