"""Evaluate a model on held-out chains or complexes, which it was not trained on."""

import re
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.files import atomic_write
from data_pipeline.parse.fasta import file_name_problem
from data_pipeline.parse.text_files import read_text
from data_pipeline.protein import Protein
from data_pipeline.residues import ATOM_ORDER, RESTYPES_WITH_X
from data_pipeline.sampling.alignment_augmentation import AlignmentAugmentation
from data_pipeline.sampling.complex_training import complex_example
from data_pipeline.sampling.msa import BlockDeletion
from data_pipeline.sampling.template_augmentation import TemplateAugmentation
from data_pipeline.sampling.training import ExampleConfig, TrainingExample, training_example
from data_pipeline.structure import Chain
from data_pipeline.training_sets.examples import ChainStore, ComplexStore, StepExamples
from helixfold.analysis import metrics
from helixfold.analysis.complexes import compare_complexes
from helixfold.analysis.residues import MIN_RESIDUES
from helixfold.execution.slabs import Slabs
from helixfold.losses.ambiguity import renamed_truth
from helixfold.losses.chain_permutation import permuted_labels
from helixfold.losses.config import LossConfig
from helixfold.losses.labels import ComplexLabels, Labels
from helixfold.losses.total import total_loss
from helixfold.losses.violations import violations
from helixfold.model.alphafold import AlphaFold
from helixfold.model.batch import Batch, MultimerBatch, with_chains
from helixfold.model.confidence import plddt, tm_of_alignments
from helixfold.model.geometry.rigid_groups import rigid_groups_from_atom37
from helixfold.model.outputs import Outputs
from helixfold.parallel.mesh import Mesh
from helixfold.results.pdb import to_pdb
from helixfold.training.config import EvaluationConfig, TrainingConfig
from helixfold.training.loader import TrainingBatch, pack
from helixfold.training.progress import print_message
from helixfold.training.step import forward

MAX_NAMES_BYTES = 2**26  # maximum size of a file of names
_COMMENT_START = re.compile(r"(?:^|\s)#")  # Names may contain "#", but not after a space.
_CA_INDEX = ATOM_ORDER["CA"]
# Fields of `HeldOutScores` whose means are reported, and fields of `InterfaceScores` whose means are not.
_AVERAGED_SCORES = ("lddt_ca", "lddt", "tm_score", "gdt_ts", "gdt_ha", "rmsd", "plddt", "violations")
_COUNT_FIELDS = ("chains", "interfaces")
# Minimum DockQ of an acceptable interface (Basu & Wallner 2016).
ACCEPTABLE_DOCKQ = 0.23


@dataclass(frozen=True, kw_only=True)
class InterfaceScores:
    """Scores of the chains and interfaces of one held-out complex, from 0 to 1 unless noted.

    An interface is a pair of chains that are in contact in the true structure; interface scores are means over all
    interfaces. A score is None where it is not defined, such as interface scores if no chains are in contact.

    `chains` is the number of chains with folded residues, and `interfaces` the number of interfaces. `chain_lddt_ca`
    and `chain_tm_score` are means over the chains: from distances within each chain, and after superposing each chain
    separately. `acceptable` is the fraction of interfaces with a DockQ of at least 0.23, and `fnat` the fraction of
    true contacts that are predicted. `irms` (Å) is of the backbones at an interface, and `lrms` (Å) of the shorter
    chain when the longer one is superposed. `interface_lddt` is over all distances between heavy atoms of different
    chains. `iptm` is predicted, and None without an aligned-error head.
    """

    chains: int
    interfaces: int
    chain_lddt_ca: float | None
    chain_tm_score: float | None
    dockq: float | None
    acceptable: float | None
    fnat: float | None
    irms: float | None
    lrms: float | None
    interface_lddt: float | None
    iptm: float | None


