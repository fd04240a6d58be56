"""Write a predicted structure as mmCIF with the ModelCIF extension, which records confidence and provenance."""

import io
import re
import textwrap
from collections.abc import Iterator, Sequence

import ihm
import modelcif
import modelcif.data
import modelcif.dumper
import modelcif.model
import modelcif.protocol
import modelcif.qa_metric
import numpy as np
from jaxtyping import Float

from data_pipeline import residues
from data_pipeline.protein import Hydrogens, Protein
from helixfold import __version__
from helixfold.write.chains import ChainRange, iterate_atoms, split_chains
from helixfold.write.pdb import plain_text

_SOFTWARE = modelcif.Software(
    name="helixfold",
    classification="model building",
    description="Structure prediction with the AlphaFold 2 network in PyTorch",
    location=None,
    version=__version__,
)
_RELAXATION = modelcif.Software(
    name="OpenMM",
    classification="model refinement",
    description="Relaxation with the Amber99sb force field",
    location="https://openmm.org",
)
# Text that CIF allows unquoted or in simple quotes; CIF's reserved words are excluded.
_SIMPLE_TEXT = re.compile(r"(?!data_|save_|loop_|stop_|global_)[a-z0-9][a-z0-9 ._:,()/+-]{0,70}", re.IGNORECASE)


class _Protein(modelcif.Entity):  # type: ignore[misc]
    """Protein sequence; modelcif would treat one of a single residue as a ligand, not as a polymer."""

    def is_polymeric(self) -> bool:
        return True


class _GlobalPLDDT(modelcif.qa_metric.Global, modelcif.qa_metric.PLDDT):  # type: ignore[misc]
    """Mean of the predicted lDDT-CA over all residues, 0 to 100"""

    name = "pLDDT"
    software = _SOFTWARE


class _LocalPLDDT(modelcif.qa_metric.Local, modelcif.qa_metric.PLDDT):  # type: ignore[misc]
    """Predicted lDDT-CA of the residue, 0 to 100"""

    name = "pLDDT"
    software = _SOFTWARE


class _Model(modelcif.model.AbInitioModel):  # type: ignore[misc]
    """Predicted model whose atoms are read from arrays while they are written."""

    def __init__(
        self,
        name: str,
        protein: Protein,
        chains: Sequence[ChainRange],
        units: Sequence[modelcif.AsymUnit],
        hydrogens: Hydrogens | None,
    ) -> None:
        with_atoms = [
            unit
            for chain, unit in zip(chains, units, strict=True)
            if (protein.atom_mask[chain.start : chain.stop] > 0.5).any()
        ]
        super().__init__(assembly=modelcif.Assembly(with_atoms), name=name)
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


def to_mmcif(
    protein: Protein,
    *,
    name: str,
    model: str,
    notes: Sequence[str] = (),
    plddt: Float[np.ndarray, "r"] | None = None,
    hydrogens: Hydrogens | None = None,
    chain_ids: Sequence[str] = (),
) -> str:
    """Return the text of a ModelCIF file of target `name` as predicted by `model`; the B-factors are pLDDT.

    Chains are named by `chain_ids`, in the order of `protein.chain_index`, or A, B, ... without them; chains of the
    same sequence are one entity. The file has the whole sequence of each, the atoms with mask above 0.5, the software
    and modelling steps, pLDDT of each residue and its mean, and the notes. Residues of a chain are numbered from 1 in
    `label_seq_id` and as in `protein.residue_index` in `auth_seq_id`. Without `plddt`, residues that have atoms get
    their mean B-factor. With `hydrogens`, which relaxation adds, relaxation is named as a step.
    """
    chains = split_chains(protein, chain_ids)
    alphabet = ihm.LPeptideAlphabet()
    entities: dict[tuple[str, ...], _Protein] = {}
    units = []
    for chain in chains:
        aatypes = protein.aatype[chain.start : chain.stop].tolist()
        codes = tuple("UNK" if aatype == residues.UNKNOWN else residues.RESTYPES[aatype] for aatype in aatypes)
        entity = entities.setdefault(codes, _Protein([alphabet[code] for code in codes], description=_text(name)))
        numbers = protein.residue_index[chain.start : chain.stop].tolist()
        units.append(modelcif.AsymUnit(entity, id=chain.name, auth_seq_id_map=dict(enumerate(numbers, 1))))

    system = modelcif.System(
        title=_text(name),
        id=_identifier(name),
        model_details=_text(*notes) if notes else None,
    )
    system.entities.extend(entities.values())
    system.asym_units.extend(units)
    predicted = _Model(_text(model), protein, chains, units, hydrogens)
    _add_confidence(predicted, protein, units, plddt)
    system.model_groups.append(modelcif.model.ModelGroup([predicted], name="prediction"))

    protocol = modelcif.protocol.Protocol()
    protocol.steps.append(
        modelcif.protocol.ModelingStep(
            input_data=modelcif.data.DataGroup(entities.values()),
            output_data=predicted,
            name="prediction",
            details=_text(f"Predicted from sequence by {model}.", *notes),
            software=_SOFTWARE if hydrogens is None else modelcif.SoftwareGroup([_SOFTWARE, _RELAXATION]),
        )
    )
    system.protocols.append(protocol)

    text = io.StringIO()
    modelcif.dumper.write(text, [system])
    return text.getvalue()


def _add_confidence(
    predicted: _Model,
    protein: Protein,
    units: Sequence[modelcif.AsymUnit],
    plddt: Float[np.ndarray, "r"] | None,
) -> None:
    mask = protein.atom_mask > 0.5
    modelled = np.asarray(mask.any(-1))
    if plddt is None:
        plddt = np.where(mask, protein.b_factors, 0.0).sum(-1) / np.maximum(mask.sum(-1), 1)
        scored = modelled
    else:
        scored = np.ones_like(modelled)
    places = [unit.residue(seq_id) for unit in units for seq_id in range(1, len(unit.entity.sequence) + 1)]

    predicted.qa_metrics.append(_GlobalPLDDT(f"{plddt[scored].mean():.2f}"))
    predicted.qa_metrics += [_LocalPLDDT(places[i], f"{plddt[i]:.2f}") for i in np.flatnonzero(scored).tolist()]
    predicted.not_modeled_residue_ranges += [
        modelcif.model.NotModeledResidueRange(places[i].asym, places[i].seq_id, places[i].seq_id)
        for i in np.flatnonzero(~modelled).tolist()
    ]


def _identifier(name: str) -> str:
    """Return the name as one word that is valid for a data block."""
    word = re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:60]
    return word if _SIMPLE_TEXT.fullmatch(word) else f"target_{word}"


def _text(*lines: str) -> str:
    """Return text that the CIF writer writes correctly: simple text unchanged, anything else as a text field.

    The writer's own quoting fails for some mixtures of quotes, reserved words and comment signs.
    """
    plain = [plain_text(line) for line in lines]
    if len(plain) == 1 and _SIMPLE_TEXT.fullmatch(plain[0]):
        return plain[0]
    # A line that starts with a semicolon would end the field.
    return "\n".join(textwrap.fill(line, 78) for line in plain).replace("\n;", "\n ;") + "\n"
