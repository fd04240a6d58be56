"""The steps that made a model in ModelCIF's categories, with their software, databases and templates."""

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import ihm
import modelcif
import modelcif.alignment
import modelcif.data
import modelcif.model
import modelcif.protocol
import modelcif.reference

from data_pipeline.residues import RESTYPES
from data_pipeline.search.database import SearchedDatabase
from helixfold.write.cif_text import cif_line, cif_text, cif_word
from helixfold.write.model_scores import HELIXFOLD
from helixfold.write.origin import AlignedTemplate, ModelOrigin
from helixfold.write.provenance import SearchPurpose

_OPENMM = modelcif.Software(
    name="OpenMM",
    classification="model refinement",
    description="Relaxation with the Amber99sb force field",
    location="https://openmm.org",
)
# Entry and chain of the Protein Data Bank; its longer codes begin with pdb_ and have letters.
_PDB_NAME = re.compile(r"([0-9][A-Za-z0-9]{3}|pdb_[A-Za-z0-9]{8})_([A-Za-z0-9]{1,4})")


class ProteinEntity(modelcif.Entity):  # type: ignore[misc]
    """Protein sequence; modelcif would treat one of a single residue as a ligand, not as a polymer."""

    def is_polymeric(self) -> bool:
        """Return True."""
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
    """Return the entity of a sequence, with X for residues that are none of the twenty."""
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
    """Add the protocol to a system: searches, prediction by a network, and relaxation, as far as there were any."""
    system.alignments += [_aligned(template, units) for template in origin.templates]
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
                    software=HELIXFOLD,
                )
            )
    if origin.searches_for("templates"):
        protocol.steps.append(
            modelcif.protocol.TemplateSearchStep(
                input_data=modelcif.data.DataGroup([*inputs, *_searched(origin, "templates", databases)]),
                output_data=modelcif.data.DataGroup(templates) if templates else None,
                name="search for templates",
                details=_details(origin, "templates"),
                software=HELIXFOLD,
            )
        )
    # modelcif leaves out data that are in no group.
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
    """Return helixfold with its settings, and the libraries that it computed with."""
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
        if name != HELIXFOLD.name
    ]
    return modelcif.SoftwareGroup([modelcif.SoftwareWithParameters(HELIXFOLD, parameters), *others])


def _setting(value: str | int | float | bool) -> str | int | float | bool:
    """Return a value that is written as it is: the CIF writer gives numbers three decimals."""
    if isinstance(value, float) and value != round(value, 3):
        value = repr(value)
    return cif_line(value, "value") if isinstance(value, str) else value


def _searched(
    origin: ModelOrigin, purpose: SearchPurpose, databases: Mapping[SearchedDatabase, modelcif.ReferenceDatabase]
) -> list[modelcif.ReferenceDatabase]:
    """Return the databases of all searches for a purpose, each once."""
    found = (each for search in origin.searches_for(purpose) for each in search.databases)
    return [databases[each] for each in dict.fromkeys(found)]


def _details(origin: ModelOrigin, purpose: SearchPurpose) -> str:
    return cif_text(*(search.search for search in origin.searches_for(purpose)))


def _database(database: SearchedDatabase) -> modelcif.ReferenceDatabase:
    return modelcif.ReferenceDatabase(
        name=cif_line(database.name, "database"),
        # The dictionary allows no question mark in it, for one.
        url=None if database.url is None else quote(database.url, safe="/:~%+,"),
        version=None if database.version is None else cif_word(database.version, "version"),
    )


def _aligned(template: AlignedTemplate, units: Sequence[modelcif.AsymUnit]) -> _TemplateAlignment:
    """Return the alignment of a template to its chain.

    Features have no other residues of a template than the aligned ones, so these are its sequence here.
    """
    unit = next((unit for unit in units if unit.id == template.chain_id), None)
    if unit is None or len(template.residues) != len(unit.entity.sequence):
        raise ValueError(
            f"template {template.name} must have a letter for each residue of a chain of the model, got "
            f"{len(template.residues)} letters for chain {template.chain_id}"
        )
    found = _PDB_NAME.fullmatch(template.name)
    name = cif_line(template.name, "template")
    reference = (
        modelcif.reference.PDB(found[1].upper()) if found else _OtherStructure(cif_word(template.name, "structure"))
    )
    places = [place for place, letter in enumerate(template.residues) if letter != "-"]
    first, last = places[0], places[-1]
    entity = entity_of("".join(template.residues[place] for place in places))
    source = modelcif.Template(
        entity,
        asym_id=None,
        model_num=1,
        transformation=modelcif.Transformation.identity(),
        name=name,
        references=[reference],
        strand_id=found[2] if found else "A",
    )
    target = "".join(component.code_canonical for component in unit.entity.sequence)
    same = sum(template.residues[place] == target[place] for place in places)
    return _TemplateAlignment(
        f"alignment to {name}",
        [
            modelcif.alignment.Pair(
                source.segment(template.residues[first : last + 1], 1, len(places)),
                unit.segment(target[first : last + 1], first + 1, last + 1),
                identity=modelcif.alignment.AlignedResiduePairsIdentity(f"{100 * same / len(places):.1f}"),
            )
        ],
    )