@dataclass(frozen=True, kw_only=True)
class HeldOutScores:
    """Scores of one held-out chain or complex over the experimentally observed atoms, from 0 to 1 unless noted.

    A complex is scored as a whole, after its true chains were permuted to fit the prediction where chains have equal
    sequences. `interface` has the scores of its chains and interfaces, and is None for a single chain.

    `residues` is the number of folded residues. `lddt` is over all heavy atoms, and `rmsd` (Å) over C-alpha atoms.
    `plddt` is the mean over the residues, 0 to 100. `violations` is the fraction of residues with impossible bonds,
    angles or clashes. `losses` has each term unweighted, the weighted sum "weighted", and "total".
    """

    name: str
    residues: int
    lddt_ca: float
    lddt: float
    tm_score: float
    gdt_ts: float
    gdt_ha: float
    rmsd: float
    plddt: float
    violations: float
    losses: dict[str, float]
    interface: InterfaceScores | None = None

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "HeldOutScores":
        """Rebuild scores from the dict that `dataclasses.asdict` made of them."""
        interface = values["interface"]
        return cls(**{**values, "interface": None if interface is None else InterfaceScores(**interface)})


def mean_scores(scores: Sequence[HeldOutScores]) -> dict[str, float]:
    """Return the mean of each score, of the weighted loss ("loss") and of its terms ("loss/fape" ...).

    A mean interface score is over the complexes for which the score is defined. Without any scores, the result is
    empty.
    """
    if not scores:
        return {}
    means = {name: float(np.mean([getattr(each, name) for each in scores])) for name in _AVERAGED_SCORES}
    for term in scores[0].losses:
        name = "loss" if term == "weighted" else f"loss/{term}"
        means[name] = float(np.mean([each.losses[term] for each in scores]))
    complexes = [each.interface for each in scores if each.interface is not None]
    for field in fields(InterfaceScores):
        values = [value for each in complexes if (value := getattr(each, field.name)) is not None]
        if values and field.name not in _COUNT_FIELDS:
            means[field.name] = float(np.mean(values))
    return means


def deciding_score(means: Mapping[str, float]) -> float | None:
    """Return the mean score by which a run's best parameters are chosen, or None if nothing was scored.

    It is the mean interface lDDT if complexes with interfaces are held out, and otherwise the mean CA-lDDT. DockQ is
    unsuitable: an untrained network places all atoms at one point, where every true contact is predicted.
    """
    return means.get("interface_lddt", means.get("lddt_ca"))


def read_names(path: str | PathLike[str], known: Collection[str], kind: str = "chain") -> tuple[str, ...]:
    """Read the names of held-out chains or assemblies from a file with one name per line and comments after '#'.

    `known` are the valid names, and `kind` is the word for them in messages. Raise `InputError` for unknown and
    repeated names, and for a file without names.
    """
    lines_of: dict[str, int] = {}
    if Path(path).is_dir():
        raise InputError.at(path, f"is a directory; pass a file with the name of one {kind} on each line")
    text = read_text(path, MAX_NAMES_BYTES, f"a list of held-out data has the name of one {kind} on each line")
    for line_number, line in enumerate(text.split("\n"), start=1):
        name = _COMMENT_START.split(line, maxsplit=1)[0].strip()
        if not name:
            continue
        if name not in known:
            raise InputError.at(
                path,
                f"the feature store has no {kind} '{printable(name)}'; use names from its index",
                line=line_number,
            )
        if name in lines_of:
            raise InputError.at(
                path, f"'{printable(name)}' is also in line {lines_of[name]}; list each {kind} once", line=line_number
            )
        lines_of[name] = line_number
    if not lines_of:
        raise InputError.at(path, f"the file has no {kind} names; write one name per line")
    return tuple(lines_of)


