"""Run DeepMind's own program on our parameters and features, in its own process."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data_pipeline.residues import ATOM14_MASK, ATOM14_TO_ATOM37, ATOM37_MASK, ATOM37_TO_ATOM14
from data_pipeline.search.process import run_program
from helixfold.batch import Batch, MultimerBatch, sampled_fields
from helixfold.presets import Preset
from helixfold.verification import deepmind
from helixfold.verification.passes import Run, scores
from helixfold.weights.alphafold import from_state_dict

MISSING = "pip install -c constraints.txt -e '.[parity]' installs it, --jax-python names where it is"


def run_deepmind(  # noqa: PLR0917
    folder: Path,
    state: Mapping[str, Tensor],
    chosen: Preset,
    batches: Sequence[Batch],
    settings: Mapping[str, Any],
    python: Path,
) -> dict[str, Any]:
    """Run the program on a state dict and one batch for each pass; return what `deepmind.py` found.

    `folder` is where it reads and writes its files. Raise `SearchError` if it cannot run.
    """
    passes = [deepmind_features(batch) for batch in batches]
    arrays: dict[str, Any] = {
        "parameters": from_state_dict(state, chosen.model),
        "features": {name: np.concatenate([each[name] for each in passes]) for name in passes[0]},
    }
    for file, values in arrays.items():
        np.savez(folder / f"{file}.npz", **values)
    (folder / "settings.json").write_text(json.dumps({"model": chosen.name, **settings}))
    command: list[str | Path] = [python, "-P", Path(deepmind.__file__).resolve(), folder]
    run_program(command, timeout=None, directory=folder)
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found


def run_passes(
    state: Mapping[str, Tensor], chosen: Preset, batches: Sequence[Batch], dtype: torch.dtype, python: Path
) -> Run:
    """Return the outputs of the last pass of DeepMind's program, with recycling between the passes.

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
        found = run_deepmind(Path(name), state, chosen, batches, settings, python)
        with np.load(Path(name) / "outputs.npz", allow_pickle=False) as arrays:
            outputs = {key: arrays[key] for key in arrays.files}
    return Run(
        outputs=outputs | scores(outputs, batches[-1].seq_mask.cpu()),
        seconds=found["seconds"][0],
        peak=found["memory"],
    )


def deepmind_features(batch: Batch) -> dict[str, np.ndarray]:
    """Return the batch under DeepMind's feature names; its leading dimension is DeepMind's number of samples."""
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
    whole = {name: np.int32 if array.dtype.kind == "i" else np.float32 for name, array in arrays.items()}
    return {name: array.astype(whole[name]) for name, array in arrays.items()}
