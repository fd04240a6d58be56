"""Relax predictions as a step of `helixfold predict`, and structure files of any program for `helixfold relax`."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import gemmi
import torch

from data_pipeline.features.complexes.chain_ids import MAX_CHAINS, valid_chain_ids
from data_pipeline.io.errors import InputError, printable
from data_pipeline.parse.structures import read_structure
from data_pipeline.protein import Protein
from data_pipeline.residues import THREE_LETTER
from data_pipeline.structure import Structure, protein_from_chains
from helixfold import __version__
from helixfold.apps.options import ToRelax
from helixfold.folding.prediction import Prediction
from helixfold.planning.executors import release
from helixfold.relax.problem import RelaxationError, installed
from helixfold.relax.relaxation import relax
from helixfold.relax.result import Relaxed, RelaxOptions
from helixfold.report.page import counted
from helixfold.results.chains import RingBond, iterate_atoms, ring_bonds, split_chains
from helixfold.results.failures import SOME_FAILED
from helixfold.results.lock import locked_directory
from helixfold.results.mmcif import ModelOrigin
from helixfold.results.pdb import to_pdb
from helixfold.results.prediction import ranked
from helixfold.results.relaxed import (
    read_metrics,
    read_unrelaxed,
    relaxation_metrics,
    relaxation_notes,
    write_metrics,
    write_relaxed,
)
from helixfold.results.writing import to_json, write_file
from helixfold.runtime.standard_streams import optional_output, print_summary

INSTALL = "pip install 'helixfold[relax]'"  # the command in messages
_SLOW_RESIDUES = 300  # residues; above this, relaxation on a CPU takes over a minute and is announced
# Limits of a relaxation: RMSD (Å) of the heavy atoms of restrained residues, and share of residues without restraints.
# Sound predictions move by a few tenths of an Å. Beyond the limits the result is another structure, to which the
# predicted confidence does not apply.
MAX_RMSD, MAX_FREED = 2.0, 0.9


def predictions_to_relax(requested: ToRelax | None, *, trained: bool) -> tuple[ToRelax, str | None]:
    """Return which predictions to relax, and a note for the user or None.

    The default is "best" if OpenMM is installed and the parameters are trained, else "none". Raise `InputError` if
    relaxation was requested and OpenMM is not installed.
    """
    if requested in ("best", "all") and not installed():
        raise InputError(f"--models-to-relax {requested} needs OpenMM and PDBFixer, which are not installed: {INSTALL}")
    if requested is not None:
        return requested, None
    if not trained:
        return "none", None
    if not installed():
        return "none", f"structures are not relaxed: OpenMM is not installed ({INSTALL}; --models-to-relax none)"
    return "best", None


def is_done(directory: Path, predictions: Sequence[Prediction], to_relax: ToRelax) -> bool:
    """Return whether every prediction to relax has an entry in the metrics file, including failed relaxations.

    `predictions` are in any order.
    """
    metrics = read_metrics(directory)
    return all(prediction.name in metrics for prediction in _selected(ranked(predictions), to_relax))


def relax_predictions(
    directory: Path,
    order: Sequence[Prediction],
    to_relax: ToRelax,
    device: torch.device,
    say: Callable[[str], None],
    *,
    name: str | None = None,
    origin_of: Callable[[str], ModelOrigin | None] = lambda _: None,
) -> None:
    """Relax some or all predictions of the target `name`, and write the results into its directory.

    `order` has the predictions, best first, and `to_relax` selects from them. `origin_of` returns the origin that is
    written to the mmCIF file of a prediction. Predictions with an entry in the metrics file are not relaxed again. If a
    relaxation fails, the prediction stays as it is, and the reason is printed and written to the metrics file.
    """
    metrics = read_metrics(directory)
    missing = [prediction for prediction in _selected(order, to_relax) if prediction.name not in metrics]
    if not missing:
        return
    release(device)
    for prediction in missing:
        if device.type == "cpu" and len(prediction.plddt) > _SLOW_RESIDUES:
            say(f"{prediction.name}: relaxing {len(prediction.plddt)} residues on the CPU, which takes minutes")
        try:
            relaxed = _relaxed(read_unrelaxed(directory, prediction), device)
            write_relaxed(directory, prediction, relaxed, name, origin_of(prediction.name))
        except (RelaxationError, MemoryError) as error:
            reason = str(error) or "out of memory"
            metrics[prediction.name] = {"failed": reason}
            say(f"{prediction.name}: not relaxed: {reason}")
        else:
            metrics[prediction.name] = relaxation_metrics(relaxed)
            say(f"{prediction.name}: {summary(relaxed)}")
        write_metrics(directory, metrics)


def _relaxed(protein: Protein, device: torch.device) -> Relaxed:
    """Relax a prediction. Raise `RelaxationError` if the structure changes too much, for example if chains overlap."""
    relaxed = relax(protein, device=device)
    residues = len(protein.aatype)
    if relaxed.rmsd_held > MAX_RMSD or len(relaxed.freed) > MAX_FREED * residues:
        raise RelaxationError(
            f"its atoms would move by {relaxed.rmsd:.1f} A, and {len(relaxed.freed)} of {residues} residues had to be "
            "placed again, which gives another structure; run `helixfold relax` to relax it all the same"
        )
    return relaxed


def summary(relaxed: Relaxed) -> str:
    """Return a one-line summary of a relaxation: violations, movement of atoms and time."""
    before, after = relaxed.before.residues, relaxed.after.residues
    violations = (
        f"{counted(before, 'residue')} with violations, now {after}" if before else "no violations before or after"
    )
    processor = "the CPU" if relaxed.platform == "CPU" else f"the GPU ({relaxed.platform})"
    return f"relaxed, {violations}; atoms moved {relaxed.rmsd:.2f} A; {relaxed.seconds:.1f} s on {processor}"


def _selected(order: Sequence[Prediction], to_relax: ToRelax) -> Sequence[Prediction]:
    """Return the predictions to relax from all predictions, best first."""
    return {"best": order[:1], "all": order, "none": order[:0]}[to_relax]


# Suffixes of structure files, which may be followed by .gz.
SUFFIXES = (".cif", ".mmcif", ".pdb", ".ent")
_CIF_SUFFIXES = (".cif", ".mmcif")


@optional_output()
def relax_files(
    paths: Sequence[Path],
    *,
    output: Path,
    options: RelaxOptions | None = None,
    device: torch.device | None = None,
    overwrite: bool = False,
) -> int:
    """Relax all chains of each structure file into `output`; return 0, or 1 if a structure could not be relaxed.

    A line about each file is printed. A failed structure does not stop the others. `<name>_relaxed` has the format of
    its input file, and `<name>_relaxed.json` has energies and violations. Only proteins are written: ligands, nucleic
    acids and water are dropped, and modified residues are replaced by standard residues. Before writing anything, raise
    `InputError` if OpenMM is not installed, a file cannot be read or has no protein, an output file exists and
    `overwrite` is False, or another run writes to `output`.
    """
    if not installed():
        raise InputError(f"helixfold relax needs OpenMM and PDBFixer, which are not installed: {INSTALL}")
    targets = {path: _target(path, output) for path in paths}
    _check(targets, overwrite=overwrite)
    structures = {path: read_structure(path) for path in targets}
    for path, structure in structures.items():
        if not structure.chains:
            raise InputError.at(path, "it holds no protein; pass a structure with at least one chain of amino acids")
        if len(structure.chains) > MAX_CHAINS:
            raise InputError.at(path, f"it has {len(structure.chains):,} chains; expected at most {MAX_CHAINS:,}")
    failed_count = 0
    with locked_directory(output):
        for path, structure in structures.items():
            name = printable(path.name)
            try:
                relaxed = relax(protein_from_chains(structure.chains), options, device)
                _write(targets[path], structure, relaxed)
            except (RelaxationError, MemoryError, OSError, ValueError) as error:
                failed_count += 1
                print(f"{name}: not relaxed: {error or 'out of memory'}", file=sys.stderr)
            else:
                print_summary(f"{name}: {summary(relaxed)} -> {targets[path]}")
                if relaxed.after.residues:
                    numbers = ", ".join(map(str, relaxed.flawed[:20]))
                    print_summary(
                        f"{name}: violations are left in residues {numbers}{', ...' * (len(relaxed.flawed) > 20)}"
                    )
    if failed_count:
        total = counted(len(structures), "structure")
        print(f"helixfold: {failed_count} of {total} could not be relaxed", file=sys.stderr)
    return SOME_FAILED if failed_count else 0


def _write(target: Path, structure: Structure, relaxed: Relaxed) -> None:
    """Write a relaxed structure to `target`, and its energies and violations to a JSON file next to it."""
    chain_ids = valid_chain_ids([chain.name for chain in structure.chains])
    if target.suffix in _CIF_SUFFIXES:
        text = _mmcif(structure.name, relaxed, chain_ids)
    else:
        remarks = [f"Relaxed with Amber99sb by helixfold {__version__} and OpenMM.", *relaxation_notes(relaxed)]
        text = to_pdb(relaxed.protein, remarks, relaxed.hydrogens, chain_ids)
    write_file(target, text)
    write_file(target.with_suffix(".json"), to_json(relaxation_metrics(relaxed), indent=4))


def _mmcif(name: str, relaxed: Relaxed, chain_ids: Sequence[str]) -> str:
    """Return the text of an mmCIF file, without the ModelCIF extension because the structure may be experimental."""
    protein, model = relaxed.protein, gemmi.Model(1)
    sequences: dict[str, list[str]] = {}
    chains = split_chains(protein, chain_ids)
    for chain in chains:
        residues: dict[int, gemmi.Residue] = {}
        for source_atom in iterate_atoms(protein, chain, relaxed.hydrogens):
            atom = gemmi.Atom()
            atom.name, atom.element, atom.occ = source_atom.name, gemmi.Element(source_atom.element), 1.0
            atom.pos, atom.b_iso = gemmi.Position(*source_atom.position), source_atom.b_factor
            residues.setdefault(source_atom.residue, _residue(protein, source_atom.residue)).add_atom(atom)
        gemmi_chain = gemmi.Chain(chain.name)
        for residue in residues.values():
            gemmi_chain.add_residue(residue)
        model.add_chain(gemmi_chain)
        sequences[chain.name] = [THREE_LETTER[kind] for kind in protein.aatype[chain.start : chain.stop].tolist()]
    structure = gemmi.Structure()
    structure.name = name
    structure.add_model(model)
    structure.setup_entities()
    for gemmi_chain in structure[0]:
        entity = structure.get_entity_of(gemmi_chain.get_polymer())
        if entity is not None:  # a single residue is not a polymer
            entity.full_sequence = sequences[gemmi_chain.name]
    structure.assign_label_seq_id()
    for bond in ring_bonds(protein, chains):
        structure.connections.append(_connection(protein, bond))
    return str(structure.make_mmcif_document().as_string())


def _residue(protein: Protein, index: int) -> gemmi.Residue:
    """Return a residue of a protein, without atoms."""
    residue = gemmi.Residue()
    residue.name, residue.seqid = THREE_LETTER[protein.aatype[index]], gemmi.SeqId(str(protein.residue_index[index]))
    residue.het_flag = "A"
    return residue


def _connection(protein: Protein, bond: RingBond) -> gemmi.Connection:
    """Return the bond that closes a ring, in the form of an mmCIF file."""
    connection = gemmi.Connection()
    connection.type, connection.asu = gemmi.ConnectionType.Covale, gemmi.Asu.Same
    connection.name, connection.reported_distance = f"ring_{bond.chain}", bond.length
    connection.partner1, connection.partner2 = (
        gemmi.AtomAddress(
            bond.chain, gemmi.SeqId(str(protein.residue_index[residue])), THREE_LETTER[protein.aatype[residue]], atom
        )
        for residue, atom in ((bond.last, "C"), (bond.first, "N"))
    )
    return connection


def _target(path: Path, output: Path) -> Path:
    """Return the path in `output` of the relaxed structure of a file."""
    name = path.name.removesuffix(".gz")
    suffix = Path(name).suffix.lower()
    stem = name[: -len(suffix)] if suffix in SUFFIXES else name
    return output / f"{stem}_relaxed{'.cif' if suffix in _CIF_SUFFIXES else '.pdb'}"


def _check(targets: dict[Path, Path], *, overwrite: bool) -> None:
    """Raise `InputError` if two results have the same path, or a result exists and must not be overwritten."""
    by_target: dict[Path, Path] = {}
    for path, target in targets.items():
        if target in by_target:
            raise InputError.at(path, f"its result and the result of {by_target[target]} have the same name: {target}")
        by_target[target] = path
        if target.exists() and not overwrite:
            raise InputError.at(target, "exists already; choose another --output, or pass --overwrite")
