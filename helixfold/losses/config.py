"""Settings of the training loss: weights of its terms, and constants."""

import math
from dataclasses import dataclass, fields, replace

from data_pipeline.io.config import added_setting
from helixfold.model.config import Config, ConfigError, Method, require

TERMS = (
    "backbone_fape",
    "sidechain_fape",
    "torsion",
    "angle_norm",
    "distogram",
    "masked_msa",
    "lddt",
    "experimentally_resolved",
    "aligned_error",
    "violation",
    "smooth_lddt",
    "interface_fape",
    "centre_of_mass",
)
# Terms between the chains of a complex, which single chains do not have.
INTERFACE_TERMS = ("interface_fape", "centre_of_mass")


@dataclass(frozen=True, kw_only=True)
class LossConfig(Config):
    """Settings of the training loss: a weight for each term, then constants (AlphaFold 2, Suppl. Sec. 1.9)."""

    backbone_fape: float = 0.5
    sidechain_fape: float = 0.5
    torsion: float = 0.5
    angle_norm: float = 0.01
    distogram: float = 0.3
    masked_msa: float = 2.0
    lddt: float = 0.01
    experimentally_resolved: float = 0.0
    aligned_error: float = 0.0  # has no effect on models without that head
    violation: float = 0.0
    smooth_lddt: float = added_setting(0.0)  # of AlphaFold 3; AlphaFold 2 does not have this term
    # Between the chains of a complex, of which `backbone_fape` has the pairs within chains (AlphaFold-Multimer).
    interface_fape: float = added_setting(0.0)
    centre_of_mass: float = added_setting(0.0)

    fape_clamp: float = 10.0  # Angstrom; larger errors count as this in FAPE
    # Angstrom; the same between chains, and what counts as an error of 1 there. The released configuration of
    # AlphaFold-Multimer has these; its paper has a clamp of 30.
    interface_clamp: float = added_setting(1000.0)
    interface_unit: float = added_setting(20.0)
    # Confidences and resolved atoms are learnt only from structures with a resolution (Angstrom) in this range, to
    # which NMR structures and predictions do not belong.
    min_resolution: float = 0.1
    max_resolution: float = 3.0
    violation_tolerance_factor: float = 12.0  # standard deviations by which a bond or an angle may differ
    clash_overlap_tolerance: float = 1.5  # Angstrom by which two atoms may overlap

    def __post_init__(self) -> None:
        require(
            self,
            [field.name for field in fields(self)],
            lambda value: 0 <= value < math.inf,
            "be a number that is not negative",
        )
        for name in ("fape_clamp", "interface_clamp", "interface_unit"):
            if getattr(self, name) == 0:
                raise ConfigError(f"LossConfig.{name} must be more than 0 Angstrom, got 0")
        if self.min_resolution > self.max_resolution:
            raise ConfigError(
                f"LossConfig.min_resolution ({self.min_resolution}) must not be above max_resolution "
                f"({self.max_resolution})"
            )


def initial_training(method: Method = "monomer") -> LossConfig:
    """Return the loss of AlphaFold's initial training (Suppl. Sec. 1.11.1 and Eq. 7), for a network of that method."""
    return LossConfig() if method == "monomer" else complexes(LossConfig())


def finetuning(method: Method = "monomer") -> LossConfig:
    """Return the loss of AlphaFold's fine-tuning, with violations, resolved atoms and aligned errors (Suppl. Eq. 7)."""
    config = LossConfig(experimentally_resolved=0.01, aligned_error=0.1, violation=1.0)
    return config if method == "monomer" else complexes(config)


def complexes(config: LossConfig) -> LossConfig:
    """Return a stage's loss for complexes, with the terms between chains (AlphaFold-Multimer, Sec. 2.5).

    The weight of FAPE between chains is that of DeepMind's program, which adds it to FAPE within chains.
    """
    return replace(config, interface_fape=config.backbone_fape, centre_of_mass=1.0)
