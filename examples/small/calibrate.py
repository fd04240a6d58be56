"""Calibrate pLDDT: lower it by the mean excess over lDDT-CA on sequences that the network was not trained on.

    python examples/small/calibrate.py runs/stage_5 training_set collection --output calibrated.safetensors

A network predicts its training chains better than others, and pLDDT is trained on them, so it is too high elsewhere.
The held-out chains are reserved for the trial, so this script uses natural homologs of training chains. The true
structure is the training chain's. The sequence is a row of its alignment, 30 to 80 % identical, with the chain's own
residues where the row has a gap. Homologs are folded with and without the alignment. The calibration subtracts a slope
times the lDDT of each bin from the logits of the lDDT bins, which only changes the biases of the last layer. The slope
brings the mean pLDDT closest to the mean lDDT-CA.

Residues that start from a template get the slope back (`template.plddt_slope`). The printed excess of homologs with
templates is not used to correct them, because the network was also trained on these templates.
"""

import argparse
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import minimize_scalar
from simulated_homologs import SIMULATED_FILE
from split import TRAIN, read_split
from stages import Stage, read_stages
from torch import Tensor
from tqdm import tqdm

from data_pipeline.features.schema import Features
from data_pipeline.features.templates import no_templates
from data_pipeline.io.errors import InputError
from data_pipeline.residues import ATOM_ORDER, GAP, RESTYPES_WITH_X
from data_pipeline.sampling.alignment_augmentation import AlignmentAugmentation
from data_pipeline.sampling.template_augmentation import TemplateAugmentation
from data_pipeline.sampling.training import training_example
from data_pipeline.training_sets.examples import StepExamples
from data_pipeline.training_sets.store import FeatureStore
from helixfold.analysis.metrics import residue_lddt
from helixfold.execution.slabs import Slabs
from helixfold.model.alphafold import AlphaFold
from helixfold.model.config import ModelConfig
from helixfold.training.loader import pack
from helixfold.training.recipes import last_weights
from helixfold.training.step import forward
from helixfold.weights.checkpoint import load_checkpoint, read_header, save_checkpoint

ALONE, ALIGNMENT, TEMPLATE = "alone", "alignment", "template"
LAST_MAP = "heads.lddt.out"
CHAINS, RESIDUES = 120, 200
_IDENTITY, _COVERAGE = (0.3, 0.8), 0.8  # ranges for homologs of a chain
_ITERATIONS = 3  # of recycling, as in predictions
_SLOPES = (-20.0, 20.0)
_CA = ATOM_ORDER["CA"]


@dataclass(frozen=True)
class Folded:
    """Predicted and true lDDT-CA of the residues of one chain."""

    way: str
    probabilities: Float[np.ndarray, "r v"]  # of the bins of lDDT-CA
    lddt: Float[np.ndarray, " r"]  # 0 to 1


def homolog(features: Features, rng: np.random.Generator) -> Features | None:
    """Return the features of a homolog from a chain's alignment, to compare with the chain's structure, or None."""
    own, others = features.msa[0], features.msa[1:]
    aligned = others < GAP
    same = (aligned & (others == own)).sum(1) / np.maximum(1, aligned.sum(1))
    low, high = _IDENTITY
    fit = np.flatnonzero((same >= low) & (same <= high) & (aligned.mean(1) >= _COVERAGE))
    if not len(fit):
        return None
    row = int(rng.choice(fit))
    types = np.where(aligned[row], others[row], own)
    msa = np.concatenate(
        [types[None].astype(features.msa.dtype), features.msa[np.arange(len(features.msa)) != row + 1]]
    )
    deletions = np.delete(features.deletion_matrix, row + 1, axis=0)
    deletions = np.concatenate([np.zeros_like(deletions[:1]), deletions])
    return replace(
        features,
        aatype=types.astype(features.aatype.dtype),
        sequence="".join(RESTYPES_WITH_X[each] for each in types),
        msa=msa,
        deletion_matrix=deletions,
    )


def ways_of(features: Features) -> Iterator[tuple[str, Features]]:
    """Yield the features of the sequence only, with the alignment, and with the templates if there are any."""
    alone = replace(
        features,
        msa=features.msa[:1],
        deletion_matrix=features.deletion_matrix[:1],
        **no_templates(len(features.aatype)),
    )
    yield ALONE, alone
    yield ALIGNMENT, replace(features, **no_templates(len(features.aatype)))
    if len(features.template_aatype):
        yield TEMPLATE, replace(features, msa=alone.msa, deletion_matrix=alone.deletion_matrix)


