"""The command `helixfold weights verify`: read what is asked, print what was found, and write the page."""

import sys
from collections.abc import Sequence
from pathlib import Path

from data_pipeline.errors import InputError
from data_pipeline.files import require_file
from data_pipeline.pipeline import Target
from helixfold.predict.targets import read_targets, single_chains
from helixfold.verification.checks import Findings
from helixfold.verification.page import write_verification
from helixfold.verification.verify import Question, verify
from helixfold.weights.files import preset_of_file

JAX = "jax"
_FAILED = 1


def run(
    path: Path,
    *,
    preset: str | None,
    dtypes: Sequence[str],
    own: bool,
    against: str | None,
    jax_python: Path,
    target: Path | None,
    device: str,
    report: Path | None,
) -> int:
    """Print what is found about a parameter file; return 0, or 1 if a check failed.

    Raise `InputError` if a file cannot be read or written, or what is asked makes no sense.
    """
    if "float32" not in dtypes:
        raise InputError(f"--dtype {' '.join(dtypes)}: float32 must be among them, since the others are judged by it")
    if report is not None and not report.absolute().parent.is_dir():
        raise InputError(f"{report} cannot be written: {report.parent} is no directory")
    require_file(path)
    question = Question(
        preset=preset_of_file(path, preset),
        dtypes=tuple(dict.fromkeys(dtypes)),
        published=not own,
        python=jax_python if against == JAX else None,
        other=None if against in (None, JAX) else Path(str(against)),
        target=None if target is None else _one_target(target),
        device=device,
    )
    findings = verify(path, question, say=lambda text: print(f"{text} ...", file=sys.stderr, flush=True))
    print("\n".join(lines(findings)))
    if report is not None:
        write_verification(report, findings)
        print(f"wrote {report}")
    return 0 if findings.holds else _FAILED


def lines(findings: Findings) -> list[str]:
    """Return all that was found as lines of text: the tables, then the checks, and last whether all hold."""
    text = []
    for table in findings.tables:
        text += [*table.lines(), ""]
    text += [f"{check.word}: {check.name}: {check.found}" for check in findings.checks]
    failed, unchecked = findings.count(holds=False), findings.count(holds=None)
    others = f", {unchecked} could not be made" if unchecked else ""
    return [*text, f"{failed or 'none'} of {len(findings.checks)} checks failed{others}"]


def _one_target(path: Path) -> Target:
    targets = single_chains(read_targets([path]))
    if len(targets) != 1:
        raise InputError(f"{path}: has {len(targets)} targets; give one")
    return targets[0]
