"""Measure the CPU time of each test with its fixtures, including processes that it starts and waits for.

Off without `--max-cpu-seconds`, which continuous integration sets.
"""

import os
from collections.abc import Generator
from typing import Any

import pytest

from tests.support.tiers import tier_of

REPORTED_SECONDS = 2.0
_STARTED = pytest.StashKey[float]()
_PROPERTY = "cpu_seconds"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("tiers").addoption(
        "--max-cpu-seconds",
        type=float,
        metavar="SECONDS",
        help=f"list the tests that take more than {REPORTED_SECONDS:g} s of CPU time, and fail the unit tests that "
        "take more than SECONDS",
    )


def cpu_seconds() -> float:
    """CPU time of this process and of its children that have ended."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[_STARTED] = cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    limit = item.config.getoption("--max-cpu-seconds")
    if limit is not None and call.when == "teardown":
        seconds = cpu_seconds() - item.stash[_STARTED]
        report.user_properties.append((_PROPERTY, seconds))
        if seconds > limit and report.passed and tier_of(item) == "unit":
            report.outcome = "failed"
            report.longrepr = (
                f"took {seconds:.1f} s of CPU time; a unit test may take {limit:g} s: "
                "use smaller inputs, split it or move it to the tier `integration` (tests/README.md)"
            )
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if config.getoption("--max-cpu-seconds") is None:
        return
    each = {
        report.nodeid: dict(report.user_properties)[_PROPERTY]
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "teardown"
    }
    terminalreporter.section("CPU time")
    terminalreporter.write_line(f"{sum(each.values()):.0f} s in {len(each)} tests, without imports and collection")
    for name, seconds in sorted(each.items(), key=lambda pair: -pair[1]):
        if seconds > REPORTED_SECONDS:
            terminalreporter.write_line(f"{seconds:6.1f} s {name}")