@torch.no_grad()
def evaluate(
    model: AlphaFold,
    store: ComplexStore,
    names: Sequence[str],
    *,
    example: ExampleConfig,
    loss: LossConfig,
    config: EvaluationConfig,
    dtype: torch.dtype,
    device: torch.device,
    structures: Path | None,
    report: Callable[[str], None] = print_message,
) -> tuple[HeldOutScores, ...]:
    """Set the model to evaluation mode, fold the named chains and score the predictions.

    A multimer model folds the named assemblies. Random choices for a chain or assembly depend only on its name, so that
    evaluations can be compared. A complex that is too large is cropped around an interface. The first
    `config.structures` predictions are written into the directory `structures` as PDB files. Unusable chains or
    assemblies are skipped, with a message to `report`.
    """
    is_multimer = model.config.method == "multimer"
    kind = "complex" if is_multimer else "chain"
    evaluation_example = replace(
        example,
        # A held-out chain never has its own structure as a template.
        template_augmentation=TemplateAugmentation(),
        alignment_augmentation=AlignmentAugmentation(),
        crop_size=config.max_residues,
        block_deletion=BlockDeletion(blocks=0),
        unclamped_fraction=0.0,
        spatial_crop_probability=float(is_multimer),
    )
    draw: Callable[[ComplexStore, str, ExampleConfig, int], TrainingExample]
    draw = _complex_example if is_multimer else _chain_example
    scores: list[HeldOutScores] = []
    model.eval()
    for index, name in enumerate(names):
        try:
            batch = _held_out_batch(draw(store, name, evaluation_example, config.num_recycles + 1), device)
        except InputError as error:
            report(f"held-out {kind} {printable(name)} is skipped: {error}")
            continue
        outputs = forward(model, batch, Slabs(), dtype)
        scores.append(_scores(name, outputs, batch, loss))
        if structures is not None and index < config.structures:
            _write_structure(structures, scores[-1], outputs, batch.recycling_inputs[-1], report)
    return tuple(scores)


def evaluate_on_ranks(
    model: AlphaFold,
    store: ComplexStore,
    names: Sequence[str],
    mesh: Mesh,
    config: TrainingConfig,
    *,
    structures: Path | None,
) -> tuple[list[HeldOutScores], list[str]]:
    """Evaluate like `evaluate` with the settings of a run, dividing the named chains or assemblies among the ranks.

    Return, on every rank, the scores in the order of `names` and a message for each unusable name.
    """
    reports: list[str] = []
    scores = evaluate(
        model,
        store,
        names[mesh.rank :: mesh.size],
        example=config.example,
        loss=config.loss,
        # The ranks together write the first structures; this is the number of them that this rank folds.
        config=replace(config.evaluation, structures=len(range(mesh.rank, config.evaluation.structures, mesh.size))),
        dtype=getattr(torch, config.dtype),
        device=mesh.device,
        structures=structures,
        report=reports.append,
    )
    ranks = mesh.all_gather({"scores": [asdict(score) for score in scores], "reports": reports})
    all_scores = [HeldOutScores.from_dict(values) for rank in ranks for values in rank["scores"]]
    messages = [text for rank in ranks for text in rank["reports"]]
    return sorted(all_scores, key=lambda score: names.index(score.name)), messages


def _chain_example(store: ChainStore, name: str, config: ExampleConfig, num_iterations: int) -> TrainingExample:
    """Return the example of a held-out chain; its random choices depend only on the name."""
    return training_example(*store.load(name), config, _generator_for(name), num_iterations)


def _complex_example(store: ComplexStore, name: str, config: ExampleConfig, num_iterations: int) -> TrainingExample:
    """Return the example of a held-out assembly; its random choices depend only on the name."""
    assembly = store.load_complex(name)
    return complex_example(
        assembly.name, assembly.features, assembly.labels, config, _generator_for(name), num_iterations
    )


def _generator_for(name: str) -> np.random.Generator:
    """Return a random number generator that is seeded by a name."""
    return np.random.default_rng(zlib.crc32(name.encode()))


def _held_out_batch(example: TrainingExample, device: torch.device) -> TrainingBatch:
    """Return an example as a batch of one; raise `InputError` if none of its C-alpha atoms were observed."""
    if not example.truth.all_atom_mask[:, _CA_INDEX].any():
        raise InputError(f"none of the C-alpha atoms of its {len(example.truth.aatype)} residues were observed")
    return pack(StepExamples(step=0, micro_batch=0, examples=(example,), refused=()), None).on(device)


