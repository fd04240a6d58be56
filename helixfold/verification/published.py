"""Compare a network with the outputs that are published for DeepMind's `model_1_ptm`: ten residues, 5AWL."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np
import torch

from helixfold.batch import Batch, batch_of_one, sampled_fields
from helixfold.model.alphafold import AlphaFold
from helixfold.verification.checks import Check, Table
from helixfold.verification.runs import (
    POSITIONS,
    PTM,
    Arrays,
    alpha_rmsd,
    mean_deviation,
    run_network,
)

MODEL = "model_1_ptm"
# Two published runs of these features, padded and not, differ by rounding in bfloat16 alone. Other orders of summation
# than these two have may differ a few times as much.
TIMES_SPREAD = 4.0
# Angstrom, pLDDT and pTM. The two published runs differ by 0.008, 0.003 and 0.00006.
LARGEST_RMSD, LARGEST_MEAN_PLDDT, LARGEST_PTM = 0.1, 0.1, 0.001
# The names in the published file of outputs that have other names in a run.
_THEIRS = {
    "representations/msa_first_row": "prev/prev_msa_first_row",
    "representations/pair": "prev/prev_pair",
}


@dataclass(frozen=True, kw_only=True)
class PublishedRun:
    """Features of every pass, outputs of the last, and how far apart rounding alone brings each output.

    `spread` is the root mean square deviation of a second published run over that of the values.
    """

    batches: Sequence[Batch]
    outputs: Arrays
    spread: Mapping[str, float]


@cache
def published_run(device: torch.device) -> PublishedRun:
    """Return the run that comes with the package; `data/SOURCE.md` says where it is from."""
    packaged = resources.files("helixfold.verification") / "data/5AWL.npz"
    with resources.as_file(packaged) as path, np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    features = {name.removeprefix("features/"): value for name, value in arrays.items() if name.startswith("features/")}
    passes, residues = features["aatype"].shape
    no_templates = {
        "template_aatype": np.zeros((passes, 0, residues), np.int32),
        "template_all_atom_positions": np.zeros((passes, 0, residues, 37, 3), np.float32),
        "template_all_atom_masks": np.zeros((passes, 0, residues, 37), np.float32),
        "template_mask": np.zeros((passes, 0), np.float32),
        "template_pseudo_beta": np.zeros((passes, 0, residues, 3), np.float32),
        "template_pseudo_beta_mask": np.zeros((passes, 0, residues), np.float32),
    }
    features = {**no_templates, **features}
    ours = {theirs: name for name, theirs in _THEIRS.items()}
    outputs = {
        ours.get(name.removeprefix("outputs/"), name.removeprefix("outputs/")): value
        for name, value in arrays.items()
        if name.startswith("outputs/")
    }
    spread = {
        ours.get(name.removeprefix("spread/"), name.removeprefix("spread/")): float(value)
        for name, value in arrays.items()
        if name.startswith("spread/")
    }
    return PublishedRun(
        batches=[
            Batch(**{name: batch_of_one(features[name][cycle], device) for name in sampled_fields(Batch)})
            for cycle in range(passes)
        ],
        outputs=outputs,
        spread=spread,
    )


def check_published(network: AlphaFold, expected: PublishedRun, dtype: torch.dtype, name: str) -> tuple[Check, Table]:
    """Run the published features and compare every published output by what rounding in bfloat16 explains."""
    run = run_network(network, expected.batches, dtype)
    rows, failed = [], []
    for output, value in expected.outputs.items():
        # Atoms are known up to a rotation and a shift, and are compared below after superposition.
        if output == POSITIONS or output not in run.outputs or output not in expected.spread:
            continue
        error, allowed = mean_deviation(run.outputs[output], value), TIMES_SPREAD * expected.spread[output]
        rows.append([output, f"{error:.2e}", f"{expected.spread[output]:.2e}", f"{allowed:.2e}"])
        if output not in (PTM, "mean_plddt") and not error <= allowed:
            failed.append(output)
    moved = alpha_rmsd(run.outputs, expected.outputs) if np.isfinite(run.outputs[POSITIONS]).all() else float("nan")
    mean, ptm = float(run.outputs["mean_plddt"]), float(run.outputs[PTM])
    known = {name: float(expected.outputs[name]) for name in ("mean_plddt", PTM)}
    changes: Sequence[tuple[str, float, float]] = (
        ("C-alpha atoms", moved, LARGEST_RMSD),
        ("mean pLDDT", abs(mean - known["mean_plddt"]), LARGEST_MEAN_PLDDT),
        ("pTM", abs(ptm - known[PTM]), LARGEST_PTM),
    )
    for what, change, most in changes:
        if not change <= most:
            failed.append(what)
    summary = (
        f"mean pLDDT {mean:.3f} (published {known['mean_plddt']:.3f}), pTM {ptm:.5f} ({known[PTM]:.5f}), "
        f"C-alpha RMSD {moved:.4f} A"
    )
    found = summary if not failed else f"{summary}; beyond rounding: {', '.join(failed)}"
    return (
        Check(name=f"published outputs of 5AWL, {name}", holds=not failed, found=found),
        Table(
            title=f"5AWL, 3 recycles, {name}, beside what is published",
            columns=("output", "deviation", "two published runs", "allowed"),
            rows=rows,
            note="root mean square deviation over that of the values; the published trunk ran in bfloat16",
        ),
    )
