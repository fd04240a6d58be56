"""Verify a parameter file, for `helixfold weights verify`.

First the file itself is checked. Then the network is run on ten residues with published outputs, and on a small fixed
input with helixfold's operators, with plain PyTorch, and optionally with DeepMind's program.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from data_pipeline.io.errors import InputError, SearchError
from data_pipeline.io.files import require_file
from helixfold.apps.verify.checks import Check, Findings, Table, check_file
from helixfold.apps.verify.runs import (
    MISSING,
    PAE,
    PLDDT,
    POSITIONS,
    PTM,
    SCORES,
    Arrays,
    Run,
    alpha_rmsd,
    largest_deviation,
    mean_deviation,
    run_network,
    run_with_recycling,
)
from helixfold.execution.device import DTYPES, pick_device
from helixfold.execution.nested import with_tensors_changed
from helixfold.execution.random_inputs import random_batch
from helixfold.model.alphafold import AlphaFold
from helixfold.model.batch import Batch, batch_of_one, sampled_fields
from helixfold.model.geometry.atoms import pseudo_beta
from helixfold.model.presets import Preset
from helixfold.planning.size import dtype_name
from helixfold.runtime.standard_streams import print_note
from helixfold.weights.demonstration import ancestor, is_packaged
from helixfold.weights.files import preset_of_file
from helixfold.weights.load import load_weights

PUBLISHED_MODEL = "model_1_ptm"
# Two published runs of these features, with and without padding, differ only by rounding in bfloat16. Other orders of
# summation may differ by this factor more.
MAX_SPREADS = 4.0
# Maximum deviations in Å, pLDDT and pTM. The two published runs differ by 0.008, 0.003 and 0.00006.
MAX_RMSD, MAX_MEAN_PLDDT, MAX_PTM = 0.1, 0.1, 0.001
# Outputs that have other names in the published file.
_PUBLISHED_NAMES = {
    "representations/msa_first_row": "prev/prev_msa_first_row",
    "representations/pair": "prev/prev_pair",
}


@dataclass(frozen=True, kw_only=True)
class PublishedRun:
    """A published run of DeepMind's program: features of each recycling iteration, outputs of the last, and `spread`.

    `spread` is the relative root mean square deviation of each output in a second published run, due to rounding.
    """

    batches: Sequence[Batch]
    outputs: Arrays
    spread: Mapping[str, float]


@cache
def published_run(device: torch.device) -> PublishedRun:
    """Return the packaged run, whose source is in `data/SOURCE.md`."""
    packaged = resources.files("helixfold.apps.verify") / "data/5AWL.npz"
    with resources.as_file(packaged) as path, np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    features = {name.removeprefix("features/"): value for name, value in arrays.items() if name.startswith("features/")}
    iterations, residues = features["aatype"].shape
    no_templates = {
        "template_aatype": np.zeros((iterations, 0, residues), np.int32),
        "template_all_atom_positions": np.zeros((iterations, 0, residues, 37, 3), np.float32),
        "template_all_atom_masks": np.zeros((iterations, 0, residues, 37), np.float32),
        "template_mask": np.zeros((iterations, 0), np.float32),
        "template_pseudo_beta": np.zeros((iterations, 0, residues, 3), np.float32),
        "template_pseudo_beta_mask": np.zeros((iterations, 0, residues), np.float32),
    }
    features = {**no_templates, **features}
    our_names = {theirs: name for name, theirs in _PUBLISHED_NAMES.items()}
    outputs = {
        our_names.get(name.removeprefix("outputs/"), name.removeprefix("outputs/")): value
        for name, value in arrays.items()
        if name.startswith("outputs/")
    }
    spread = {
        our_names.get(name.removeprefix("spread/"), name.removeprefix("spread/")): float(value)
        for name, value in arrays.items()
        if name.startswith("spread/")
    }
    return PublishedRun(
        batches=[
            Batch(**{name: batch_of_one(features[name][cycle], device) for name in sampled_fields(Batch)})
            for cycle in range(iterations)
        ],
        outputs=outputs,
        spread=spread,
    )


def check_published(network: AlphaFold, expected: PublishedRun, dtype: torch.dtype, name: str) -> tuple[Check, Table]:
    """Run the network on the published features, and compare every output within the limits of bfloat16 rounding.

    `name` is the name of the precision in the texts of the check and the table.
    """
    run = run_network(network, expected.batches, dtype)
    rows, failed_outputs = [], []
    for output, value in expected.outputs.items():
        # Atom positions are defined up to rotation and translation, and are compared below after superposition.
        if output == POSITIONS or output not in run.outputs or output not in expected.spread:
            continue
        error, allowed = mean_deviation(run.outputs[output], value), MAX_SPREADS * expected.spread[output]
        rows.append([output, f"{error:.2e}", f"{expected.spread[output]:.2e}", f"{allowed:.2e}"])
        if output not in (PTM, "mean_plddt") and not error <= allowed:
            failed_outputs.append(output)
    moved_by = alpha_rmsd(run.outputs, expected.outputs) if np.isfinite(run.outputs[POSITIONS]).all() else float("nan")
    mean, ptm = float(run.outputs["mean_plddt"]), float(run.outputs[PTM])
    scores = {name: float(expected.outputs[name]) for name in ("mean_plddt", PTM)}
    changes: Sequence[tuple[str, float, float]] = (
        ("C-alpha atoms", moved_by, MAX_RMSD),
        ("mean pLDDT", abs(mean - scores["mean_plddt"]), MAX_MEAN_PLDDT),
        ("pTM", abs(ptm - scores[PTM]), MAX_PTM),
    )
    for name_of_change, change, maximum in changes:
        if not change <= maximum:
            failed_outputs.append(name_of_change)
    summary = (
        f"mean pLDDT {mean:.3f} (published {scores['mean_plddt']:.3f}), pTM {ptm:.5f} ({scores[PTM]:.5f}), "
        f"C-alpha RMSD {moved_by:.4f} A"
    )
    details = summary if not failed_outputs else f"{summary}; beyond rounding: {', '.join(failed_outputs)}"
    return (
        Check(name=f"published outputs of 5AWL, {name}", holds=not failed_outputs, details=details),
        Table(
            title=f"5AWL, 3 recycles, {name}, compared with published outputs",
            columns=("output", "deviation", "two published runs", "allowed"),
            rows=rows,
            note="relative root mean square deviation; the published trunk ran in bfloat16",
        ),
    )


# Numbers of residues, MSA rows, extra MSA rows and recycling iterations of the fixed input.
FIXED_RESIDUES, FIXED_MSA_ROWS, FIXED_EXTRA_ROWS, FIXED_RECYCLING_ITERATIONS = 24, 8, 12, 2
TOLERANCE = 1e-4  # max deviation relative to the largest value of an output, in float32
NOISE_FACTOR = 3.0  # or this factor times the deviation of float32 from float64, if that is larger
MAX_HALF_ERROR_FACTOR = 2.0  # max error relative to other implementations in the same 16-bit precision
# Names of the most exact run and of DeepMind's program in tables, and of the fixed input in names of checks.
EXACT_RUN_NAME = "float64, plain PyTorch"
DEEPMIND_RUN_NAME = "DeepMind's program"
FIXED_INPUT_NAME = "24 fixed residues"


def fixed_batches(preset: Preset, device: torch.device) -> list[Batch]:
    """Return the features of two recycling iterations, equal on every machine: 24 residues, 8 rows and 12 extra rows.

    Monomer models with templates get one template. Multimer models, which average over all slots, get a template in
    each slot, and two equal chains.
    """
    method, slots = preset.model.method, preset.sampling.max_templates
    templates = slots if method == "multimer" else min(1, slots)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20)
        batch = random_batch(
            FIXED_RESIDUES, FIXED_MSA_ROWS, FIXED_EXTRA_ROWS, templates, torch.device("cpu"), method=method
        )
    atoms = batch.template_all_atom_positions.clone()
    # AlphaFold does not mask the pre-omega torsion of the first residue, which has no residue before it. With these
    # atoms it is exactly 0 instead of the direction of rounding errors.
    atoms[:, :, 0, 0] = torch.tensor([4.0, 0.0, 0.0])
    atoms[:, :, 0, 1] = torch.tensor([4.0, 1.5, 0.0])
    # AlphaFold-Multimer computes pseudo-beta atoms itself, which must give the same.
    beta = pseudo_beta(batch.template_aatype, atoms)
    batch = replace(batch, template_all_atom_positions=atoms, template_pseudo_beta=beta)
    return [with_tensors_changed(lambda tensor: tensor.to(device), batch)] * FIXED_RECYCLING_ITERATIONS


def compare_runs(
    network: AlphaFold,
    preset: Preset,
    batches: Sequence[Batch],
    dtypes: Sequence[torch.dtype],
    *,
    python: Path | None,
) -> Findings:
    """Run a network in each dtype with helixfold's operators and with plain PyTorch; compare all outputs.

    All runs are compared with a run in float64 on a CPU, and with float32 in plain PyTorch on a GPU. With `python`,
    DeepMind's program is run as well, by that interpreter, except in float16. `dtypes` must include float32.
    """
    is_cpu = batches[0].aatype.device.type == "cpu"
    runs, checks = dict[str, Run](), list[Check]()
    if is_cpu:
        runs[EXACT_RUN_NAME] = _in_float64(network, batches)
    for dtype in dtypes:
        name = dtype_name(dtype)
        runs[name] = run_network(network, batches, dtype)
        runs[f"{name}, plain PyTorch"] = run_network(network, batches, dtype, plain=True)
    if python is not None:
        for dtype in dtypes:
            if dtype == torch.float16:
                continue  # DeepMind's program has no such mode
            name = f"{dtype_name(dtype)}, {DEEPMIND_RUN_NAME}"
            try:
                runs[name] = run_with_recycling(network.state_dict(), preset, batches, dtype, python)
            except SearchError as error:
                checks.append(Check(name=f"{FIXED_INPUT_NAME}: {name}", holds=False, details=f"{error}; {MISSING}"))
    exact = runs.get(EXACT_RUN_NAME, runs.get("float32, plain PyTorch"))
    if exact is None:
        raise ValueError("float32 must be among the dtypes")
    checks += _float32(runs, exact) if "float32" in runs else []
    checks += [_half(runs, exact, dtype_name(dtype)) for dtype in dtypes if dtype != torch.float32]
    return Findings(checks=checks, tables=[_costs(runs, exact), _outputs(runs, exact)])


def _float32(runs: dict[str, Run], exact: Run) -> list[Check]:
    """Compare float32 with the most exact run, and with DeepMind's program if it ran, within the noise of float32."""
    plain, run = runs["float32, plain PyTorch"], runs["float32"]
    noise = {name: largest_deviation(value, exact.outputs[name]) for name, value in plain.outputs.items()}
    allowed = {name: max(TOLERANCE, NOISE_FACTOR * each) for name, each in noise.items()}
    other_runs = {"plain PyTorch" if exact is plain else "float64": exact}
    if (deepmind_run := runs.get(f"float32, {DEEPMIND_RUN_NAME}")) is not None:
        other_runs[DEEPMIND_RUN_NAME] = deepmind_run
    return [
        _equal(run, other, allowed, f"{FIXED_INPUT_NAME}: float32 and {name}") for name, other in other_runs.items()
    ]