def _scores(name: str, outputs: Outputs, batch: TrainingBatch, loss: LossConfig) -> HeldOutScores:
    """Return the scores of a held-out chain or complex from its outputs."""
    labels, last = batch.labels, batch.recycling_inputs[-1]
    if isinstance(labels, ComplexLabels):
        labels = permuted_labels(outputs.structure, with_chains(last), labels)
    losses = total_loss(outputs, last, labels, loss)
    violated = violations(
        outputs.structure.atom14[-1],
        labels.atom14_atom_exists,
        labels.aatype,
        last.residue_index,
        asym_id=last.asym_id if isinstance(last, MultimerBatch) else None,
        tolerance_factor=loss.violation_tolerance_factor,
        overlap_tolerance=loss.clash_overlap_tolerance,
    )
    predicted, true = (
        positions[0, :, _CA_INDEX].cpu().numpy()
        for positions in (outputs.structure.positions, labels.all_atom_positions)
    )
    observed = labels.all_atom_mask[0, :, _CA_INDEX].cpu().numpy() > 0
    superposed = metrics.superposed_scores(predicted[observed], true[observed])
    return HeldOutScores(
        name=name,
        residues=len(observed),
        lddt_ca=metrics.lddt(predicted[observed], true[observed], np.flatnonzero(observed)),
        lddt=_all_atom_lddt(outputs, labels),
        tm_score=superposed.tm_score,
        gdt_ts=superposed.gdt_ts,
        gdt_ha=superposed.gdt_ha,
        rmsd=superposed.rmsd,
        plddt=float(plddt(outputs.logits.lddt).mean()),
        violations=float(violated.residues_mask.mean()),
        losses={term: float(value) for term, value in losses.terms().items()},
        interface=interface_scores(outputs, labels, last) if isinstance(last, MultimerBatch) else None,
    )


def _all_atom_lddt(outputs: Outputs, labels: Labels) -> float:
    """Return lDDT over heavy atoms; ambiguous atoms are named as they fit the prediction best, as in the losses."""
    predicted = outputs.structure.atom14[-1]
    groups = rigid_groups_from_atom37(labels.aatype, labels.all_atom_positions, labels.all_atom_mask)
    truth = renamed_truth(predicted, labels, groups)
    observed: Bool[np.ndarray, "r 14"] = truth.atom14_mask[0].cpu().numpy() > 0
    residue, _ = observed.nonzero()
    return metrics.lddt(predicted[0].cpu().numpy()[observed], truth.atom14[0].cpu().numpy()[observed], residue)


def _write_structure(
    directory: Path, scores: HeldOutScores, outputs: Outputs, batch: Batch, report: Callable[[str], None]
) -> None:
    """Write a prediction as a PDB file into the directory.

    `report` is called with a message if that fails.
    """
    confidence: Float[np.ndarray, " r"] = plddt(outputs.logits.lddt)[0].cpu().numpy()
    mask = outputs.structure.mask[0].cpu().numpy()
    positions = outputs.structure.positions[0].cpu().numpy()
    chains = batch.asym_id[0].cpu().numpy() if isinstance(batch, MultimerBatch) else np.zeros(len(mask), np.int64)
    protein = Protein(
        aatype=batch.aatype[0].cpu().numpy(),
        # Predictions are centred, because their position is arbitrary and a PDB file has few digits.
        atom_positions=(positions - positions[:, _CA_INDEX].mean(0)) * mask[..., None],
        atom_mask=mask,
        residue_index=batch.residue_index[0].cpu().numpy() + 1,
        # Chains are renumbered, because a crop may lack some of them.
        chain_index=np.unique(chains, return_inverse=True)[1],
        b_factors=confidence[:, None] * mask,
    )
    summary = f"CA-lDDT {scores.lddt_ca:.3f}, TM-score {scores.tm_score:.3f}"
    if scores.interface is not None and scores.interface.dockq is not None:
        summary = f"{summary}, DockQ {scores.interface.dockq:.3f}"
    kind = "chain" if scores.interface is None else "complex"
    remarks = f"Held-out {kind} {scores.name}: {summary}.", "B-factors are pLDDT."
    # Names come from a store that others may have built, and some cannot be file names.
    stem = f"{kind}_{zlib.crc32(scores.name.encode()):08x}" if file_name_problem(scores.name) else scores.name
    try:
        with atomic_write(directory / f"{stem}.pdb") as temporary:
            temporary.write_text(to_pdb(protein, remarks), encoding="ascii")
    except (OSError, ValueError) as error:
        report(f"cannot write the structure of held-out {kind} {printable(scores.name)}: {printable(str(error))}")


