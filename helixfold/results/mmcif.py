"""Write a predicted structure as mmCIF with the ModelCIF extension, which records confidence and provenance.

`PAE_METRIC` is the number under which files define PAE.
"""

import io
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import Any, Final
from urllib.parse import quote

import ihm
import ihm.dumper
import modelcif
import modelcif.alignment
import modelcif.associated
import modelcif.data
import modelcif.dumper
import modelcif.model
import modelcif.protocol
import modelcif.qa_metric
import modelcif.reference
import numpy as np
from jaxtyping import Float

from data_pipeline import residues
from data_pipeline.protein import Hydrogens, Protein
from data_pipeline.residues import RESTYPES
from data_pipeline.search.database import SearchedDatabase
from helixfold import __version__
from helixfold.folding.provenance import RecordedSearch, SearchPurpose
from helixfold.folding.templates import AlignedTemplate
from helixfold.results.chains import ChainRange, RingBond, iterate_atoms, ring_bonds, split_chains
from helixfold.results.file_table import PAE, PAE_PAIRS
from helixfold.results.pdb import plain_text

# This program as an entry of a ModelCIF file.
_HELIXFOLD = modelcif.Software(
    name="helixfold",
    classification="model building",
    description="Structure prediction with the AlphaFold 2 network in PyTorch",
    location=None,
    version=__version__,
)
# modelcif numbers the kinds of scores in the order in which they are added. PAE is always the third.
PAE_METRIC: Final = 3
_OPENMM = modelcif.Software(
    name="OpenMM",
    classification="model refinement",
    description="Relaxation with the Amber99sb force field",
    location="https://openmm.org",
)
# Entry and chain of the Protein Data Bank. Its new, longer codes begin with pdb_.
_PDB_NAME = re.compile(r"([0-9][A-Za-z0-9]{3}|pdb_[A-Za-z0-9]{8})_([A-Za-z0-9]{1,4})")


@dataclass(frozen=True, kw_only=True)
class ModelOrigin:
    """Provenance of a model for its ModelCIF file: software, parameters, settings, searches and templates.

    Unknown items are empty and left out of the file.
    """

    software: Mapping[str, str] = field(default_factory=dict)  # versions by program, such as torch
    parameters: str = ""  # the name of the network's parameters, such as the name of their file
    parameters_digest: str = ""  # SHA-256
    settings: Mapping[str, str | int | float | bool] = field(default_factory=dict)  # such as seed and dtype, by name
    searches: tuple[RecordedSearch, ...] = ()
    templates: tuple[AlignedTemplate, ...] = ()

    def searches_for(self, purpose: SearchPurpose) -> list[RecordedSearch]:
        """Return the searches for one purpose."""
        return [search for search in self.searches if search.purpose == purpose]


@dataclass(frozen=True, kw_only=True)
class ModelScores:
    """Confidence scores of a model for its ModelCIF file; scores that are None are left out."""

    plddt: Float[np.ndarray, "r"] | None = None  # 0 to 100; None: mean B-factors of the residues that have atoms
    ptm: float | None = None
    iptm: float | None = None
    tm_by_chain: Float[np.ndarray, "k k"] | None = None  # see `TmScores.by_chain`
    has_pae: bool = False  # The errors are in a separate file.


class ProteinEntity(modelcif.Entity):  # type: ignore[misc]
    """A protein sequence; modelcif would treat a sequence of one residue as a ligand instead of a polymer."""

    def is_polymeric(self) -> bool:
        """Return True, also for one residue."""
        return True


class _Alignment(modelcif.data.Data):  # type: ignore[misc]
    data_content_type = "coevolution MSA"


class _Unrelaxed(modelcif.data.Data):  # type: ignore[misc]
    """The coordinates before relaxation, which are in a file of their own."""

    data_content_type = "model coordinates"


class _TemplateAlignment(modelcif.alignment.Local, modelcif.alignment.Pairwise):  # type: ignore[misc]
    """Alignment of one template to one chain."""


class _OtherStructure(modelcif.reference.TemplateReference):  # type: ignore[misc]
    """structure file that is not known to be of the Protein Data Bank"""


