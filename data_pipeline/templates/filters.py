"""Checks that reject template hits and structures."""

from dataclasses import dataclass
from datetime import date
from typing import Annotated

import numpy as np

from data_pipeline.features.templates import AlignedTemplate
from data_pipeline.io.config import FRACTION, Checked, at_least
from data_pipeline.io.errors import printable
from data_pipeline.parse.template_hit import TemplateHit
from data_pipeline.residues import ATOM_ORDER
from data_pipeline.structure import Chain, Structure
from data_pipeline.templates.result import RejectionReason, UnusableHitError

_MAX_CA_CA = 150.0  # Å between neighbouring residues; only impossible chains exceed this generous limit
_MIN_ATOMS = 5  # alanine has five heavy atoms


@dataclass(frozen=True, kw_only=True)
class TemplateOptions(Checked):
    """Settings of the selection of template hits; the defaults are AlphaFold's (AlphaFold 2, Suppl. Sec. 1.2.3).

    `latest_release` is the max release date; None allows any date, including unknown ones. The aligned columns per
    target residue must exceed `min_align_ratio`. A hit that is part of the target itself may have at most
    `max_subsequence_ratio` of its residues. `min_residues` are needed in the aligned segment of the hit, without gaps.
    """

    latest_release: date | None = None  # max release date of templates; None: any date, including unknown ones
    max_templates: Annotated[int, at_least(0)] = 20
    min_align_ratio: Annotated[float, FRACTION] = 0.1  # aligned columns per target residue must exceed this
    # Max length of a hit that is part of the target itself, per target residue.
    max_subsequence_ratio: Annotated[float, FRACTION] = 0.95
    min_residues: Annotated[int, at_least(1)] = 10  # in the aligned segment of the hit, without gaps


def check_hit(query: str, hit: TemplateHit, letters: str, options: TemplateOptions) -> None:
    """Raise `UnusableHitError` if a hit covers too little of the target, is the target itself, or is too short.

    `query` is the target sequence; `letters` are the aligned residues of the hit without gaps. A hit is the target
    itself if these are a part of it, and longer than `max_subsequence_ratio` of it.
    """
    ratio = hit.aligned_columns / len(query)
    if ratio <= options.min_align_ratio:
        limit = f"more than {options.min_align_ratio:.0%} is needed"
        raise UnusableHitError(RejectionReason.COVERAGE, f"it is aligned to {ratio:.1%} of the target, and {limit}")
    if letters in query and len(letters) / len(query) > options.max_subsequence_ratio:
        raise UnusableHitError(RejectionReason.DUPLICATE, f"its {len(letters)} residues are the target's own sequence")
    if len(letters) < options.min_residues:
        raise UnusableHitError(
            RejectionReason.SHORT, f"it has {len(letters)} residues, and {options.min_residues} are needed"
        )


def check_release_date(entry: str, released: date | None, latest: date | None) -> None:
    """Raise `UnusableHitError` if a PDB entry was released after `latest`.

    A date that is unknown (`released` None) and no limit (`latest` None) are accepted.
    """
    if released is not None and latest is not None and released > latest:
        raise UnusableHitError(RejectionReason.RELEASED_LATER, f"{entry} was released on {released}, after {latest}")


def check_structure_date(structure: Structure, entry: str, table_date: date | None, latest: date | None) -> None:
    """Raise `UnusableHitError` if a structure was released after `latest`, or if its release date is unknown.

    Without a limit (`latest` None), any structure is accepted. `table_date` is the entry's date in the table of release
    dates, which the caller has already compared with `latest`.
    """
    if latest is not None and structure.release_date is None and table_date is None:
        raise UnusableHitError(
            RejectionReason.DATE_UNKNOWN,
            f"the release date of {entry} is in neither its file nor a table, and must not be after {latest}",
        )
    check_release_date(entry, structure.release_date, latest)


def check_distances(chain: Chain) -> None:
    """Raise `UnusableHitError` if the C-alpha atoms of two neighbouring residues are more than 150 Å apart."""
    alpha = ATOM_ORDER["CA"]
    has_alpha = chain.atom_mask[:, alpha] > 0
    steps = np.linalg.norm(np.diff(chain.atom_positions[:, alpha], axis=0), axis=-1)
    far_indices = np.flatnonzero((steps > _MAX_CA_CA) & has_alpha[1:] & has_alpha[:-1])
    if len(far_indices):
        raise UnusableHitError(
            RejectionReason.BROKEN_CHAIN,
            f"residues {far_indices[0] + 1} and {far_indices[0] + 2} of chain {printable(chain.name)}"
            f" are {steps[far_indices[0]]:.0f} A apart; the maximum is {_MAX_CA_CA:.0f} A",
        )


def check_atoms(template: AlignedTemplate) -> None:
    """Raise `UnusableHitError` if a template has fewer than five atoms in all at aligned positions."""
    atoms = int(template.masks.sum())
    if atoms < _MIN_ATOMS:
        raise UnusableHitError(
            RejectionReason.NO_ATOMS,
            f"{template.name} has {atoms} atoms where it is aligned, and {_MIN_ATOMS} are needed",
        )