def _equal(run: Run, other: Run, allowed: dict[str, float], name: str) -> Check:
    """Check that no output deviates from another run's by more than `allowed`, by output."""
    deviations = {
        key: largest_deviation(run.outputs[key], value) for key, value in other.outputs.items() if key in run.outputs
    }
    outputs_beyond = {key: each for key, each in deviations.items() if not each <= allowed[key]}
    worst = max(deviations, key=lambda key: np.nan_to_num(deviations[key], nan=np.inf))
    details = f"largest deviation {deviations[worst]:.1e} of the largest value, in {worst}"
    if outputs_beyond:
        details += f"; beyond {TOLERANCE:g} and {NOISE_FACTOR:g} times float32's noise: {', '.join(outputs_beyond)}"
    return Check(name=name, holds=not outputs_beyond, details=f"{details} ({len(deviations)} outputs)")


def _half(runs: dict[str, Run], exact: Run, name: str) -> Check:
    """Check that the error in a 16-bit precision is at most twice the error of other implementations."""
    own_run = runs[name]
    peer_runs = {key: run for key, run in runs.items() if key.startswith(f"{name}, ")}
    outputs_beyond, worst = [], 0.0
    for output, value in exact.outputs.items():
        error = mean_deviation(own_run.outputs[output], value)
        peer_error = min(
            mean_deviation(run.outputs[output], value) for run in peer_runs.values() if output in run.outputs
        )
        ratio = error / max(peer_error, TOLERANCE)
        worst = float(np.maximum(worst, ratio))
        if not ratio <= MAX_HALF_ERROR_FACTOR and output not in SCORES:
            outputs_beyond.append(f"{output} ({error:.1e}, theirs {peer_error:.1e})")
    names = " and ".join(key.removeprefix(f"{name}, ") for key in peer_runs)
    details = f"error at most {worst:.2f} times the error of {names}"
    if outputs_beyond:
        details += f"; more than {MAX_HALF_ERROR_FACTOR:g} times: {', '.join(outputs_beyond)}"
    return Check(name=f"{FIXED_INPUT_NAME}: {name}", holds=not outputs_beyond, details=details)


