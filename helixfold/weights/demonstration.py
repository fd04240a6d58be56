"""The model in the package: its file, what is known of it, and what every reader of its results is told."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from helixfold.weights.checkpoint import read_header
from helixfold.weights.load import file_format

NAME = "small"  # of its preset
DIRECTORY = Path(__file__).parent / "packaged"
WEIGHTS, FACTS = DIRECTORY / f"{NAME}.safetensors", DIRECTORY / f"{NAME}.json"
MARK = "DEMONSTRATION"  # what its note begins with


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean over chains with its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is said of the model wherever it is used; the model card says the rest."""

    parameters: int
    training_chains: int
    held_out_chains: int  # of clusters that training never saw
    held_out_lddt_ca: Interval  # 0 to 1


@cache
def facts() -> Facts:
    """As they were measured when the model was made."""
    values = json.loads(FACTS.read_text(encoding="utf-8"))
    return Facts(
        parameters=int(values["parameters"]),
        training_chains=int(values["training_chains"]),
        held_out_chains=int(values["held_out_chains"]),
        held_out_lddt_ca=Interval(
            **{name: float(values["held_out_lddt_ca"][name]) for name in ("mean", "low", "high")}
        ),
    )


def note() -> str:
    """What the terminal, every file and the report say."""
    known = facts()
    score = known.held_out_lddt_ca
    return (
        f"{MARK}: made by '{NAME}', the small model that comes with helixfold ({known.parameters / 1e6:.1f} "
        f"million parameters, trained on {known.training_chains:,} chains); on {known.held_out_chains:,} chains unlike "
        f"those, its mean CA-lDDT is {score.mean:.2f} ({score.low:.2f} to {score.high:.2f}) of 1, so do not rely on "
        "this structure; 'helixfold weights download' fetches DeepMind's parameters, which are then used"
    )


def is_of_package(path: Path) -> bool:
    """Whether a file holds just the package's parameters, whatever it is called."""
    return file_format(path) == "safetensors" and read_header(path).sha256 == read_header(WEIGHTS).sha256
