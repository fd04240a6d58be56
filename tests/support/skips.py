"""Let continuous integration fail where a test is skipped for a reason that is not in a short list.

Elsewhere pytest only reports skipped tests. `--fail-on-skips` is the option of continuous integration.
"""

import re
from collections.abc import Generator

import pytest

# Reasons for which continuous integration may skip a test: patterns within the reasons that pytest reports.
ALLOWED = (
    "needs a GPU",
    "needs a CUDA device",
    "needs (reference|data) arrays in",  # in the directory that HELIXFOLD_SHARED names
    "the reference data is not there|has the dictionaries and is not there|needs train_mmcif|needs crambin",  # the same
    "needs the extra 'parity'|needs alphafold-colabfold",  # the extra `test` does not have JAX
    "peft is compared where it is installed",
    "needs the TM-score program",  # not in Debian
    "has no package with the client of",  # other programs of alignment servers
    "needs MMseqs2",  # stored results are of one release, and another release is installed
    "needs strace, and the right to trace",
    "needs the right to mount|only root may mount",  # containers without privileges
    "this processor multiplies by PyTorch's products",
    "left to cuBLAS",
    "the table is of Triton 3.9",
)
_ALLOWED = re.compile("|".join(ALLOWED))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("tiers").addoption(
        "--fail-on-skips",
        action="store_true",
        help="fail tests that are skipped for a reason that is not in tests/support/skips.py",
    )


def _fail_if_skipped(report: pytest.TestReport | pytest.CollectReport, config: pytest.Config) -> None:
    if not config.getoption("--fail-on-skips") or not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not _ALLOWED.search(reason):
        report.outcome = "failed"
        report.longrepr = f"{reason}: this reason is not in the list of tests/support/skips.py"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_if_skipped(report, item.config)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_if_skipped(report, collector.config)
    return report
