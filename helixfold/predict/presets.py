"""Named sets of models and effort: what `--preset` stands for, beside options that are given themselves."""

from dataclasses import dataclass
from typing import Any

from helixfold.inference import FoldingOptions

MONOMER = tuple(f"model_{number}" for number in range(1, 6))
MONOMER_PTM = tuple(f"{name}_ptm" for name in MONOMER)


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Models, and those options of folding that differ from the usual ones."""

    summary: str
    models: tuple[str, ...]
    num_recycles: int | None = None
    recycle_tolerance: float | None = None
    num_ensemble: int | None = None


# The first three are AlphaFold's and compute the same.
EFFORTS = {
    "monomer": Effort(summary="AlphaFold's five models", models=MONOMER),
    "monomer_ptm": Effort(summary="the five with PAE and pTM", models=MONOMER_PTM),
    "monomer_casp14": Effort(summary="the first five with 8 ensembles", models=MONOMER, num_ensemble=8),
    "quick": Effort(summary="model_1_ptm with 1 recycle", models=MONOMER_PTM[:1], num_recycles=1),
    "thorough": Effort(
        summary="the five with PAE, recycled until they settle (0.5 Angstrom), at most 20 times",
        models=MONOMER_PTM,
        num_recycles=20,
        recycle_tolerance=0.5,
    ),
}


def chosen(preset: str | None, given: dict[str, Any]) -> dict[str, Any]:
    """Options of folding and models: those given (not None, not empty), else the preset's, else the usual ones."""
    usual, effort = FoldingOptions(), EFFORTS.get(preset or "")
    found = {}
    for name, value in given.items():
        of_preset = getattr(effort, name, None)
        is_given = value is not None and value != []
        found[name] = value if is_given else of_preset if of_preset is not None else getattr(usual, name, value)
    return found
