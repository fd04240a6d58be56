"""Settings of the training loss: weights of its terms and constants."""

import math
from dataclasses import dataclass, replace
from typing import Annotated

from data_pipeline.io.config import Bound, Config, ConfigError, added_setting
from helixfold.model.config import Method

# Names of the terms of the loss; `LossConfig` has a weight of this name for each.
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
# Type of weights and limits: finite and at least 0.
Number = Annotated[float, Bound("be a number that is not negative", lambda value: 0 <= value < math.inf)]


@dataclass(frozen=True, kw_only=True)
class LossConfig(Config):
    """Settings of the training loss: a weight for each term, then constants (AlphaFold 2, Suppl. Sec. 1.9).

    A term of weight 0 is not computed. Clamps and units are in Angstrom: a larger error counts as the clamp, and FAPE
    between chains is in units of `interface_unit`. Confidences and resolved atoms are learnt only from structures whose
    resolution is from `min_resolution` to `max_resolution` Angstrom. Bonds and angles may deviate by
    `violation_tolerance_factor` standard deviations, and atoms overlap by `clash_overlap_tolerance` Angstrom.

    `fape_clamp` applies to side chains always, and to the backbone only in examples whose label `use_clamped_fape` is
    1.
    """

    backbone_fape: Number = 0.5  # FAPE of the backbone
    sidechain_fape: Number = 0.5  # FAPE of all atoms
    torsion: Number = 0.5  # torsion angles
    angle_norm: Number = 0.01  # length of the predicted torsion vectors
    distogram: Number = 0.3  # distances of C-beta atoms
    masked_msa: Number = 2.0  # masked residues of the MSA
    lddt: Number = 0.01  # pLDDT
    experimentally_resolved: Number = 0.0  # which atoms an experiment resolves
    aligned_error: Number = 0.0  # has no effect on models without that head
    violation: Number = 0.0  # impossible bonds, angles and clashes
    smooth_lddt: Number = added_setting(0.0)  # AlphaFold 3's; AlphaFold 2 does not have this term
    # Between the chains of a complex; `backbone_fape` then has pairs within chains only (AlphaFold-Multimer).
    interface_fape: Number = added_setting(0.0)
    centre_of_mass: Number = added_setting(0.0)

    fape_clamp: Number = 10.0  # Angstrom; larger errors count as this in FAPE
    # Angstrom, clamp and unit of FAPE between chains, from the released configuration of AlphaFold-Multimer; its paper
    # has a clamp of 30.
    interface_clamp: Number = added_setting(1000.0)
    interface_unit: Number = added_setting(20.0)
    # Confidences and resolved atoms are learnt only from structures with a resolution (Angstrom) in this range. NMR
    # structures and predictions are outside it.
    min_resolution: Number = 0.1
    max_resolution: Number = 3.0
    violation_tolerance_factor: Number = 12.0  # standard deviations by which a bond or angle may deviate
    clash_overlap_tolerance: Number = 1.5  # Angstrom by which two atoms may overlap

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("fape_clamp", "interface_clamp", "interface_unit"):
            if getattr(self, name) == 0:
                raise ConfigError(f"LossConfig.{name} must be more than 0 Angstrom, got 0")
        if self.min_resolution > self.max_resolution:
            raise ConfigError(
                f"LossConfig.min_resolution ({self.min_resolution}) must not be above max_resolution "
                f"({self.max_resolution})"
            )


def initial_training(method: Method = "monomer") -> LossConfig:
    """Return the loss settings of AlphaFold's initial training, with terms between chains for "multimer".

    AlphaFold 2, Suppl. Sec. 1.11.1 and Eq. 7.
    """
    return LossConfig() if method == "monomer" else complexes(LossConfig())


def finetuning(method: Method = "monomer") -> LossConfig:
    """Return the loss settings of AlphaFold's fine-tuning: violations, resolved atoms and aligned errors (Eq. 7).

    For "multimer", they also have the terms between chains.
    """
    config = LossConfig(experimentally_resolved=0.01, aligned_error=0.1, violation=1.0)
    return config if method == "monomer" else complexes(config)


def complexes(config: LossConfig) -> LossConfig:
    """Return the settings with the terms between chains for complexes (AlphaFold-Multimer, Sec. 2.5).

    FAPE between chains has the weight of FAPE within chains, because DeepMind's program adds them.
    """
    return replace(config, interface_fape=config.backbone_fape, centre_of_mass=1.0)
