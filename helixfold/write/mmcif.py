"""Write a predicted structure as mmCIF with the ModelCIF extension, which records confidence and provenance."""

import io
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import ihm.dumper
import modelcif
import modelcif.associated
import modelcif.dumper
import modelcif.model

from data_pipeline import residues
from data_pipeline.protein import Hydrogens, Protein
from helixfold.write.chains import ChainRange, RingBond, iterate_atoms, ring_bonds, split_chains
from helixfold.write.cif_text import cif_line, cif_text, cif_word
from helixfold.write.model_scores import ModelScores, add_scores
from helixfold.write.modeling_steps import ProteinEntity, add_steps, entity_of
from helixfold.write.origin import ModelOrigin

# Words of the Protein Data Bank for 1, 2, ... chains; more are "7-meric" and so on.
_OLIGOMERS = ("monomeric", "dimeric", "trimeric", "tetrameric", "pentameric", "hexameric")


class _Model(modelcif.model.Model):  # type: ignore[misc]
    """Predicted model whose atoms are read from arrays while they are written."""

    other_details = None

    def __init__(
        self,
        name: str,
        protein: Protein,
        chains: Sequence[ChainRange],
        units: Sequence[modelcif.AsymUnit],
        hydrogens: Hydrogens | None,
        *,
        by_templates: bool,
    ) -> None:
        with_atoms = [
            unit
            for chain, unit in zip(chains, units, strict=True)
            if (protein.atom_mask[chain.start : chain.stop] > 0.5).any()
        ]
        super().__init__(assembly=modelcif.Assembly(with_atoms), name=name)
        self.model_type = "Homology model" if by_templates else "Ab initio model"
        self._protein, self._chains, self._units, self._hydrogens = protein, chains, units, hydrogens

    def get_atoms(self) -> Iterator[modelcif.model.Atom]:
        for chain, unit in zip(self._chains, self._units, strict=True):
            for atom in iterate_atoms(self._protein, chain, self._hydrogens):
                x, y, z = (f"{value:.3f}" for value in atom.position)
                yield modelcif.model.Atom(
                    asym_unit=unit,
                    seq_id=atom.residue - chain.start + 1,
                    atom_id=atom.name,
                    type_symbol=atom.element,
                    x=x,
                    y=y,
                    z=z,
                    biso=f"{atom.b_factor:.2f}",
                    occupancy="1.00",
                )


class _PairwiseFile(modelcif.associated.File):  # type: ignore[misc]
    file_format, file_content = "gzip", "QA metrics"


class _JsonFile(modelcif.associated.File):  # type: ignore[misc]
    file_format, file_content = "json", "QA metrics"


class _AssemblyDumper(ihm.dumper.Dumper):  # type: ignore[misc]
    """Writes that all chains, where they stand, are one assembly, which modelcif does not write."""

    def dump(self, system: modelcif.System, writer: Any) -> None:
        names = ",".join(unit.id for unit in system.asym_units)
        count = len(system.asym_units)
        # gemmi wants these columns and one of the Protein Data Bank's words for where an assembly comes from.
        columns = ["id", "details", "method_details", "oligomeric_details", "oligomeric_count"]
        with writer.loop("_pdbx_struct_assembly", columns) as loop:
            number = _OLIGOMERS[count - 1] if count <= len(_OLIGOMERS) else f"{count}-meric"
            loop.write(id=1, details="software_defined_assembly", oligomeric_details=number, oligomeric_count=count)
        with writer.category("_pdbx_struct_assembly_gen") as category:
            category.write(assembly_id=1, oper_expression="1", asym_id_list=names)
        with writer.category("_pdbx_struct_oper_list") as category:
            matrix = {f"matrix[{row}][{column}]": int(row == column) for row in (1, 2, 3) for column in (1, 2, 3)}
            category.write(
                id=1, type="identity operation", name="1_555", **matrix, **{f"vector[{row}]": 0 for row in (1, 2, 3)}
            )


