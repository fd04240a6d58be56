"""Run a fixed small input through our network and DeepMind's program, and compare all outputs."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from data_pipeline.errors import SearchError
from helixfold.batch import Batch
from helixfold.execution.nested import with_tensors_changed
from helixfold.execution.random_inputs import random_batch
from helixfold.geometry.atoms import pseudo_beta
from helixfold.model.alphafold import AlphaFold
from helixfold.planning.size import dtype_name
from helixfold.presets import Preset
from helixfold.verification.checks import Check, Findings, Table
from helixfold.verification.runs import (
    MISSING,
    PAE,
    PLDDT,
    POSITIONS,
    SCORES,
    Run,
    alpha_rmsd,
    largest_deviation,
    mean_deviation,
    run_network,
    run_passes,
)

RESIDUES, ROWS, EXTRA_ROWS, PASSES = 24, 8, 12, 2
TOLERANCE = 1e-4  # of the largest value of an output, in float32
NOISE_FACTOR = 3.0  # times the deviation of float32 from float64, where that is more
HALF_FACTOR = 2.0  # times the error of others in the same precision
EXACT = "float64, plain PyTorch"
DEEPMIND = "DeepMind's program"


def fixed_batches(preset: Preset, device: torch.device) -> list[Batch]:
    """Return the features of two passes, the same on every machine: 24 residues, 8 rows and 12 extra rows.

    A model with templates gets one, and a model of complexes, which averages all slots, one in each slot, and two equal
    chains.
    """
    method, slots = preset.model.method, preset.sampling.max_templates
    templates = slots if method == "multimer" else min(1, slots)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20)
        batch = random_batch(RESIDUES, ROWS, EXTRA_ROWS, templates, torch.device("cpu"), method=method)
    atoms = batch.template_all_atom_positions.clone()
    # The first residue's pre-omega torsion has no residue before it, and AlphaFold does not mask it: here it is exactly
    # 0, and not the direction of rounding errors.
    atoms[:, :, 0, 0] = torch.tensor([4.0, 0.0, 0.0])
    atoms[:, :, 0, 1] = torch.tensor([4.0, 1.5, 0.0])
    # AlphaFold-Multimer computes it from the atoms, which has to give the same.
    beta = pseudo_beta(batch.template_aatype, atoms)
    batch = replace(batch, template_all_atom_positions=atoms, template_pseudo_beta=beta)
    return [with_tensors_changed(lambda tensor: tensor.to(device), batch)] * PASSES


def compare_runs(
    network: AlphaFold,
    preset: Preset,
    batches: Sequence[Batch],
    dtypes: Sequence[torch.dtype],
    *,
    what: str,
    python: Path | None,
) -> Findings:
    """Run a network in float64, and in each dtype by our operators and by plain PyTorch, and compare all outputs.

    If `python` is given, DeepMind's program runs too, by that interpreter.
    """
    cpu = batches[0].aatype.device.type == "cpu"
    runs, checks = dict[str, Run](), list[Check]()
    if cpu:
        runs[EXACT] = _in_float64(network, batches)
    for dtype in dtypes:
        name = dtype_name(dtype)
        runs[name] = run_network(network, batches, dtype)
        runs[f"{name}, plain PyTorch"] = run_network(network, batches, dtype, plain=True)
    if python is not None:
        for dtype in dtypes:
            if dtype == torch.float16:
                continue  # DeepMind's program has no such mode
            name = f"{dtype_name(dtype)}, {DEEPMIND}"
            try:
                runs[name] = run_passes(network.state_dict(), preset, batches, dtype, python)
            except SearchError as error:
                checks.append(Check(name=f"{what}: {name}", holds=False, found=f"{error}; {MISSING}"))
    exact = runs.get(EXACT, runs.get("float32, plain PyTorch"))
    if exact is None:
        raise ValueError("float32 must be among the dtypes")
    checks += _float32(runs, exact, what) if "float32" in runs else []
    checks += [
        check for dtype in dtypes if dtype != torch.float32 for check in [_half(runs, exact, dtype_name(dtype), what)]
    ]
    return Findings(checks=checks, tables=[_costs(runs, exact, what), _outputs(runs, exact, what)])


def _float32(runs: dict[str, Run], exact: Run, what: str) -> list[Check]:
    """Check float32 by its own noise, and against DeepMind's program if that ran."""
    plain, found = runs["float32, plain PyTorch"], runs["float32"]
    noise = {name: largest_deviation(value, exact.outputs[name]) for name, value in plain.outputs.items()}
    allowed = {name: max(TOLERANCE, NOISE_FACTOR * each) for name, each in noise.items()}
    others = {"plain PyTorch" if exact is plain else "float64": exact}
    if (theirs := runs.get(f"float32, {DEEPMIND}")) is not None:
        others[DEEPMIND] = theirs
    return [_equal(found, other, allowed, f"{what}: float32 beside {name}") for name, other in others.items()]


