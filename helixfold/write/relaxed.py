"""Relaxed structures of a target beside the predicted ones, and in relax_metrics.json what became of each."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from data_pipeline.errors import InputError
from data_pipeline.parse.structures import read_structure
from data_pipeline.protein import Protein
from data_pipeline.structure import protein_from_chains
from helixfold import __version__
from helixfold.relax.result import Relaxed
from helixfold.write.mmcif import to_mmcif
from helixfold.write.pdb import to_pdb
from helixfold.write.ranking import KINDS, FinishedPrediction
from helixfold.write.records import Record
from helixfold.write.results import to_json, write_file

RELAXATION_FILE: Final = "relax_metrics.json"


def read_unrelaxed(directory: Path, prediction: FinishedPrediction) -> Protein:
    """The predicted structure as its file has it; the B-factors are pLDDT."""
    return protein_from_chains(read_structure(directory / f"unrelaxed_{prediction.name}.cif").chains)


def write_relaxed(directory: Path, prediction: FinishedPrediction, relaxed: Relaxed) -> None:
    """relaxed_<name>.cif and .pdb, with hydrogens; B-factors are pLDDT as before."""
    origin = (
        f"Predicted by helixfold {__version__}, {prediction.name}, and relaxed with Amber99sb by OpenMM. The B-factor "
        "column holds pLDDT, 0 to 100."
    )
    notes = (*relaxation_notes(relaxed), *prediction.notes)
    write_file(
        directory / f"relaxed_{prediction.name}.cif",
        to_mmcif(
            relaxed.protein,
            name=directory.resolve().name,
            model=prediction.name,
            notes=("Relaxed with Amber99sb by OpenMM.", *notes),
            plddt=prediction.plddt,
            hydrogens=relaxed.hydrogens,
        ),
    )
    write_file(
        directory / f"relaxed_{prediction.name}.pdb", to_pdb(relaxed.protein, [origin, *notes], relaxed.hydrogens)
    )


def relaxation_notes(relaxed: Relaxed) -> list[str]:
    """What readers of a relaxed structure must know of it."""
    notes = []
    if relaxed.after.residues:
        notes.append(f"{relaxed.after.residues} residues still have impossible bonds, angles or clashes.")
    if relaxed.left_out:
        notes.append(f"{len(relaxed.left_out)} residues had too few atoms to be relaxed.")
    return notes


def metrics_of(relaxed: Relaxed) -> dict[str, Any]:
    """One prediction's part of relax_metrics.json; the first two keys are AlphaFold's."""
    return {
        "remaining_violations": list(relaxed.flawed),
        "remaining_violations_count": relaxed.after.residues,
        "violations_before": asdict(relaxed.before),
        "violations_after": asdict(relaxed.after),
        "initial_energy_kcal_per_mol": _finite(relaxed.initial_energy),
        "final_energy_kcal_per_mol": _finite(relaxed.final_energy),
        "rmsd_angstrom": round(relaxed.rmsd, 3),
        "added_heavy_atoms": relaxed.added,
        "residues_left_out": list(relaxed.left_out),
        "rounds": relaxed.rounds,
        "seconds": round(relaxed.seconds, 2),
        "platform": relaxed.platform,
    }


def failure(why: str) -> dict[str, Any]:
    """The part of a prediction that stays as it is."""
    return {"failed": why}


def write_metrics(directory: Path, metrics: Mapping[str, Mapping[str, Any]]) -> None:
    """relax_metrics.json, by prediction."""
    write_file(directory / RELAXATION_FILE, to_json(dict(metrics), indent=4))


def read_metrics(directory: Path) -> dict[str, dict[str, Any]]:
    """What became of each prediction that was to be relaxed, if it is whole and its structure is there."""
    try:
        content = Record.read(directory / RELAXATION_FILE).content
    except InputError:
        return {}
    return {
        name: metrics
        for name, metrics in content.items()
        if isinstance(metrics, dict) and ("failed" in metrics or is_relaxed(directory, name))
    }


def is_relaxed(directory: Path, name: str) -> bool:
    """Whether a prediction's relaxed structure is there, in both formats."""
    return all((directory / f"relaxed_{name}.{kind}").is_file() for kind in KINDS)


def _finite(energy: float) -> float | None:
    return round(energy, 1) if math.isfinite(energy) else None
