"""Run a network on given inputs with recycling, and compare what two runs give."""

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from data_pipeline.residues import ATOM_ORDER
from helixfold.analysis.metrics import rmsd
from helixfold.batch import Batch
from helixfold.execution.stages import peak_memory, reset_peak_memory, synchronize
from helixfold.execution.whole import Whole
from helixfold.model import confidence
from helixfold.model.alphafold import AlphaFold
from helixfold.model.outputs import Outputs
from helixfold.model.update import Executor
from helixfold.ops.dispatch import forced

Arrays = dict[str, np.ndarray]
# What a user sees of a prediction; the other outputs are the network's.
POSITIONS, PLDDT, PAE, PTM = "structure_module/final_atom_positions", "plddt", "predicted_aligned_error", "ptm"
SCORES = (PLDDT, "mean_plddt", PAE, PTM)


@dataclass(frozen=True, kw_only=True)
class Run:
    """Outputs of the last recycling iteration under DeepMind's names, and what all iterations cost.

    `peak` is in bytes beyond the loaded model.
    """

    outputs: Arrays
    seconds: float
    peak: int


@torch.no_grad()
def run_network(
    network: AlphaFold,
    batches: Sequence[Batch],
    dtype: torch.dtype,
    *,
    plain: bool = False,
    executor: Executor | None = None,
) -> Run:
    """Run one recycling iteration on each batch; with `plain`, every operator is its reference in plain PyTorch."""
    device = batches[0].aatype.device
    executor = executor or Whole()
    reset_peak_memory(device)
    held, start = peak_memory(device), time.perf_counter()
    previous = None
    with forced("reference") if plain else nullcontext():
        for number, batch in enumerate(batches):
            if number + 1 < len(batches):
                previous = network.fold(executor, [batch], previous, dtype).recycled()
            else:
                outputs: Outputs = network(executor, [batch], previous, dtype)
    synchronize(device)
    seconds, peak = time.perf_counter() - start, peak_memory(device) - held
    return Run(outputs=named(outputs, batches[-1].seq_mask), seconds=seconds, peak=max(0, peak))


def named(outputs: Outputs, seq_mask: Tensor) -> Arrays:
    """Return outputs of one target, and its scores, under DeepMind's names, as float32 or float64 arrays."""
    logits = {
        "distogram": outputs.logits.distogram,
        "experimentally_resolved": outputs.logits.experimentally_resolved,
        "masked_msa": outputs.logits.masked_msa,
        "predicted_aligned_error": outputs.logits.aligned_error,
        "predicted_lddt": outputs.logits.lddt,
    }
    found = {f"{name}/logits": _array(value) for name, value in logits.items() if value is not None}
    for name in ("msa", "msa_first_row", "pair", "single"):
        found[f"representations/{name}"] = _array(getattr(outputs.representations, name))
    found[POSITIONS] = _array(outputs.structure.positions)
    return found | scores(found, seq_mask.cpu())


def scores(outputs: Mapping[str, np.ndarray], seq_mask: Tensor) -> Arrays:
    """Return pLDDT, its mean, PAE and pTM of outputs with DeepMind's names."""
    plddt = confidence.plddt(torch.from_numpy(outputs["predicted_lddt/logits"])[None].float())
    found = {PLDDT: plddt[0].numpy(), "mean_plddt": confidence.ranking_confidence(plddt, seq_mask)[0].numpy()}
    if "predicted_aligned_error/logits" in outputs:
        logits = torch.from_numpy(outputs["predicted_aligned_error/logits"])[None].float()
        found[PAE] = confidence.predicted_aligned_error(logits)[0][0].numpy()
        found[PTM] = (confidence.tm_of_alignments(logits, seq_mask) * seq_mask).amax(-1)[0].numpy()
    return found


def largest_deviation(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest deviation in units of the largest expected value; NaN if any value is."""
    return float(np.abs(found - expected).max() / max(float(np.abs(expected).max()), 1e-12))


def mean_deviation(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the root mean square deviation over that of the expected values; NaN if any value is."""
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    return float(np.sqrt(np.square(found - expected).mean() / max(float(np.square(expected).mean()), 1e-24)))


def alpha_rmsd(found: Arrays, expected: Arrays) -> float:
    """Return the RMSD of C-alpha atoms in Angstrom under the best superposition."""
    alpha = ATOM_ORDER["CA"]
    return rmsd(found[POSITIONS][:, alpha], expected[POSITIONS][:, alpha])


def is_frame_dependent(name: str) -> bool:
    """Return whether an output is compared after superposition, since it is known up to a rotation and a shift."""
    return name == POSITIONS


def _array(value: Tensor) -> np.ndarray:
    value = value[0].detach().cpu()
    return (value if value.dtype == torch.float64 else value.float()).numpy()