def _equal(found: Run, other: Run, allowed: dict[str, float], name: str) -> Check:
    deviations = {
        key: largest_deviation(found.outputs[key], value)
        for key, value in other.outputs.items()
        if key in found.outputs
    }
    beyond = {key: each for key, each in deviations.items() if not each <= allowed[key]}
    worst = max(deviations, key=lambda key: np.nan_to_num(deviations[key], nan=np.inf))
    said = f"largest deviation {deviations[worst]:.1e} of the largest value, in {worst}"
    if beyond:
        said += f"; beyond {TOLERANCE:g} and {NOISE_FACTOR:g} times float32's noise: {', '.join(beyond)}"
    return Check(name=name, holds=not beyond, found=f"{said} ({len(deviations)} outputs)")


def _half(runs: dict[str, Run], exact: Run, name: str, what: str) -> Check:
    """Check that a short precision costs at most twice what it costs others."""
    found = runs[name]
    peers = {key: run for key, run in runs.items() if key.startswith(f"{name}, ")}
    beyond, worst = [], 0.0
    for output, value in exact.outputs.items():
        error = mean_deviation(found.outputs[output], value)
        peer = min(mean_deviation(run.outputs[output], value) for run in peers.values() if output in run.outputs)
        ratio = error / max(peer, TOLERANCE)
        worst = float(np.maximum(worst, ratio))
        if not ratio <= HALF_FACTOR and output not in SCORES:
            beyond.append(f"{output} ({error:.1e}, theirs {peer:.1e})")
    whom = " and ".join(key.removeprefix(f"{name}, ") for key in peers)
    said = f"error at most {worst:.2f} times that of {whom}"
    if beyond:
        said += f"; more than {HALF_FACTOR:g} times: {', '.join(beyond)}"
    return Check(name=f"{what}: {name}", holds=not beyond, found=said)


def _costs(runs: dict[str, Run], exact: Run, what: str) -> Table:
    rows = []
    for name, run in runs.items():
        pae = f"{np.abs(run.outputs[PAE] - exact.outputs[PAE]).max():.4f}" if PAE in run.outputs else "-"
        rows.append(
            [
                name,
                f"{alpha_rmsd(run.outputs, exact.outputs):.5f}",
                f"{np.abs(run.outputs[PLDDT] - exact.outputs[PLDDT]).max():.4f}",
                pae,
                f"{run.seconds:.2f}",
                f"{run.peak / 2**20:,.0f}",
            ]
        )
    return Table(
        title=f"{what}: each run beside the most exact one",
        columns=("run", "C-alpha RMSD, A", "pLDDT, at most", "PAE, at most, A", "seconds", "peak, MiB"),
        rows=rows,
        note="one run each, beside whatever else the machine did: times are no measurement of speed",
    )


def _outputs(runs: dict[str, Run], exact: Run, what: str) -> Table:
    shown = {name: run for name, run in runs.items() if run is not exact}
    rows = [
        [
            output,
            *(
                f"{largest_deviation(run.outputs[output], value):.1e}" if output in run.outputs else "-"
                for run in shown.values()
            ),
            f"{np.abs(value).max():.4g}",
        ]
        for output, value in exact.outputs.items()
    ]
    return Table(
        title=f"{what}: largest deviation of every output, in units of its largest value",
        columns=("output", *shown, "largest value"),
        rows=rows,
        note=f"{POSITIONS} is compared without superposition",
    )


def _in_float64(network: AlphaFold, batches: Sequence[Batch]) -> Run:
    """Run plain PyTorch in float64, with parameters and features cast to it."""
    wide = copy.deepcopy(network).double()
    return run_network(wide, [_cast(batch) for batch in batches], torch.float64, plain=True)


def _cast(batch: Batch) -> Batch:
    return with_tensors_changed(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor, batch)