def entity_of(letters: str, description: str | None = None) -> ProteinEntity:
    """Return a new ModelCIF entity of a sequence; letters other than the twenty amino acids become UNK."""
    alphabet = ihm.LPeptideAlphabet()
    return ProteinEntity(
        [alphabet[letter if letter in RESTYPES else "UNK"] for letter in letters], description=description
    )


def add_steps(
    system: modelcif.System,
    model: modelcif.model.Model,
    units: Sequence[modelcif.AsymUnit],
    *,
    network: str,
    notes: Sequence[str],
    origin: ModelOrigin,
    is_relaxed: bool,
) -> None:
    """Add the modelling protocol to a system: the searches, prediction by a network, and relaxation, where done.

    The alignments of the templates in `origin` are added, too. `units` are the system's chains. The notes become
    details of the prediction step, which names the `network`.
    """
    system.alignments += [_template_alignment(template, units) for template in origin.templates]
    templates = [pair.template.template for alignment in system.alignments for pair in alignment.pairs]
    targets, protocol = list(dict.fromkeys(unit.entity for unit in units)), modelcif.protocol.Protocol()
    inputs: list[Any] = [*targets]
    databases = {each: _database(each) for search in origin.searches for each in search.databases}
    alignments: list[tuple[SearchPurpose, str, str]] = [
        ("alignment", "alignment", "search for relatives"),
        ("pairs", "alignment of pairs", "search for relatives of several chains"),
    ]
    for purpose, result, name in alignments:
        if origin.searches_for(purpose):
            inputs.append(_Alignment(result))
            protocol.steps.append(
                modelcif.protocol.CoevolutionMSAStep(
                    input_data=modelcif.data.DataGroup([*targets, *_searched(origin, purpose, databases)]),
                    output_data=modelcif.data.DataGroup([inputs[-1]]),
                    name=name,
                    details=_details(origin, purpose),
                    software=_HELIXFOLD,
                )
            )
    if origin.searches_for("templates"):
        protocol.steps.append(
            modelcif.protocol.TemplateSearchStep(
                input_data=modelcif.data.DataGroup([*inputs, *_searched(origin, "templates", databases)]),
                output_data=modelcif.data.DataGroup(templates) if templates else None,
                name="search for templates",
                details=_details(origin, "templates"),
                software=_HELIXFOLD,
            )
        )
    # The model is in a group, because modelcif leaves out data that are not in one.
    predicted = modelcif.data.DataGroup([_Unrelaxed("unrelaxed model") if is_relaxed else model])
    protocol.steps.append(
        modelcif.protocol.ModelingStep(
            input_data=modelcif.data.DataGroup([*inputs, *templates, *system.alignments]),
            output_data=predicted,
            name="prediction",
            details=cif_text(f"Predicted from sequence by {network}.", *notes),
            software=_software(network, origin),
        )
    )
    if is_relaxed:
        protocol.steps.append(
            modelcif.protocol.ModelRefinementStep(
                input_data=predicted, output_data=model, name="relaxation", software=_OPENMM
            )
        )
    system.protocols.append(protocol)


def _software(network: str, origin: ModelOrigin) -> modelcif.SoftwareGroup:
    """Return helixfold with its settings, and the libraries that it used."""
    settings = {
        "network": network,
        "parameters": origin.parameters,
        "parameters_sha256": origin.parameters_digest,
        **origin.settings,
    }
    parameters = [
        modelcif.SoftwareParameter(cif_word(name, "setting"), _setting(value))
        for name, value in settings.items()
        if value != ""
    ]
    others = [
        modelcif.Software(
            name=cif_line(name, "program"),
            classification="library",
            description=None,
            location=None,
            type="library",
            version=cif_line(version, "version"),
        )
        for name, version in origin.software.items()
        if name != _HELIXFOLD.name
    ]
    return modelcif.SoftwareGroup([modelcif.SoftwareWithParameters(_HELIXFOLD, parameters), *others])


