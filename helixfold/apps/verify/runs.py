"""Run helixfold's network and DeepMind's program on the same inputs with recycling, and compare their outputs."""

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data_pipeline.residues import ATOM14_MASK, ATOM14_TO_ATOM37, ATOM37_MASK, ATOM37_TO_ATOM14, ATOM_ORDER
from data_pipeline.search.process import run_program
from helixfold.analysis.metrics import rmsd
from helixfold.apps.verify import deepmind
from helixfold.execution.stages import peak_memory, reset_peak_memory, synchronize
from helixfold.execution.whole import Whole
from helixfold.model import confidence
from helixfold.model.alphafold import AlphaFold
from helixfold.model.batch import Batch, MultimerBatch, sampled_fields
from helixfold.model.outputs import Outputs
from helixfold.model.presets import Preset
from helixfold.ops.dispatch import forced
from helixfold.weights.alphafold import from_state_dict

Arrays = dict[str, np.ndarray]
# Names of the outputs of a prediction; other outputs are internal to the network.
POSITIONS, PLDDT, PAE, PTM = "structure_module/final_atom_positions", "plddt", "predicted_aligned_error", "ptm"
SCORES = (PLDDT, "mean_plddt", PAE, PTM)


@dataclass(frozen=True, kw_only=True)
class Run:
    """Outputs of the last recycling iteration with DeepMind's names, and the cost of all iterations.

    `peak` is the peak memory in bytes beyond the loaded model.
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
) -> Run:
    """Run one recycling iteration on each batch, each from the outputs of the one before, and measure the cost.

    `dtype` is the precision of the trunk. With `plain`, operators use their reference in plain PyTorch.
    """
    device = batches[0].aatype.device
    reset_peak_memory(device)
    memory_before, start = peak_memory(device), time.perf_counter()
    *earlier_batches, last_batch = batches
    with forced("reference") if plain else nullcontext():
        previous = network.recycle(Whole(), ([batch] for batch in earlier_batches), dtype)
        outputs: Outputs = network(Whole(), [last_batch], previous, dtype)
    synchronize(device)
    seconds, peak = time.perf_counter() - start, peak_memory(device) - memory_before
    return Run(outputs=named(outputs, batches[-1].seq_mask), seconds=seconds, peak=max(0, peak))


def named(outputs: Outputs, seq_mask: Tensor) -> Arrays:
    """Return the outputs and scores of one target with DeepMind's names, as float32 or float64 arrays."""
    logits = {
        "distogram": outputs.logits.distogram,
        "experimentally_resolved": outputs.logits.experimentally_resolved,
        "masked_msa": outputs.logits.masked_msa,
        "predicted_aligned_error": outputs.logits.aligned_error,
        "predicted_lddt": outputs.logits.lddt,
    }
    arrays = {f"{name}/logits": _array(value) for name, value in logits.items() if value is not None}
    for name in ("msa", "msa_first_row", "pair", "single"):
        arrays[f"representations/{name}"] = _array(getattr(outputs.representations, name))
    arrays[POSITIONS] = _array(outputs.structure.positions)
    return arrays | scores(arrays, seq_mask.cpu())


def scores(outputs: Mapping[str, np.ndarray], seq_mask: Tensor) -> Arrays:
    """Compute pLDDT, mean pLDDT, PAE and pTM from outputs with DeepMind's names."""
    plddt = confidence.plddt(torch.from_numpy(outputs["predicted_lddt/logits"])[None].float())
    values = {PLDDT: plddt[0].numpy(), "mean_plddt": confidence.ranking_confidence(plddt, seq_mask)[0].numpy()}
    if "predicted_aligned_error/logits" in outputs:
        logits = torch.from_numpy(outputs["predicted_aligned_error/logits"])[None].float()
        values[PAE] = confidence.predicted_aligned_error(logits)[0][0].numpy()
        values[PTM] = (confidence.tm_of_alignments(logits, seq_mask) * seq_mask).amax(-1)[0].numpy()
    return values


