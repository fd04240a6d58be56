"""Presets of `helixfold predict`: sets of models with their recycling and ensembling."""

from dataclasses import dataclass

# Names of AlphaFold's models. Those for complexes are of three releases, the newest first.
MONOMER = tuple(f"model_{number}" for number in range(1, 6))
MONOMER_PTM = tuple(f"{name}_ptm" for name in MONOMER)
MULTIMER = tuple(f"{name}_multimer{release}" for release in ("_v3", "_v2", "") for name in MONOMER)


@dataclass(frozen=True, kw_only=True)
class PredictionPreset:
    """A set of models, and the values of options that differ from the default (None: the default).

    `summary` is its description in the help.
    """

    summary: str
    models: tuple[str, ...]
    num_recycles: int | None = None
    recycle_tolerance: float | None = None
    num_ensemble: int | None = None


# The first four are AlphaFold's presets, with the same results.
PREDICTION_PRESETS = {
    "monomer": PredictionPreset(summary="AlphaFold's five models", models=MONOMER),
    "monomer_ptm": PredictionPreset(summary="the five with PAE and pTM", models=MONOMER_PTM),
    "monomer_casp14": PredictionPreset(summary="the first five with 8 ensembles", models=MONOMER, num_ensemble=8),
    "multimer": PredictionPreset(summary="AlphaFold-Multimer's five models, for complexes", models=MULTIMER[:5]),
    "quick": PredictionPreset(summary="model_1_ptm with 1 recycle", models=MONOMER_PTM[:1], num_recycles=1),
    "thorough": PredictionPreset(
        summary="the five with PAE, recycled until they converge (0.5 Angstrom), at most 20 times",
        models=MONOMER_PTM,
        num_recycles=20,
        recycle_tolerance=0.5,
    ),
}