def interface_scores(outputs: Outputs, labels: Labels, batch: MultimerBatch) -> InterfaceScores:
    """Return the chain and interface scores of one predicted complex, the first sample of the batch.

    `labels` must be permuted already, so that chains of equal sequence fit the prediction. DockQ assigns them again, to
    the largest sum of DockQ. A structure with values that are not finite scores 0; `irms`, `lrms` and `iptm` are then
    None.
    """
    asym_id = batch.asym_id[0].cpu().numpy()
    predicted = outputs.structure.positions[0].cpu().numpy()
    exists = outputs.structure.mask[0].cpu().numpy()
    true, observed = labels.all_atom_positions[0].cpu().numpy(), labels.all_atom_mask[0].cpu().numpy()
    chains = [np.flatnonzero(asym_id == chain_id) for chain_id in np.unique(asym_id) if chain_id]
    if not np.isfinite(predicted).all():
        return _zero_scores(len(chains))
    sequence, residue_index = batch.aatype[0].cpu().numpy(), batch.residue_index[0].cpu().numpy()
    predicted_chains, true_chains = (
        [
            _chain(str(index), sequence[each], residue_index[each], atoms[each], mask[each])
            for index, each in enumerate(chains)
        ]
        for atoms, mask in ((predicted, exists), (true, observed))
    )
    compared = compare_complexes(predicted_chains, true_chains)
    interfaces = compared.interfaces if compared is not None else ()
    points_of_chains = [
        (predicted[observed_residues, _CA_INDEX], true[observed_residues, _CA_INDEX])
        for each in chains
        if len(observed_residues := each[observed[each, _CA_INDEX] > 0]) >= MIN_RESIDUES
    ]
    return InterfaceScores(
        chains=len(chains),
        interfaces=len(interfaces),
        chain_lddt_ca=_mean_or_none([metrics.lddt(*points, np.arange(len(points[0]))) for points in points_of_chains]),
        chain_tm_score=_mean_or_none([metrics.superposed_scores(*points).tm_score for points in points_of_chains]),
        dockq=_mean_or_none([each.dockq for each in interfaces]),
        acceptable=_mean_or_none([each.dockq >= ACCEPTABLE_DOCKQ for each in interfaces]),
        fnat=_mean_or_none([each.fnat for each in interfaces]),
        irms=_mean_or_none([each.irms for each in interfaces]),
        lrms=_mean_or_none([each.lrms for each in interfaces]),
        interface_lddt=compared.interface_lddt if compared is not None else None,
        iptm=_iptm(outputs, batch) if len(chains) > 1 else None,
    )


def _zero_scores(chains: int) -> InterfaceScores:
    """Return the scores of a complex with this number of chains whose structure is not finite."""
    return InterfaceScores(
        chains=chains,
        interfaces=0,
        chain_lddt_ca=0.0,
        chain_tm_score=0.0,
        dockq=0.0,
        acceptable=0.0,
        fnat=0.0,
        irms=None,
        lrms=None,
        interface_lddt=0.0,
        iptm=None,
    )


def _chain(
    name: str,
    aatype: Int[np.ndarray, " r"],
    residue_index: Int[np.ndarray, " r"],
    positions: Float[np.ndarray, "r 37 3"],
    mask: Float[np.ndarray, "r 37"],
) -> Chain:
    """Return a chain for the comparison of complexes."""
    observed: Bool[np.ndarray, " r"] = np.asarray((mask > 0).any(1))
    return Chain(
        name=name,
        sequence="".join(RESTYPES_WITH_X[each] for each in aatype),
        aatype=aatype,
        atom_positions=positions,
        atom_mask=mask,
        b_factors=np.zeros_like(mask),
        observed=observed,
        residue_names=("UNK",) * len(aatype),
        residue_numbers=residue_index + 1,
        insertion_codes=(" ",) * len(aatype),
    )


def _iptm(outputs: Outputs, batch: MultimerBatch) -> float | None:
    """Return the predicted ipTM; None without an aligned-error head."""
    logits = outputs.logits.aligned_error
    if logits is None:
        return None
    is_between_chains: torch.Tensor = batch.asym_id[:, :, None] != batch.asym_id[:, None]
    return float((tm_of_alignments(logits, batch.seq_mask, is_between_chains) * batch.seq_mask).max())


def _mean_or_none(values: Sequence[float]) -> float | None:
    """Return the mean of values, or None if there are none."""
    return float(np.mean(values)) if values else None
