"""Verify a parameter file, for `helixfold weights verify`: by itself, by what is published, and by other programs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from helixfold.execution.device import pick_device
from helixfold.execution.dtypes import DTYPES
from helixfold.model.alphafold import AlphaFold
from helixfold.presets import Preset
from helixfold.verification.checks import Check, Findings
from helixfold.verification.file_checks import check_file
from helixfold.verification.fixed_input import compare_runs, fixed_batches
from helixfold.verification.published import MODEL, check_published, published_run
from helixfold.weights.demonstration import ancestor, is_packaged
from helixfold.weights.load import load_weights

FIXED = "24 fixed residues"


@dataclass(frozen=True, kw_only=True)
class Question:
    """Request to verify a parameter file.

    `published` says that the parameters are DeepMind's, so that their published outputs must come out. `python` is the
    interpreter of DeepMind's program, or None if it is not to run.
    """

    preset: Preset
    dtypes: Sequence[str] = ("float32", "bfloat16")
    published: bool = True
    python: Path | None = None
    device: str = "cpu"


def verify(path: Path, question: Question, say: Callable[[str], None] = lambda _: None) -> Findings:
    """Return everything that was found about a parameter file; `say` is told what is being done.

    Raise `InputError` if the file is of an unknown format.
    """
    device, findings = pick_device(question.device), Findings()
    say("reading the file")
    findings.checks += check_file(path, question.preset, published=question.published)
    if not findings.holds and findings.checks[0].holds is False:
        return findings
    if findings.checks[1].holds is False:
        findings.checks.append(Check(name="outputs", holds=None, found="the network is not run with such values"))
        return findings
    with torch.device("meta"):
        network = AlphaFold(question.preset.model)
    network.load_state_dict(load_weights(path, question.preset.model), assign=True)
    network = network.to(device).requires_grad_(False).eval()
    dtypes = [DTYPES[name] for name in question.dtypes]
    if reason := _no_published_outputs(path, question):
        findings.checks.append(Check(name="published outputs", holds=None, found=reason))
    else:
        _add_published(findings, network, question.dtypes, device, say)
    say(f"running {FIXED}")
    batches = fixed_batches(question.preset, device)
    found = compare_runs(network, question.preset, batches, dtypes, what=FIXED, python=question.python)
    findings.checks += found.checks
    findings.tables += found.tables
    return findings


def _no_published_outputs(path: Path, question: Question) -> str | None:
    """Return why a file's outputs are not compared with published ones, or None."""
    if is_packaged(path) or ancestor(path) is not None:
        return "these parameters were trained by helixfold"
    if not question.published:
        return "the file is said not to be DeepMind's"
    if question.preset.name != MODEL:
        return f"outputs are published for {MODEL} alone"
    return None


def _add_published(
    findings: Findings, network: AlphaFold, dtypes: Sequence[str], device: torch.device, say: Callable[[str], None]
) -> None:
    expected = published_run(device)
    for name in dtypes:
        say(f"running the ten residues of 5AWL in {name}")
        check, table = check_published(network, expected, DTYPES[name], name)
        findings.checks.append(check)
        findings.tables.append(table)