def _setting(value: str | int | float | bool) -> str | int | float | bool:
    """Return a value that the CIF writer does not round; it writes floats with three decimals."""
    if isinstance(value, float) and value != round(value, 3):
        value = repr(value)
    return cif_line(value, "value") if isinstance(value, str) else value


def _searched(
    origin: ModelOrigin, purpose: SearchPurpose, databases: Mapping[SearchedDatabase, modelcif.ReferenceDatabase]
) -> list[modelcif.ReferenceDatabase]:
    """Return the databases of all searches for a purpose, each once."""
    searched = (each for search in origin.searches_for(purpose) for each in search.databases)
    return [databases[each] for each in dict.fromkeys(searched)]


def _details(origin: ModelOrigin, purpose: SearchPurpose) -> str:
    return cif_text(*(search.search for search in origin.searches_for(purpose)))


def _database(database: SearchedDatabase) -> modelcif.ReferenceDatabase:
    return modelcif.ReferenceDatabase(
        name=cif_line(database.name, "database"),
        # The URL is quoted, because the dictionary does not allow some of its characters, such as question marks.
        url=None if database.url is None else quote(database.url, safe="/:~%+,"),
        version=None if database.version is None else cif_word(database.version, "version"),
    )


def _template_alignment(template: AlignedTemplate, units: Sequence[modelcif.AsymUnit]) -> _TemplateAlignment:
    """Return the alignment of a template to its chain.

    The template's sequence consists of the aligned residues only, because the features do not have the others.
    """
    unit = next((unit for unit in units if unit.id == template.chain_id), None)
    if unit is None or len(template.residues) != len(unit.entity.sequence):
        raise ValueError(
            f"template {template.name} must have a letter for each residue of a chain of the model, got "
            f"{len(template.residues)} letters for chain {template.chain_id}"
        )
    match = _PDB_NAME.fullmatch(template.name)
    name = cif_line(template.name, "template")
    reference = (
        modelcif.reference.PDB(match[1].upper()) if match else _OtherStructure(cif_word(template.name, "structure"))
    )
    indices = [index for index, letter in enumerate(template.residues) if letter != "-"]
    first, last = indices[0], indices[-1]
    entity = entity_of("".join(template.residues[index] for index in indices))
    source = modelcif.Template(
        entity,
        asym_id=None,
        model_num=1,
        transformation=modelcif.Transformation.identity(),
        name=name,
        references=[reference],
        strand_id=match[2] if match else "A",
    )
    target = "".join(component.code_canonical for component in unit.entity.sequence)
    same = sum(template.residues[index] == target[index] for index in indices)
    return _TemplateAlignment(
        f"alignment to {name}",
        [
            modelcif.alignment.Pair(
                source.segment(template.residues[first : last + 1], 1, len(indices)),
                unit.segment(target[first : last + 1], first + 1, last + 1),
                identity=modelcif.alignment.AlignedResiduePairsIdentity(f"{100 * same / len(indices):.1f}"),
            )
        ],
    )


# The Protein Data Bank's words for 1, 2, ... chains. Larger numbers are written like "7-meric".
_OLIGOMERS = ("monomeric", "dimeric", "trimeric", "tetrameric", "pentameric", "hexameric")