def _costs(runs: dict[str, Run], exact: Run) -> Table:
    """Return the table of deviations of structure and scores, times and memory of all runs."""
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
        title=f"{FIXED_INPUT_NAME}: each run compared with the most exact one",
        columns=("run", "C-alpha RMSD, A", "pLDDT, at most", "PAE, at most, A", "seconds", "peak, MiB"),
        rows=rows,
        note="one run each, next to other programs: times are not a measurement of speed",
    )


def _outputs(runs: dict[str, Run], exact: Run) -> Table:
    """Return the table of the largest deviation of each output from the most exact run."""
    others = {name: run for name, run in runs.items() if run is not exact}
    rows = [
        [
            output,
            *(
                f"{largest_deviation(run.outputs[output], value):.1e}" if output in run.outputs else "-"
                for run in others.values()
            ),
            f"{np.abs(value).max():.4g}",
        ]
        for output, value in exact.outputs.items()
    ]
    return Table(
        title=f"{FIXED_INPUT_NAME}: largest deviation of every output, relative to its largest value",
        columns=("output", *others, "largest value"),
        rows=rows,
        note=f"{POSITIONS} is compared without superposition",
    )


def _in_float64(network: AlphaFold, batches: Sequence[Batch]) -> Run:
    """Run the network with plain PyTorch in float64, with parameters and features cast to float64."""
    network_float64 = copy.deepcopy(network).double()
    return run_network(network_float64, [_cast(batch) for batch in batches], torch.float64, plain=True)


