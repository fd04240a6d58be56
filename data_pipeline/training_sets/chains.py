"""Selection of training chains, and the labels for the loss."""

from collections import Counter
from dataclasses import dataclass
from datetime import date
from typing import Annotated

import numpy as np

from data_pipeline.features.labels import ChainLabels
from data_pipeline.io.config import FRACTION, POSITIVE, Checked, at_least
from data_pipeline.residues import ATOM_ORDER
from data_pipeline.structure import Chain, Structure

_CA = ATOM_ORDER["CA"]


@dataclass(frozen=True, kw_only=True)
class ChainFilter(Checked):
    """Criteria for training chains (AlphaFold 2, Suppl. Sec. 1.2.5).

    The resolution (Å), if there is one, must be below `below_resolution`. `max_share` is the max fraction of one
    residue type in the sequence. `latest_release` None accepts any date, including unknown ones. `min_length` counts
    the residues of the sequence, and `min_observed` the residues with atoms.
    """

    below_resolution: Annotated[float, POSITIVE] = 9.0  # Å; entries without a resolution (NMR) are accepted
    max_share: Annotated[float, POSITIVE, FRACTION] = 0.8  # max fraction of one residue type in the sequence
    latest_release: date | None = None  # None: accept any date, including unknown ones
    min_length: Annotated[int, at_least(1)] = 1  # residues of the sequence
    min_observed: Annotated[int, at_least(1)] = 1  # residues with atoms

    def exclusion_reason(self, structure: Structure, chain: Chain) -> str | None:
        """Return the reason for excluding a chain from training, or None if it is accepted."""
        return self._entry_exclusion(structure) or self._chain_exclusion(chain)

    def _entry_exclusion(self, structure: Structure) -> str | None:
        """Return why all chains of a structure are left out, or None."""
        if structure.resolution is not None and structure.resolution >= self.below_resolution:
            return f"its resolution is {structure.resolution:g} A, and it must be below {self.below_resolution:g} A"
        latest, released = self.latest_release, structure.release_date
        if latest is not None and released is None:
            return f"its release date is unknown, and it must not be after {latest}"
        if latest is not None and released is not None and released > latest:
            return f"it was released on {released}, after {latest}"
        return None

    def _chain_exclusion(self, chain: Chain) -> str | None:
        """Return why a chain is left out, or None."""
        length, observed = len(chain.sequence), int(chain.observed.sum())
        if length < self.min_length:
            return f"its sequence has {length} residues, and {self.min_length} are needed"
        if observed < self.min_observed:
            return f"{observed} of its residues were observed, and {self.min_observed} are needed"
        letter, count = Counter(chain.sequence).most_common(1)[0]
        if count > self.max_share * length:
            return f"{letter} makes up {count / length:.0%} of its sequence, and {self.max_share:.0%} are allowed"
        return None


def chain_labels(structure: Structure, chain: Chain, *, is_distillation: bool = False) -> ChainLabels:
    """Return the labels for a prediction of `chain.sequence`: atom positions (Å), mask and confidence (0 to 1).

    Atoms of unknown residues are included, because AlphaFold's loss uses their backbone. In a predicted structure
    (`is_distillation`), the confidence is the pLDDT in the B-factor of CA, on a scale of 0 to 100 or 0 to 1; otherwise
    it is 1.
    """
    if is_distillation:
        plddt = chain.b_factors[:, _CA]
        confidence = plddt / (100 if plddt.max(initial=0) > 1 else 1)  # ESMFold's pLDDT is 0 to 1
        confidence = np.clip(confidence, 0, 1)
    else:
        confidence = np.ones(len(chain.sequence))
    return ChainLabels(
        all_atom_positions=chain.atom_positions,
        all_atom_mask=chain.atom_mask,
        confidence=confidence.astype(np.float32),
        resolution=structure.resolution or 0.0,
        is_distillation=is_distillation,
    )