def largest_deviation(values: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest absolute deviation over the largest absolute expected value; NaN if any value is NaN."""
    return float(np.abs(values - expected).max() / max(float(np.abs(expected).max()), 1e-12))


def mean_deviation(values: np.ndarray, expected: np.ndarray) -> float:
    """Return the relative root mean square deviation from the expected values; NaN if any value is NaN."""
    values, expected = values.astype(np.float64), expected.astype(np.float64)
    return float(np.sqrt(np.square(values - expected).mean() / max(float(np.square(expected).mean()), 1e-24)))


def alpha_rmsd(outputs: Arrays, expected: Arrays) -> float:
    """Return the RMSD of C-alpha atoms (Å) after superposition."""
    alpha_index = ATOM_ORDER["CA"]
    return rmsd(outputs[POSITIONS][:, alpha_index], expected[POSITIONS][:, alpha_index])


def _array(value: Tensor) -> np.ndarray:
    """Return the only target of a batch as an array on the CPU, in float32 or float64."""
    value = value[0].detach().cpu()
    return (value if value.dtype == torch.float64 else value.float()).numpy()


# Advice for errors if DeepMind's program cannot run.
MISSING = "install it with pip install -c constraints.txt -e '.[parity]', or pass its interpreter as --jax-python"


def run_deepmind(  # noqa: PLR0917
    folder: Path,
    state: Mapping[str, Tensor],
    preset: Preset,
    batches: Sequence[Batch],
    settings: Mapping[str, Any],
    python: Path,
) -> dict[str, Any]:
    """Run DeepMind's program (`deepmind.py`) on a state dict and one batch per recycling iteration; return its results.

    The program reads and writes files in `folder`. Raise `SearchError` if it cannot run.
    """
    iterations = [deepmind_features(batch) for batch in batches]
    arrays: dict[str, Any] = {
        "parameters": from_state_dict(state, preset.model),
        "features": {name: np.concatenate([each[name] for each in iterations]) for name in iterations[0]},
    }
    for file, values in arrays.items():
        np.savez(folder / f"{file}.npz", **values)
    (folder / "settings.json").write_text(json.dumps({"model": preset.name, **settings}))
    command: list[str | Path] = [python, "-P", Path(deepmind.__file__).resolve(), folder]
    run_program(command, timeout=None, directory=folder)
    results: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return results


def run_with_recycling(
    state: Mapping[str, Tensor], preset: Preset, batches: Sequence[Batch], dtype: torch.dtype, python: Path
) -> Run:
    """Return the outputs of the last recycling iteration of DeepMind's program.

    Raise `SearchError` if it cannot run.
    """
    settings = {
        "bfloat16": dtype == torch.bfloat16,
        "threads": torch.get_num_threads() if batches[0].aatype.device.type == "cpu" else None,
        "subbatch_size": 4,
        "fused": False,
        "repeats": 1,
        "outputs": True,
    }
    with tempfile.TemporaryDirectory() as name:
        results = run_deepmind(Path(name), state, preset, batches, settings, python)
        with np.load(Path(name) / "outputs.npz", allow_pickle=False) as arrays:
            outputs = {key: arrays[key] for key in arrays.files}
    return Run(
        outputs=outputs | scores(outputs, batches[-1].seq_mask.cpu()),
        seconds=results["seconds"][0],
        peak=results["memory"],
    )


def deepmind_features(batch: Batch) -> dict[str, np.ndarray]:
    """Return the batch with DeepMind's feature names; the batch dimension is DeepMind's dimension of samples."""
    aatype = batch.aatype.cpu().numpy()
    arrays = {name: getattr(batch, name).cpu().numpy() for name in sampled_fields(type(batch))}
    if isinstance(batch, MultimerBatch):
        arrays["template_all_atom_mask"] = arrays["template_all_atom_masks"]
    rows, extra_rows = arrays["msa_mask"], arrays["extra_msa_mask"]
    arrays |= {
        "seq_length": np.array([aatype.shape[1]]),
        "is_distillation": np.zeros(1, np.float32),
        "atom14_atom_exists": ATOM14_MASK[aatype].astype(np.float32),
        "atom37_atom_exists": ATOM37_MASK[aatype].astype(np.float32),
        "residx_atom14_to_atom37": ATOM14_TO_ATOM37[aatype],
        "residx_atom37_to_atom14": ATOM37_TO_ATOM14[aatype],
        "true_msa": np.zeros(rows.shape, np.int32),
        "bert_mask": np.zeros(rows.shape, np.float32),
        "msa_row_mask": rows[..., 0],
        "extra_msa_row_mask": extra_rows[..., 0],
        "template_sum_probs": np.ones((*arrays["template_mask"].shape, 1), np.float32),
    }
    dtypes = {name: np.int32 if array.dtype.kind == "i" else np.float32 for name, array in arrays.items()}
    return {name: array.astype(dtypes[name]) for name, array in arrays.items()}
