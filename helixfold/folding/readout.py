"""Read predictions off the outputs of a recycling iteration: structures, confidences and representations."""

from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from data_pipeline.io.errors import InputError
from data_pipeline.protein import Protein
from data_pipeline.residues import ATOM_ORDER
from helixfold.folding.model_input import ModelInput
from helixfold.folding.options import FoldingOptions
from helixfold.folding.prediction import Distances, Prediction, PredictionIdentity
from helixfold.model import confidence
from helixfold.model.alphafold import AlphaFold
from helixfold.model.outputs import Folded, PredictedStructure
from helixfold.model.stream import Stream
from helixfold.model.update import Executor, as_tensor
from helixfold.runtime.options import RepresentationName


def sample_of(folded: Folded, place: int, residues: int, rows: int) -> Folded:
    """Return one sample's outputs as a batch of one, without the padding of residues and of MSA rows."""
    own, real = slice(place, place + 1), slice(residues)
    representations, structure = folded.representations, folded.structure
    # Dim 0 of these counts the structure module's iterations.
    by_iteration = ("frames", "rigid_groups", "atom14", "torsions", "unnormalized_torsions")
    return Folded(
        representations=replace(
            representations,
            msa=as_tensor(representations.msa)[own, :rows, real],
            msa_first_row=representations.msa_first_row[own, real],
            pair=as_tensor(representations.pair)[own, real, real],
            single=representations.single[own, real],
        ),
        structure=PredictedStructure(
            **{
                name: value[:, own, real] if name in by_iteration else value[own, real]
                for name, value in vars(structure).items()
            }
        ),
    )


def mean_plddt(model: AlphaFold, folded: Folded, mask: Float[Tensor, "b r"]) -> Float[Tensor, " b"]:
    """Return the mean pLDDT of each sample's real residues, 0 to 100."""
    return confidence.ranking_confidence(confidence.plddt(model.heads.lddt_logits(folded.structure)), mask)


def prediction_of(
    model: AlphaFold,
    run: Executor,
    folded: Folded,
    given: ModelInput,
    options: FoldingOptions,
    *,
    name: str,
    num_recycles: int,
    converged: bool,
) -> Prediction:
    """Return the prediction, with its confidences, from the last recycling iteration's outputs for one target.

    `num_recycles` is the number of iterations before it.
    """
    heads, structure = model.heads, folded.structure
    if options.dtype == "float16" and not structure.positions.isfinite().all():
        raise InputError(
            f"{name}: a number of the network is beyond 65,504, the largest of float16; use --dtype bfloat16 or float32"
        )
    mask = torch.ones_like(structure.mask[..., 0])
    plddt = confidence.plddt(heads.lddt_logits(structure))
    protein = predicted_protein(model, folded, given)
    error = None
    if heads.aligned_error is not None:
        asym_id = torch.from_numpy(given.chain_index + 1)[None].to(mask.device) if len(given.chain_ids) > 1 else None
        error = confidence.aligned_error(run, heads.aligned_error, folded.representations.pair, mask, asym_id)
    distances = confidence.expected_distances(run, heads.distogram, folded.representations.pair)
    logits = heads(run, folded) if options.logits else None
    representations = {name: representation(run, folded, name) for name in options.representations}
    return Prediction(
        name=name,
        identity=PredictionIdentity(model=name, seed=options.seed),
        structure=protein,
        plddt=plddt[0].cpu().numpy(),
        pae=None if error is None else error.expected[0].cpu().numpy(),
        max_pae=None if error is None else error.largest,
        ptm=None if error is None else float(error.ptm[0]),
        iptm=None if error is None or error.iptm is None else float(error.iptm[0]),
        tm_by_chain=None if error is None or error.by_chain is None else error.by_chain[0].cpu().numpy(),
        ranking_confidence=float(_ranking_confidence(model, plddt, mask, error)[0]),
        num_recycles=num_recycles,
        converged=converged,
        distances=Distances(expected=distances.expected[0].cpu().numpy(), contact=distances.contact[0].cpu().numpy()),
        logits=None if logits is None else logits.arrays(),
        representations=representations or None,
        notes=(*model.notes, *given.notes, *_restraint_notes(given, protein)),
        chain_ids=given.chain_ids,
    )


def predicted_protein(model: AlphaFold, folded: Folded, given: ModelInput) -> Protein:
    """Return the structure of the first sample, whose B-factors are pLDDT."""
    structure = folded.structure
    atom_mask = structure.mask[0].cpu().numpy()
    plddt = confidence.plddt(model.heads.lddt_logits(structure))[0].cpu().numpy()
    return Protein(
        aatype=given.features.aatype,
        atom_positions=structure.positions[0].cpu().numpy(),
        atom_mask=atom_mask,
        residue_index=given.residue_number,
        chain_index=given.chain_index,
        b_factors=plddt[:, None] * atom_mask,
        cyclic_chains=frozenset(given.rings),
    )


def _restraint_notes(given: ModelInput, protein: Protein) -> tuple[str, ...]:
    """Return a note on how many restraints the structure satisfies; nothing for a target without restraints."""
    if (restraints := given.restraints) is None:
        return ()
    satisfied = restraints.count_satisfied(protein.atom_positions[:, ATOM_ORDER["CA"]])
    return (f"RESTRAINTS: the structure satisfies {satisfied} of {len(restraints.pairs)}",)


def representation(run: Executor, folded: Folded, name: RepresentationName) -> np.ndarray:
    """Return a representation of the first sample, float32; see `RepresentationName` for its shape."""
    found = folded.representations
    streams: dict[RepresentationName, Stream] = {
        "msa_first_row": found.msa_first_row,
        "single": found.single,
        "pair": found.pair,
        "structure": folded.structure.single,
    }
    stream = run.gather(streams[name]) if name == "pair" else as_tensor(streams[name])
    return stream[0].float().cpu().numpy()


def _ranking_confidence(
    model: AlphaFold,
    plddt: Float[Tensor, "b r"],
    mask: Float[Tensor, "b r"],
    error: confidence.AlignedError | None,
) -> Float[Tensor, " b"]:
    """Return what predictions of a target are ranked by: 0.8 ipTM + 0.2 pTM of a complex, 0 to 1.

    A model of complexes ranks a single chain by pTM, and all others by mean pLDDT, 0 to 100. So does a model without
    predicted errors rank a complex.
    """
    if error is not None and error.iptm is not None:
        return confidence.complex_ranking_confidence(error.ptm, error.iptm)
    if error is not None and model.config.method == "multimer":
        return error.ptm
    return confidence.ranking_confidence(plddt, mask)
