"""One random draw of model input from a target's features."""

from dataclasses import dataclass

import numpy as np

from data_pipeline.features.schema import Features, Sample


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How much of the alignment and of the templates one pass sees, and how it is masked.

    Numbers of AlphaFold 2, Suppl. Sec. 1.2.7 and Table 5. A preset with templates gives the MSA rows its template
    slots fewer: the caller subtracts.
    """

    max_msa_clusters: int = 512
    max_extra_msa: int = 1024
    max_templates: int = 4
    masked_msa_fraction: float = 0.15
    # A hidden position is replaced by a random residue, by one of its column's, by itself, or (the rest) by a mask.
    uniform_prob: float = 0.1
    profile_prob: float = 0.1
    same_prob: float = 0.1
    unknown_fraction: float = 0.0  # residues turned into X before anything else

    def __post_init__(self) -> None:
        for name, least in (("max_msa_clusters", 1), ("max_extra_msa", 1), ("max_templates", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        for name in ("masked_msa_fraction", "uniform_prob", "profile_prob", "same_prob", "unknown_fraction"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be within 0..1, got {getattr(self, name)}")
        if self.uniform_prob + self.profile_prob + self.same_prob > 1:
            raise ValueError("uniform_prob, profile_prob and same_prob must not exceed 1 together")


def draw_sample(features: Features, config: SamplingConfig, rng: np.random.Generator) -> Sample:
    raise NotImplementedError
