"""The list of chains of a training set: what sampling and filtering need to know of each, without its arrays."""

from dataclasses import dataclass
from datetime import date


@dataclass(frozen=True, kw_only=True)
class IndexEntry:
    """One chain of the training set."""

    name: str  # "1abc_A"
    cluster: str  # chains of one cluster share one chance of being drawn
    length: int  # residues
    release_date: date | None
    resolution: float | None  # Angstrom
    is_distillation: bool
    key: str  # hash of everything its features and labels were made from
