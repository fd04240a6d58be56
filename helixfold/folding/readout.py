"""Compute a prediction from the network's outputs: structure, confidences and representations."""

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
from helixfold.model.presets import Preset
from helixfold.model.stream import Stream
from helixfold.model.update import Executor, as_tensor
from helixfold.runtime.options import RepresentationName


def sample_of(folded: Folded, index: int, inputs: ModelInput, preset: Preset) -> Folded:
    """Return the outputs of the sample at `index`, which was drawn from `inputs`, as a batch of one without padding."""
    own, real = slice(index, index + 1), slice(len(inputs.features.aatype))
    rows = min(len(inputs.features.msa), preset.sampling.max_msa_clusters)
    representations, structure = folded.representations, folded.structure
    # Dimension 0 of these outputs is the iteration of the structure module.
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
    inputs: ModelInput,
    options: FoldingOptions,
    *,
    name: str,
    num_recycles: int,
    converged: bool,
) -> Prediction:
    """Return the prediction with its confidences from the outputs of one target's last recycling iteration.

    `num_recycles` is the number of iterations before the last one, and `converged` is copied into the prediction.
    `name` is the name of the prediction and of the model in its identity, which lacks the digest of the parameters;
    `fold_planned` replaces it. Raise `InputError` if float16 has overflowed.
    """
    heads, structure = model.heads, folded.structure
    if options.dtype == "float16" and not structure.positions.isfinite().all():
        raise InputError(f"{name}: float16 overflowed (its maximum is 65,504); use --dtype bfloat16 or float32")
    mask = torch.ones_like(structure.mask[..., 0])
    plddt = confidence.plddt(heads.lddt_logits(structure))
    protein = predicted_protein(model, folded, inputs)
    error = None
    if heads.aligned_error is not None:
        asym_id = torch.from_numpy(inputs.chain_index + 1)[None].to(mask.device) if len(inputs.chain_ids) > 1 else None
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
        notes=(*model.notes, *inputs.notes, *_restraint_notes(inputs, protein)),
        chain_ids=inputs.chain_ids,
    )


def predicted_protein(model: AlphaFold, folded: Folded, inputs: ModelInput) -> Protein:
    """Return the structure of the first sample, with pLDDT as B-factors."""
    structure = folded.structure
    atom_mask = structure.mask[0].cpu().numpy()
    plddt = confidence.plddt(model.heads.lddt_logits(structure))[0].cpu().numpy()
    return Protein(
        aatype=inputs.features.aatype,
        atom_positions=structure.positions[0].cpu().numpy(),
        atom_mask=atom_mask,
        residue_index=inputs.residue_number,
        chain_index=inputs.chain_index,
        b_factors=plddt[:, None] * atom_mask,
        cyclic_chains=frozenset(inputs.rings),
    )


def _restraint_notes(inputs: ModelInput, protein: Protein) -> tuple[str, ...]:
    """Return a note on how many restraints the structure satisfies; nothing for a target without restraints."""
    if (restraints := inputs.restraints) is None:
        return ()
    satisfied = restraints.count_satisfied(protein.atom_positions[:, ATOM_ORDER["CA"]])
    return (f"RESTRAINTS: the structure satisfies {satisfied} of {len(restraints.pairs)}",)


def representation(run: Executor, folded: Folded, name: RepresentationName) -> np.ndarray:
    """Return a representation of the first sample, float32; see `RepresentationName` for its shape."""
    outputs = folded.representations
    streams: dict[RepresentationName, Stream] = {
        "msa_first_row": outputs.msa_first_row,
        "single": outputs.single,
        "pair": outputs.pair,
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
    """Return the score by which predictions of a target are ranked.

    For complexes it is 0.8 ipTM + 0.2 pTM (0 to 1). For a single chain it is pTM if the model is a multimer model, else
    mean pLDDT (0 to 100). A model without predicted errors always uses mean pLDDT.
    """
    if error is not None and error.iptm is not None:
        return confidence.complex_ranking_confidence(error.ptm, error.iptm)
    if error is not None and model.config.method == "multimer":
        return error.ptm
    return confidence.ranking_confidence(plddt, mask)