def _cast(batch: Batch) -> Batch:
    """Return a batch whose floating-point features are float64."""
    return with_tensors_changed(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor, batch)


def verify(
    path: Path,
    preset: Preset,
    dtypes: Sequence[str] = ("float32", "bfloat16"),
    *,
    published: bool = True,
    python: Path | None = None,
    device: str = "cpu",
    say: Callable[[str], None] = lambda _: None,
) -> Findings:
    """Run all checks of a parameter file, and return their results; `say` is called with the name of each step.

    `published` means that the parameters should be DeepMind's and give the published outputs. `python` is the
    interpreter for DeepMind's program; None skips it. If names, shapes or values are wrong, the network is not run.
    Raise `InputError` if the format of the file is unknown.
    """
    target_device, findings = pick_device(device), Findings()
    say("reading the file")
    findings.checks += check_file(path, preset, published=published)
    if not findings.holds and findings.checks[0].holds is False:
        return findings
    if findings.checks[1].holds is False:
        findings.checks.append(Check(name="outputs", holds=None, details="not compared, because the values are wrong"))
        return findings
    with torch.device("meta"):
        network = AlphaFold(preset.model)
    network.load_state_dict(load_weights(path, preset.model), assign=True)
    network = network.to(target_device).requires_grad_(False).eval()
    if reason := _no_published_outputs(path, preset, published=published):
        findings.checks.append(Check(name="published outputs", holds=None, details=reason))
    else:
        expected = published_run(target_device)
        for name in dtypes:
            say(f"running the ten residues of 5AWL in {name}")
            check, table = check_published(network, expected, DTYPES[name], name)
            findings.checks.append(check)
            findings.tables.append(table)
    say(f"running {FIXED_INPUT_NAME}")
    batches = fixed_batches(preset, target_device)
    comparison = compare_runs(network, preset, batches, [DTYPES[name] for name in dtypes], python=python)
    findings.checks += comparison.checks
    findings.tables += comparison.tables
    return findings


def _no_published_outputs(path: Path, preset: Preset, *, published: bool) -> str | None:
    """Return the reason why a file's outputs are not compared with published ones, or None."""
    if is_packaged(path) or ancestor(path) is not None:
        return "these parameters were trained by helixfold"
    if not published:
        return "the file is not DeepMind's (--own)"
    if preset.name != PUBLISHED_MODEL:
        return f"outputs are only published for {PUBLISHED_MODEL}"
    return None


def run(
    path: Path,
    *,
    preset: str | None,
    dtypes: Sequence[str],
    own: bool,
    against: Literal["jax"] | None,
    jax_python: Path,
    device: str,
) -> int:
    """Verify a parameter file and print the results; return 0, or 1 if a check failed.

    `own` means that the parameters are not DeepMind's. `against` "jax" also runs DeepMind's program by `jax_python`.
    Raise `InputError` if the file cannot be read, or the options are invalid.
    """
    if "float32" not in dtypes:
        raise InputError(f"--dtype {' '.join(dtypes)}: add float32, with which the others are compared")
    require_file(path)
    findings = verify(
        path,
        preset_of_file(path, preset),
        tuple(dict.fromkeys(dtypes)),
        published=not own,
        python=None if against is None else jax_python,
        device=device,
        say=lambda text: print_note(f"{text} ..."),
    )
    print("\n".join(lines(findings)))
    return 0 if findings.holds else 1


def lines(findings: Findings) -> list[str]:
    """Return the results as lines of text: the tables, the checks, and the number of failed checks."""
    text = []
    for table in findings.tables:
        text += [*table.lines(), ""]
    text += [f"{check.verdict}: {check.name}: {check.details}" for check in findings.checks]
    failed, unchecked, passed = (findings.count(holds=holds) for holds in (False, None, True))
    others = f", {unchecked} were not possible" if unchecked else ""
    verdict = f"{failed} of {len(findings.checks)} checks failed" if failed else f"{passed} checks passed"
    return [*text, f"{verdict}{others}"]