class _Model(modelcif.model.Model):  # type: ignore[misc]
    """A predicted model that creates its atoms from arrays only while they are written."""

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
    """Writes the categories that describe all chains as one assembly, which modelcif does not write."""

    def dump(self, system: modelcif.System, writer: Any) -> None:
        names = ",".join(unit.id for unit in system.asym_units)
        count = len(system.asym_units)
        # gemmi requires these columns, and one of the Protein Data Bank's words for the source of an assembly.
        columns = ["id", "details", "method_details", "oligomeric_details", "oligomeric_count"]
        with writer.loop("_pdbx_struct_assembly", columns) as loop:
            oligomer = _OLIGOMERS[count - 1] if count <= len(_OLIGOMERS) else f"{count}-meric"
            loop.write(id=1, details="software_defined_assembly", oligomeric_details=oligomer, oligomeric_count=count)
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
        ends = [self._end(bond, 1, bond.last, "C") | self._end(bond, 2, bond.first, "N") for bond in self._bonds]
        with writer.loop("_struct_conn", ["id", "conn_type_id", *ends[0], "pdbx_dist_value"]) as loop:
            for serial, (bond, both) in enumerate(zip(self._bonds, ends, strict=True), 1):
                loop.write(id=f"covale{serial}", conn_type_id="covale", **both, pdbx_dist_value=f"{bond.length:.3f}")

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

    `model` is the name of the prediction, as in the names of its files. Chains are named by `chain_ids`, in the order
    of `protein.chain_index`, or A, B, ... by default. Chains of the same sequence are one entity, and all chains are
    one assembly. The file has the whole sequence of each chain, the atoms with a mask above 0.5, the scores and notes,
    the modelling steps, and the software and other provenance in `origin`. Residues of a chain are numbered from 1 in
    `label_seq_id`, and as in `protein.residue_index` in `auth_seq_id`. The bond between the ends of a cyclic chain is
    in `_struct_conn`. With `hydrogens`, which relaxation adds, the steps include relaxation. With `scores.has_pae`, the
    file refers to the files of predicted aligned errors next to it.
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

    system = modelcif.System(title=cif_text(name), id=cif_word(name), model_details=cif_text(*notes) if notes else None)
    system.entities.extend(entities.values())
    system.asym_units.extend(units)
    predicted = _Model(cif_text(model), protein, chains, units, hydrogens, by_templates=bool(origin.templates))
    add_scores(predicted, protein, units, scores)
    system.model_groups.append(modelcif.model.ModelGroup([predicted], name="prediction"))
    add_steps(system, predicted, units, network=model, notes=notes, origin=origin, is_relaxed=hydrogens is not None)
    if scores.has_pae:
        pairs, matrix = PAE_PAIRS.name(prediction=model), PAE.name(prediction=model)
        errors = [
            _PairwiseFile(pairs, "Predicted aligned errors in the category ma_qa_metric_local_pairwise, BinaryCIF"),
            _JsonFile(matrix, "Predicted aligned errors in the format of AlphaFold DB"),
        ]
        system.repositories.append(modelcif.associated.Repository(None, errors))
    text = io.StringIO()
    modelcif.dumper.write(text, [system], dumpers=[_AssemblyDumper, partial(_RingBondDumper, protein, chains)])
    return text.getvalue()


class _GlobalPLDDT(modelcif.qa_metric.Global, modelcif.qa_metric.PLDDT):  # type: ignore[misc]
    """Mean of the predicted lDDT-CA over all residues, 0 to 100"""

    name, software = "pLDDT", _HELIXFOLD


class _LocalPLDDT(modelcif.qa_metric.Local, modelcif.qa_metric.PLDDT):  # type: ignore[misc]
    """Predicted lDDT-CA of the residue, 0 to 100"""

    name, software = "pLDDT", _HELIXFOLD


class _PAE(modelcif.qa_metric.MetricMode, modelcif.qa_metric.PAE):  # type: ignore[misc]
    """Predicted aligned error of the second residue, aligned on the first, in Angstrom; see the associated file"""

    # modelcif's class for pairs is not used, because it would write the values into the model's own file.
    name, mode, software = "PAE", "local-pairwise", _HELIXFOLD


class _GlobalPTM(modelcif.qa_metric.Global, modelcif.qa_metric.PTM):  # type: ignore[misc]
    """Predicted TM-score, 0 to 1"""

    name, software = "pTM", _HELIXFOLD


class _GlobalIpTM(modelcif.qa_metric.Global, modelcif.qa_metric.IpTM):  # type: ignore[misc]
    """Predicted TM-score of the chains relative to each other, 0 to 1"""

    name, software = "ipTM", _HELIXFOLD


class _ChainPTM(modelcif.qa_metric.Feature, modelcif.qa_metric.PTM):  # type: ignore[misc]
    """Predicted TM-score of the chain, 0 to 1"""

    name, software = "pTM of a chain", _HELIXFOLD