class _RingBondDumper(ihm.dumper.Dumper):  # type: ignore[misc]
    """Writes the bonds between the ends of cyclic chains, which modelcif does not write."""

    def __init__(self, protein: Protein, chains: Sequence[ChainRange]) -> None:
        super().__init__()
        self._protein, self._chains = protein, {chain.name: chain for chain in chains}
        self._bonds = ring_bonds(protein, chains)

    def dump(self, _: modelcif.System, writer: Any) -> None:
        if not self._bonds:
            return
        with writer.category("_struct_conn_type") as category:
            category.write(id="covale")
        items = ["label_asym_id", "label_comp_id", "label_seq_id", "label_atom_id", "auth_asym_id", "auth_seq_id"]
        items.append("symmetry")
        columns = [f"ptnr{number}_{item}" for number in (1, 2) for item in items]
        with writer.loop("_struct_conn", ["id", "conn_type_id", *columns, "pdbx_dist_value"]) as loop:
            for number, bond in enumerate(self._bonds, 1):
                ends = self._end(bond, 1, bond.last, "C") | self._end(bond, 2, bond.first, "N")
                loop.write(id=f"covale{number}", conn_type_id="covale", **ends, pdbx_dist_value=f"{bond.length:.3f}")

    def _end(self, bond: RingBond, partner: int, residue: int, atom: str) -> dict[str, object]:
        values = {
            "label_asym_id": bond.chain,
            "label_comp_id": residues.THREE_LETTER[self._protein.aatype[residue]],
            "label_seq_id": residue - self._chains[bond.chain].start + 1,
            "label_atom_id": atom,
            "auth_asym_id": bond.chain,
            "auth_seq_id": int(self._protein.residue_index[residue]),
            "symmetry": "1_555",
        }
        return {f"ptnr{partner}_{item}": value for item, value in values.items()}


def to_mmcif(
    protein: Protein,
    *,
    name: str,
    model: str,
    notes: Sequence[str] = (),
    scores: ModelScores | None = None,
    hydrogens: Hydrogens | None = None,
    chain_ids: Sequence[str] = (),
    origin: ModelOrigin | None = None,
) -> str:
    """Return the text of a ModelCIF file of target `name` as predicted by `model`; the B-factors are pLDDT.

    Chains are named by `chain_ids`, in the order of `protein.chain_index`, or A, B, ... without them; chains of the
    same sequence are one entity, and all chains are one assembly. The file has the whole sequence of each, the atoms
    with mask above 0.5, the software, the modelling steps and what else is known of its origin, the scores and the
    notes. Residues of a chain are numbered from 1 in `label_seq_id` and as in `protein.residue_index` in `auth_seq_id`.
    The bond between the ends of a cyclic chain is one of `_struct_conn`.
    With `hydrogens`, which relaxation adds, relaxation is named as a step. With `scores.has_pae`, the predicted aligned
    errors are named as files beside this one.
    """
    scores, origin = scores or ModelScores(), origin or ModelOrigin()
    chains = split_chains(protein, chain_ids)
    entities: dict[str, ProteinEntity] = {}
    units = []
    for chain in chains:
        kinds = protein.aatype[chain.start : chain.stop].tolist()
        letters = "".join(residues.RESTYPES_WITH_X[kind] for kind in kinds)
        entity = entities.setdefault(letters, entity_of(letters, cif_line(name)))
        numbers = protein.residue_index[chain.start : chain.stop].tolist()
        units.append(modelcif.AsymUnit(entity, id=chain.name, auth_seq_id_map=dict(enumerate(numbers, 1))))

    system = modelcif.System(title=cif_text(name), id=entry_id(name), model_details=cif_text(*notes) if notes else None)
    system.entities.extend(entities.values())
    system.asym_units.extend(units)
    predicted = _Model(cif_text(model), protein, chains, units, hydrogens, by_templates=bool(origin.templates))
    add_scores(predicted, protein, units, scores)
    system.model_groups.append(modelcif.model.ModelGroup([predicted], name="prediction"))
    add_steps(system, predicted, units, network=model, notes=notes, origin=origin, is_relaxed=hydrogens is not None)
    if scores.has_pae:
        system.repositories.append(modelcif.associated.Repository(None, _error_files(model)))
    text = io.StringIO()
    modelcif.dumper.write(text, [system], dumpers=[_AssemblyDumper, partial(_RingBondDumper, protein, chains)])
    return text.getvalue()


def entry_id(name: str) -> str:
    """Return the identifier of a target's entry, which is also the name of the data block."""
    return cif_word(name)


def _error_files(model: str) -> list[modelcif.associated.File]:
    return [
        _PairwiseFile(
            f"pae_{model}.bcif.gz", "Predicted aligned errors in the category ma_qa_metric_local_pairwise, BinaryCIF"
        ),
        _JsonFile(f"pae_{model}.json", "Predicted aligned errors in the format of AlphaFold DB"),
    ]