@torch.no_grad()
def folded(model: AlphaFold, stage: Stage, store: FeatureStore, names: Sequence[str]) -> Iterator[Folded]:
    """Yield the predictions of the network for homologs of these chains."""
    example = stage.config.example
    whole = replace(
        example,
        sampling=replace(example.sampling, masked_msa_fraction=0.0),
        template_augmentation=TemplateAugmentation(),
        alignment_augmentation=AlignmentAugmentation(),
        crop_size=RESIDUES,
        unclamped_fraction=0.0,
    )
    for name in tqdm(names, disable=None):
        features, labels = store.load(name)
        variant = homolog(features, np.random.default_rng(zlib.crc32(name.encode())))
        for way, changed in () if variant is None else ways_of(variant):
            sample = training_example(changed, labels, whole, np.random.default_rng(0), _ITERATIONS)
            packed = pack(StepExamples(step=0, micro_batch=0, examples=(sample,), refused=()), None)
            outputs = forward(model, packed.on(torch.device("cpu")), Slabs(), torch.float32)
            observed = sample.truth.all_atom_mask[:, _CA] > 0
            indices = np.arange(int(observed.sum()))
            predicted = outputs.structure.positions[0, :, _CA].numpy()[observed]
            lddt, _ = residue_lddt(predicted, sample.truth.all_atom_positions[observed, _CA], indices)
            probabilities = outputs.logits.lddt[0].float().softmax(-1).numpy()[observed]
            has_lddt = np.isfinite(lddt)
            yield Folded(way, probabilities[has_lddt], lddt[has_lddt])


def sloped(probabilities: Float[np.ndarray, "r v"], slope: float) -> Float[np.ndarray, " r"]:
    """Return the expected lDDT-CA (0 to 1) of residues after subtracting the slope times lDDT from the logits."""
    centres = bin_centres(probabilities.shape[1])
    weights = probabilities * np.exp(-slope * centres)
    expected: np.ndarray = (weights @ centres) / weights.sum(1)
    return expected


def bin_centres(bins: int) -> Float[np.ndarray, " v"]:
    """Return the lDDT-CA (0 to 1) in the middle of each bin."""
    return (np.arange(bins) + 0.5) / bins


def excess(some: Sequence[Folded], slope: float = 0.0) -> dict[str, float]:
    """Return pLDDT minus lDDT-CA (0 to 1) with this slope, averaged over chains, for each kind of input."""
    excesses: dict[str, list[float]] = {}
    for each in some:
        excesses.setdefault(each.way, []).append(float((sloped(each.probabilities, slope) - each.lddt).mean()))
    return {way: float(np.mean(values)) for way, values in excesses.items()}


def fitted_slope(some: Sequence[Folded]) -> float:
    """Return the slope that minimises the squared excesses with and without alignments, rounded to a tenth."""

    def remaining(slope: float) -> float:
        left = excess(some, slope)
        return left[ALONE] ** 2 + left[ALIGNMENT] ** 2

    return round(float(minimize_scalar(remaining, bounds=_SLOPES, method="bounded").x), 1)


def sloped_map(state: dict[str, Tensor], slope: float) -> dict[str, Tensor]:
    """Return parameters whose logits of the lDDT bins are lower by the slope times the lDDT of the bin."""
    name = f"{LAST_MAP}.bias"
    centres = torch.from_numpy(bin_centres(len(state[name]))).to(state[name].dtype)
    return {**state, name: state[name] - slope * centres}


def sloped_config(config: ModelConfig, slope: float) -> ModelConfig:
    """Return the settings of a network whose residues that start from a template get the slope back."""
    if config.template is None or not config.template.initial_frames:
        return config
    return replace(config, template=replace(config.template, plddt_slope=config.template.plddt_slope + slope))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="the last stage")
    parser.add_argument("training_set", type=Path)
    parser.add_argument("collection", type=Path)
    parser.add_argument("--chains", type=int, default=CHAINS)
    parser.add_argument("--output", type=Path, default=Path("calibrated.safetensors"))
    options = parser.parse_args()
    (stage,) = read_stages([options.run])
    store = FeatureStore.open(options.training_set)
    learnt = {chain.name for chain in read_split() if chain.set == TRAIN}
    natural = [
        entry.name
        for entry in store.entries
        if entry.name in learnt
        and entry.msa_rows > 1
        and entry.length <= RESIDUES
        and not (options.collection / "alignments" / entry.name / SIMULATED_FILE).exists()
    ]
    names = np.random.default_rng(0).permutation(natural)[: options.chains].tolist()
    state, config = load_checkpoint(last_weights(options.run))
    header = read_header(last_weights(options.run))
    model = AlphaFold(stage.config.model).eval()
    model.load_state_dict(state)
    some = list(folded(model, stage, store, names))
    slope = fitted_slope(some)
    settings = sloped_config(ModelConfig.from_dict(config), slope).to_dict()
    save_checkpoint(options.output, sloped_map(state, slope), settings, header.use, began_with=header.began_with)
    print(f"slope {slope:.1f}, from {len(some)} predictions of homologs of {len(names)} chains")
    for way, before in excess(some).items():
        print(f"{way}: pLDDT minus 100 x lDDT-CA was {100 * before:.1f}, is {100 * excess(some, slope)[way]:.1f}")


if __name__ == "__main__":
    try:
        main()
    except (InputError, OSError) as error:
        sys.exit(f"calibrate.py: {error}")
