"""Verify a parameter file, for `helixfold weights verify`: by itself, by what is published, and by other programs."""

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from data_pipeline.errors import InputError
from data_pipeline.files import require_file
from data_pipeline.pipeline import Target
from helixfold import __version__
from helixfold.config import ModelConfig
from helixfold.execution.device import pick_device
from helixfold.execution.dtypes import DTYPES
from helixfold.model.alphafold import AlphaFold
from helixfold.presets import Preset
from helixfold.verification.checks import Check, Findings
from helixfold.verification.file_checks import check_file
from helixfold.verification.fixed_input import compare_runs, fixed_batches, target_batches
from helixfold.verification.layers import compare_parameters
from helixfold.verification.published import MAX_SECONDS, MODEL, check_published, find_exchanged_layers, published_run
from helixfold.weights.demonstration import ancestor, is_packaged
from helixfold.weights.load import load_weights

FIXED = "24 fixed residues"


@dataclass(frozen=True, kw_only=True)
class Question:
    """Request to verify a parameter file.

    `published` says that the parameters are DeepMind's, so that their published outputs must come out. `python` is the
    interpreter of DeepMind's program, or None if it is not to run, and `other` another file of the same parameters.
    """

    preset: Preset
    dtypes: Sequence[str] = ("float32", "bfloat16")
    published: bool = True
    python: Path | None = None
    other: Path | None = None
    target: Target | None = None
    device: str = "cpu"


def verify(path: Path, question: Question, say: Callable[[str], None] = lambda _: None) -> Findings:
    """Return everything that was found about a parameter file; `say` is told what is being done.

    Raise `InputError` if the file is of an unknown format.
    """
    device, findings = pick_device(question.device), Findings()
    findings.facts |= {
        "file": path.name,
        "model": question.preset.name,
        "helixfold": __version__,
        "PyTorch": torch.__version__,
        "Python": f"{platform.python_version()} on {platform.platform()}",
        "device": f"{device}, {torch.get_num_threads()} threads" if device.type == "cpu" else str(device),
    }
    say("reading the file")
    findings.checks += check_file(path, question.preset, published=question.published)
    if not findings.holds and findings.checks[0].holds is False:
        return findings
    if question.other is not None:
        say(f"comparing it with {question.other}")
        findings.checks.append(_same_as(path, question.other, question.preset.model))
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
    inputs = {FIXED: fixed_batches(question.preset, device)}
    if question.target is not None:
        inputs[question.target.name] = target_batches(question.target, question.preset, device)
    for what, batches in inputs.items():
        found = compare_runs(network, question.preset, batches, dtypes, what=what, python=question.python)
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
        check, table, _ = check_published(network, expected, DTYPES[name], name)
        findings.checks.append(check)
        findings.tables.append(table)
    if all(check.holds for check in findings.checks if check.name.startswith("published outputs")):
        return
    say(f"looking for exchanged layers, for at most {MAX_SECONDS / 60:g} minutes")
    findings.checks.append(find_exchanged_layers(network, expected, say=say))


def _same_as(path: Path, other: Path, config: ModelConfig) -> Check:
    """Compare all bits with those of another file."""
    try:
        require_file(other)
        state, expected = load_weights(path, config), load_weights(other, config)
    except InputError as error:
        return Check(name="against a file", holds=False, found=str(error))
    return compare_parameters(state, expected, other.name)
