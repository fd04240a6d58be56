"""The prediction of one target, a chain or a complex, by one model, with everything that its files are written from."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from jaxtyping import Float

from data_pipeline.complexes.chain_ids import check_chain_ids
from data_pipeline.protein import Protein
from helixfold.options import RepresentationName

_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True, kw_only=True)
class ConfidenceBand:
    """A range of pLDDT from `least` up to the band above, with AlphaFold DB's letter, name and colour for it."""

    least: float
    letter: str
    name: str
    color: str


CONFIDENCE_BANDS: Final = (
    ConfidenceBand(least=90, letter="H", name="very high", color="#0053D6"),
    ConfidenceBand(least=70, letter="M", name="confident", color="#65CBF3"),
    ConfidenceBand(least=50, letter="L", name="low", color="#FFDB13"),
    ConfidenceBand(least=0, letter="D", name="very low", color="#FF7D45"),
)


@dataclass(frozen=True, kw_only=True)
class Distances:
    """Distances between pseudo-beta atoms (C-beta, or C-alpha of glycine) according to the distogram."""

    expected: Float[np.ndarray, "r r"]  # Angstrom; 21.8 for all that is further apart than 21.7
    contact: Float[np.ndarray, "r r"]  # probability, 0 to 1, of less than 8 Angstrom

    def __post_init__(self) -> None:
        if self.contact.shape != self.expected.shape:
            raise ValueError(
                f"expected and contact must have one shape, got {self.expected.shape}, {self.contact.shape}"
            )
        if not (self.expected.min() >= 0 and np.isfinite(self.expected.max())):
            raise ValueError("expected distances must be finite and at least 0")
        if not (self.contact.min() >= 0 and self.contact.max() <= 1 + 1e-3):
            raise ValueError(f"contact must be 0 to 1, got {self.contact.min()} to {self.contact.max()}")


@dataclass(frozen=True, kw_only=True)
class Computation:
    """How a prediction was computed.

    Peaks are in bytes, on top of the loaded model. The measured peak excludes recorded passes; for several targets at
    once it covers all of them.
    """

    executor: str
    slab_budget: int | None = None  # bytes that temporaries of a slab might take; None: the executor's own choice
    backends: Mapping[str, tuple[str, ...]]  # by operator, those that computed it
    threads: int | None = None  # of a CPU; None: all that PyTorch has
    targets_at_once: int = 1  # targets that shared the network's passes
    replayed_passes: int = 0
    predicted_peak: int | None = None
    measured_peak: int

    @property
    def measurements(self) -> dict[str, object]:
        """Return what timings.json says of the prediction beside its executor."""
        peak = round(self.measured_peak / 2**30, 3)
        if self.predicted_peak is None:
            return {
                "replayed_passes": self.replayed_passes,
                "targets_at_once": self.targets_at_once,
                "peak_of_all_gib": peak,
            }
        return {
            "replayed_passes": self.replayed_passes,
            "predicted_peak_gib": round(self.predicted_peak / 2**30, 3),
            "measured_peak_gib": peak,
        }


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A prediction of one target, a chain or a complex, by one model, without padding."""

    model: str  # such as model_1_ptm, or model_1_ptm_seed_3 where there are several seeds; part of file names
    protein: Protein  # B-factors are pLDDT
    plddt: Float[np.ndarray, "r"]  # 0 to 100
    pae: Float[np.ndarray, "r r"] | None  # Angstrom: error of residue j when aligned on residue i
    max_pae: float | None  # Angstrom, the largest that could occur
    ptm: float | None
    ranking_confidence: float  # mean pLDDT, or of a model of complexes 0.8 ipTM + 0.2 pTM from 0 to 1
    num_recycles: int
    converged: bool  # recycling ended early, because distances changed by less than the tolerance
    notes: tuple[str, ...] = ()  # for every reader of the files, such as that parameters are untrained
    distances: Distances | None = None
    logits: Mapping[str, np.ndarray] | None = None  # by head, if the options asked for them
    representations: Mapping[RepresentationName, np.ndarray] | None = None  # those that the options asked for
    passes: tuple[Protein, ...] | None = None  # what the passes before the last predicted, if the options asked for it
    pass_representations: tuple[Mapping[RepresentationName, np.ndarray], ...] = ()  # of these passes, if asked for both
    seed: int = 0
    chain_ids: tuple[str, ...] = ("A",)  # names of the chains, which `protein.chain_index` counts from 0
    iptm: float | None = None  # of a complex, 0 to 1
    tm_by_chain: Float[np.ndarray, "k k"] | None = None  # of a complex, see `chain_tm.TmScores`
    computation: Computation | None = None

    def __post_init__(self) -> None:
        if not _MODEL_NAME.fullmatch(self.model):
            raise ValueError(
                f"model is part of file names: at most 100 letters, digits, '_', '-' and '.', got {self.model!r}"
            )
        length = len(self.protein.aatype)
        check_chain_ids(self.chain_ids, len(self.chain_ids))
        if not np.array_equal(np.unique(self.protein.chain_index), np.arange(len(self.chain_ids))):
            raise ValueError(
                f"protein.chain_index must number each of {len(self.chain_ids)} chains from 0, got "
                f"{np.unique(self.protein.chain_index).tolist()}"
            )
        if self.plddt.shape != (length,):
            raise ValueError(f"plddt must have one value for each of {length} residues, got shape {self.plddt.shape}")
        if not ((self.plddt >= 0) & (self.plddt <= 100)).all():
            raise ValueError(f"plddt must be 0 to 100, got {self.plddt.min()} to {self.plddt.max()}")
        if (self.pae is None) != (self.max_pae is None):
            raise ValueError("pae and max_pae go together: give both or neither")
        if self.pae is not None:
            if self.pae.shape != (length, length):
                raise ValueError(f"pae must have shape {(length, length)}, got {self.pae.shape}")
            if not (self.pae.min() >= 0 and np.isfinite(self.pae.max())):
                raise ValueError(f"pae must be finite and at least 0, got {self.pae.min()} to {self.pae.max()}")
        if self.distances is not None and self.distances.expected.shape != (length, length):
            raise ValueError(f"distances must have shape {(length, length)}, got {self.distances.expected.shape}")
        chains = len(self.chain_ids)
        if self.tm_by_chain is not None and (chains < 2 or self.tm_by_chain.shape != (chains, chains)):
            raise ValueError(f"tm_by_chain has a score for each pair of several chains, got {self.tm_by_chain.shape}")
        for name in ("ranking_confidence", "ptm", "iptm", "max_pae"):
            value = getattr(self, name)
            if value is not None and not np.isfinite(value):
                raise ValueError(f"{name} must be finite, got {value}")
