"""Result of a template search: the features, the templates used, and the rejected hits with reasons."""

from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Self

from data_pipeline.features.templates import TemplateFeatures


class RejectionReason(StrEnum):
    """Reason why a hit, a chain or a file was not used as a template."""

    # AlphaFold's checks, in its order.
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
    # Checks that AlphaFold does not have.
    DATE_UNKNOWN = "release date unknown"
    OTHER_TARGET = "aligned to another target"
    INCONSISTENT = "rows and residue numbers of the alignment contradict each other"
    TOO_LONG = "too long to align"
    UNRELATED = "alignment no better than chance"
    NOT_A_STRUCTURE = "not a structure file by its name"
    UNREAD = "the models of this run read no templates"


@dataclass(frozen=True, kw_only=True)
class UsedTemplate:
    """Description of a template that is used.

    `name` is entry and chain, such as 1abc_A. `rank` is the rank of the hit in its file, or for the user's templates
    the position in the features, from 1. `aligned` is the number of target residues with at least one atom, and
    `identity` the fraction of the aligned residues that match the target. `note` is a remark about anything unusual, or
    "".
    """

    name: str  # entry and chain, "1abc_A"
    rank: int  # rank of the hit in its file; for the user's templates, the position in the features, from 1
    release_date: date | None  # None: unknown
    aligned: int  # number of target residues with at least one atom
    identity: float  # fraction of the aligned residues that match the target
    note: str  # remark about anything unusual, or ""


@dataclass(frozen=True, kw_only=True)
class RejectedHit:
    """Hit, chain or file that was not used as a template.

    `name` is entry and chain, or a file name. `rank` is the rank of the hit in its file, or 0 for the user's chains and
    files. `sentence` is the name and the explanation, for the user.
    """

    name: str  # entry and chain, or file name
    rank: int  # rank of the hit in its file; 0 for the user's chains and files
    reason: RejectionReason
    sentence: str  # name and explanation, for the user

    @classmethod
    def of(cls, name: str, reason: RejectionReason, why: str, rank: int = 0) -> Self:
        """Return the rejection of the hit, chain or file `name`, with the explanation `why`."""
        return cls(name=name, rank=rank, reason=reason, sentence=f"{name}: {why}")


@dataclass(frozen=True, kw_only=True)
class TemplateResult:
    """Templates of one target, best first, and all rejected hits, chains and files.

    `features` and `used` have the templates in the same order.
    """

    features: TemplateFeatures
    used: tuple[UsedTemplate, ...]
    rejected: tuple[RejectedHit, ...]


class UnusableHitError(Exception):
    """Raised for a hit or chain that cannot be used; the caller catches it and records a `RejectedHit`.

    `sentence` is the explanation without the name of the hit.
    """

    def __init__(self, reason: RejectionReason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason
        self.sentence = sentence
