"""What a search for templates comes to: features, which templates they are, and why every other hit is none."""

from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Self

from data_pipeline.features.templates import TemplateFeatures


class RejectionReason(StrEnum):
    """Why a hit, a chain or a file is no template."""

    # What AlphaFold checks, in its order.
    NAME = "name does not begin with an entry and a chain"
    OBSOLETE = "entry withdrawn"
    RELEASED_LATER = "released after the latest date allowed"
    COVERAGE = "aligned to too little of the target"
    DUPLICATE = "same sequence as the target"
    SHORT = "too few residues"
    NO_FILE = "no structure file"
    UNREADABLE = "structure file cannot be read"
    NO_CHAIN = "no such chain"
    OTHER_SEQUENCE = "sequence differs from the structure file's"
    NO_ATOMS = "no atoms where it is aligned"
    BROKEN_CHAIN = "impossible distances along the chain"
    REPEATED = "same aligned sequence as a template before it"
    ENOUGH = "enough templates before it"
    # What AlphaFold does not.
    DATE_UNKNOWN = "release date unknown"
    OTHER_TARGET = "aligned to another target"
    INCONSISTENT = "rows and residue numbers of the alignment contradict each other"
    TOO_LONG = "too long to align"
    UNRELATED = "alignment no better than chance"
    NOT_A_STRUCTURE = "not a structure file by its name"


@dataclass(frozen=True, kw_only=True)
class UsedTemplate:
    """One template, in the order of the features."""

    name: str  # entry and chain, "1abc_A"
    rank: int  # the hit's rank in its file; of the user's own templates, the place in the features from 1
    release_date: date | None
    aligned: int  # residues of the target with at least one atom
    identity: float  # fraction of the aligned residues that are the target's own
    note: str  # what one should know about it, else ""


@dataclass(frozen=True, kw_only=True)
class RejectedHit:
    """A hit, a chain or a file that gave no template."""

    name: str
    rank: int  # the hit's rank in its file; 0 for chains and files of the user's own
    reason: RejectionReason
    sentence: str

    @classmethod
    def of(cls, name: str, reason: RejectionReason, why: str, rank: int = 0) -> Self:
        """The rejection of `name`, with a sentence of the name and why."""
        return cls(name=name, rank=rank, reason=reason, sentence=f"{name}: {why}")


@dataclass(frozen=True, kw_only=True)
class TemplateResult:
    """Templates of one target, best first, and why everything else that was looked at is not among them."""

    features: TemplateFeatures
    used: tuple[UsedTemplate, ...]
    rejected: tuple[RejectedHit, ...]


class UnusableHitError(Exception):
    """Leaves the work on one hit; it becomes a `RejectedHit` and goes no further."""

    def __init__(self, reason: RejectionReason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason
        self.sentence = sentence