class _PairIpTM(modelcif.qa_metric.FeaturePairwise, modelcif.qa_metric.IpTM):  # type: ignore[misc]
    """Predicted TM-score of two chains relative to each other, the better of both directions, 0 to 1"""

    name, software = "ipTM of two chains", _HELIXFOLD


def add_scores(
    model: modelcif.model.Model, protein: Protein, units: Sequence[modelcif.AsymUnit], scores: ModelScores
) -> None:
    """Add the scores and the list of residues without atoms to a model; `units` are the protein's chains.

    The mean pLDDT is over all residues, or over residues with atoms if it comes from B-factors. Only residues with
    atoms get a pLDDT of their own, because the dictionary requires every scored residue to have atoms.
    """
    mask = protein.atom_mask > 0.5
    modelled = np.asarray(mask.any(-1))
    plddt, scored = scores.plddt, np.ones_like(modelled)
    if plddt is None:
        plddt = np.where(mask, protein.b_factors, 0.0).sum(-1) / np.maximum(mask.sum(-1), 1)
        scored = modelled
    residues = [unit.residue(seq_id) for unit in units for seq_id in range(1, len(unit.entity.sequence) + 1)]
    model.qa_metrics.append(_GlobalPLDDT(f"{plddt[scored].mean():.2f}"))
    model.qa_metrics += [_LocalPLDDT(residues[i], f"{plddt[i]:.2f}") for i in np.flatnonzero(modelled).tolist()]
    if scores.has_pae:
        model.qa_metrics.append(_PAE())
    for kind, value in ((_GlobalPTM, scores.ptm), (_GlobalIpTM, scores.iptm)):
        if value is not None:
            model.qa_metrics.append(kind(f"{value:.4f}"))
    if scores.tm_by_chain is not None and len(units) > 1:
        tm, chains = scores.tm_by_chain, [modelcif.EntityInstanceFeature([unit]) for unit in units]
        model.qa_metrics += [_ChainPTM(chain, f"{tm[index, index]:.4f}") for index, chain in enumerate(chains)]
        model.qa_metrics += [
            _PairIpTM(chains[first], chains[second], f"{max(tm[first, second], tm[second, first]):.4f}")
            for first, second in combinations(range(len(chains)), 2)
        ]
    model.not_modeled_residue_ranges += [
        modelcif.model.NotModeledResidueRange(residues[i].asym, residues[i].seq_id, residues[i].seq_id)
        for i in np.flatnonzero(~modelled).tolist()
    ]


# Text that CIF allows without quotes or in simple quotes, which excludes CIF's reserved words.
_SIMPLE_TEXT = re.compile(r"(?!data_|save_|loop_|stop_|global_)[a-z0-9][a-z0-9 ._:,()/+-]{0,70}", re.IGNORECASE)
_MAX_LINE_LENGTH, _MAX_WORD_LENGTH = 70, 60


def cif_text(*lines: str) -> str:
    """Return text for a CIF item of any length: simple text unchanged, other text as a field of several lines."""
    plain = [plain_text(line) for line in lines]
    if len(plain) == 1 and _SIMPLE_TEXT.fullmatch(plain[0]):
        return plain[0]
    # A line that starts with a semicolon would end the field.
    return "\n".join(textwrap.fill(line, 78) for line in plain).replace("\n;", "\n ;") + "\n"


def cif_line(text: str, prefix: str = "target") -> str:
    """Return text for a CIF item of one line: unsuitable characters are replaced, and long text is truncated.

    `prefix` is put before text that CIF would not allow without quotes.
    """
    line = " ".join(re.sub(r"[^A-Za-z0-9 ._:,()/+-]", "_", plain_text(text)).split())[:_MAX_LINE_LENGTH].strip()
    return line if _SIMPLE_TEXT.fullmatch(line) else f"{prefix} {line}".strip()


def cif_word(text: str, prefix: str = "target") -> str:
    """Return text for a CIF item of one word, such as the name of a data block; see `cif_line`."""
    word = re.sub(r"[^A-Za-z0-9_.-]", "_", text)[:_MAX_WORD_LENGTH]
    return word if _SIMPLE_TEXT.fullmatch(word) else f"{prefix}_{word}"
