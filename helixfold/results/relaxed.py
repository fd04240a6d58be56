"""Write the relaxed structures of a target, and the results of relaxation in relax_metrics.json."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from data_pipeline.io.errors import InputError
from data_pipeline.parse.structures import read_structure
from data_pipeline.protein import Protein
from data_pipeline.structure import protein_from_chains
from helixfold import __version__
from helixfold._deprecated import moved_names
from helixfold.folding.prediction import Prediction
from helixfold.relax.problem import RelaxationError
from helixfold.relax.result import Relaxed
from helixfold.results.file_table import MMCIF, PAE_PAIRS, PDB, RELAXATION, RELAXED, UNRELAXED
from helixfold.results.json_object import JsonObject
from helixfold.results.mmcif import ModelOrigin, ModelScores, to_mmcif
from helixfold.results.pdb import to_pdb
from helixfold.results.writing import to_json, write_file


def read_unrelaxed(directory: Path, prediction: Prediction) -> Protein:
    """Read an unrelaxed predicted structure from its mmCIF file; the B-factors are pLDDT.

    Raise `RelaxationError` if a chain has no atoms, because all its residues are unknown; reading leaves it out.
    """
    protein = protein_from_chains(read_structure(UNRELAXED.path(directory, MMCIF, prediction=prediction.name)).chains)
    if len(protein.aatype) != len(prediction.plddt):
        raise RelaxationError("one of its chains has no atoms, because it has unknown residues only")
    return protein


def write_relaxed(
    directory: Path,
    prediction: Prediction,
    relaxed: Relaxed,
    name: str | None = None,
    origin: ModelOrigin | None = None,
) -> None:
    """Write relaxed_<prediction>.cif and .pdb of target `name`, with hydrogens and pLDDT as B-factors.

    `name` is by default the name of the directory. The PDB file is written if the prediction has one. The `origin` of
    the prediction is written into the mmCIF file.
    """
    remark = (
        f"Predicted by helixfold {__version__}, {prediction.name}, and relaxed with Amber99sb by OpenMM. The B-factor "
        "column holds pLDDT, 0 to 100."
    )
    notes = (*relaxation_notes(relaxed), *prediction.notes)
    write_file(
        RELAXED.path(directory, MMCIF, prediction=prediction.name),
        to_mmcif(
            relaxed.protein,
            name=name or directory.resolve().name,
            model=prediction.name,
            notes=("Relaxed with Amber99sb by OpenMM.", *notes),
            scores=ModelScores(
                plddt=prediction.plddt,
                ptm=prediction.ptm,
                iptm=prediction.iptm,
                tm_by_chain=prediction.tm_by_chain,
                has_pae=PAE_PAIRS.path(directory, prediction=prediction.name).is_file(),
            ),
            hydrogens=relaxed.hydrogens,
            chain_ids=prediction.chain_ids,
            origin=origin,
        ),
    )
    if "pdb" in prediction.kinds:
        write_file(
            RELAXED.path(directory, PDB, prediction=prediction.name),
            to_pdb(relaxed.protein, [remark, *notes], relaxed.hydrogens, prediction.chain_ids),
        )


def relaxation_notes(relaxed: Relaxed) -> list[str]:
    """Return notes on residues that were placed again, that still have violations, and that were not relaxed."""
    notes = []
    if relaxed.freed:
        reason = "bonds or overlaps could not be repaired in place"
        notes.append(f"{_residues(len(relaxed.freed))} had to be placed again: {reason}.")
    if relaxed.after.residues:
        notes.append(f"Impossible bonds, angles or clashes remain in {_residues(relaxed.after.residues)}.")
    if relaxed.left_out:
        notes.append(f"{_residues(len(relaxed.left_out))} had too few atoms to be relaxed.")
    return notes


def _residues(count: int) -> str:
    return f"{count} residue{'s' * (count != 1)}"


def relaxation_metrics(relaxed: Relaxed) -> dict[str, Any]:
    """Return the entry of a prediction in relax_metrics.json; the first two keys are AlphaFold's.

    Energies that are not finite become None.
    """
    return {
        "remaining_violations": list(relaxed.flawed),
        "remaining_violations_count": relaxed.after.residues,
        "violations_before": asdict(relaxed.before),
        "violations_after": asdict(relaxed.after),
        "initial_energy_kcal_per_mol": _finite(relaxed.initial_energy),
        "final_energy_kcal_per_mol": _finite(relaxed.final_energy),
        "rmsd_angstrom": round(relaxed.rmsd, 3),
        "rmsd_of_restrained_angstrom": round(relaxed.rmsd_held, 3),
        "residues_freed": list(relaxed.freed),
        "added_heavy_atoms": relaxed.added,
        "residues_left_out": list(relaxed.left_out),
        "rounds": relaxed.rounds,
        "seconds": round(relaxed.seconds, 2),
        "platform": relaxed.platform,
    }


def write_metrics(directory: Path, metrics: Mapping[str, Mapping[str, Any]]) -> None:
    """Write relax_metrics.json into a target's directory, with an entry for each prediction, by name."""
    write_file(RELAXATION.path(directory), to_json(dict(metrics), indent=4))


def read_metrics(directory: Path) -> dict[str, dict[str, Any]]:
    """Read the entries of relax_metrics.json for predictions whose relaxation failed or whose relaxed structures exist.

    Return an empty dict if the file is missing or damaged.
    """
    try:
        content = JsonObject.read(RELAXATION.path(directory)).content
    except InputError:
        return {}
    return {
        name: metrics
        for name, metrics in content.items()
        if isinstance(metrics, dict) and ("failed" in metrics or _is_relaxed(directory, name))
    }


def _is_relaxed(directory: Path, name: str) -> bool:
    """Return whether all files of a relaxed structure exist; a PDB file is required only if the prediction has one."""
    return all(
        RELAXED.path(directory, suffix, prediction=name).is_file()
        for suffix in RELAXED.suffixes
        if suffix != PDB or UNRELAXED.path(directory, PDB, prediction=name).is_file()
    )


def _finite(energy: float) -> float | None:
    return round(energy, 1) if math.isfinite(energy) else None


__getattr__ = moved_names(__name__)
