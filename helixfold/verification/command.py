"""The command `helixfold weights verify`: read what is asked, and print what was found."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from data_pipeline.errors import InputError
from data_pipeline.files import require_file
from helixfold.verification.checks import Findings
from helixfold.verification.verify import Question, verify
from helixfold.weights.files import preset_of_file

_FAILED = 1


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
    question = Question(
        preset=preset_of_file(path, preset),
        dtypes=tuple(dict.fromkeys(dtypes)),
        published=not own,
        python=None if against is None else jax_python,
        device=device,
    )
    findings = verify(path, question, say=lambda text: print(f"{text} ...", file=sys.stderr, flush=True))
    print("\n".join(lines(findings)))
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
