"""Verify a parameter file, for `helixfold weights verify`: by itself, by what is published, and by other programs."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import torch

from data_pipeline.errors import InputError
from data_pipeline.files import require_file
from helixfold.execution.device import pick_device
from helixfold.execution.dtypes import DTYPES
from helixfold.model.alphafold import AlphaFold
from helixfold.presets import Preset
from helixfold.verification.checks import Check, Findings, check_file
from helixfold.verification.fixed_input import compare_runs, fixed_batches
from helixfold.verification.published import MODEL, check_published, published_run
from helixfold.weights.demonstration import ancestor, is_packaged
from helixfold.weights.files import preset_of_file
from helixfold.weights.load import load_weights

FIXED = "24 fixed residues"


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
    """Return everything that was found about a parameter file; `say` is called with what is being done.

    `published` says that the parameters are DeepMind's, so that their published outputs must come out. `python` is the
    interpreter of DeepMind's program, or None if it is not to run. Raise `InputError` if the file is of an unknown
    format.
    """
    place, findings = pick_device(device), Findings()
    say("reading the file")
    findings.checks += check_file(path, preset, published=published)
    if not findings.holds and findings.checks[0].holds is False:
        return findings
    if findings.checks[1].holds is False:
        findings.checks.append(Check(name="outputs", holds=None, found="the network is not run with such values"))
        return findings
    with torch.device("meta"):
        network = AlphaFold(preset.model)
    network.load_state_dict(load_weights(path, preset.model), assign=True)
    network = network.to(place).requires_grad_(False).eval()
    if reason := _no_published_outputs(path, preset, published=published):
        findings.checks.append(Check(name="published outputs", holds=None, found=reason))
    else:
        expected = published_run(place)
        for name in dtypes:
            say(f"running the ten residues of 5AWL in {name}")
            check, table = check_published(network, expected, DTYPES[name], name)
            findings.checks.append(check)
            findings.tables.append(table)
    say(f"running {FIXED}")
    batches = fixed_batches(preset, place)
    found = compare_runs(network, preset, batches, [DTYPES[name] for name in dtypes], what=FIXED, python=python)
    findings.checks += found.checks
    findings.tables += found.tables
    return findings


def _no_published_outputs(path: Path, preset: Preset, *, published: bool) -> str | None:
    """Return why a file's outputs are not compared with published ones, or None."""
    if is_packaged(path) or ancestor(path) is not None:
        return "these parameters were trained by helixfold"
    if not published:
        return "the file is said not to be DeepMind's"
    if preset.name != MODEL:
        return f"outputs are published for {MODEL} alone"
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
    """Print what is found about a parameter file; return 0, or 1 if a check failed.

    Raise `InputError` if the file cannot be read, or what is asked makes no sense.
    """
    if "float32" not in dtypes:
        raise InputError(f"--dtype {' '.join(dtypes)}: float32 must be among them, since the others are judged by it")
    require_file(path)
    findings = verify(
        path,
        preset_of_file(path, preset),
        tuple(dict.fromkeys(dtypes)),
        published=not own,
        python=None if against is None else jax_python,
        device=device,
        say=lambda text: print(f"{text} ...", file=sys.stderr, flush=True),
    )
    print("\n".join(lines(findings)))
    return 0 if findings.holds else 1


def lines(findings: Findings) -> list[str]:
    """Return all that was found as lines of text: the tables, then the checks, and last whether all hold."""
    text = []
    for table in findings.tables:
        text += [*table.lines(), ""]
    text += [f"{check.word}: {check.name}: {check.found}" for check in findings.checks]
    failed, unchecked = findings.count(holds=False), findings.count(holds=None)
    others = f", {unchecked} could not be made" if unchecked else ""
    return [*text, f"{failed or 'none'} of {len(findings.checks)} checks failed{others}"]
