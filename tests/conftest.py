"""Where the tests find things that are not in the repository, and what they skip without them."""

import os
import re
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.support import speedups

pytest_plugins = ("tests.support.tiers", "tests.support.cpu_time", "tests.support.skips")

# Kernels run in Triton's interpreter where nothing can compile them; that is settled when their modules are imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
# With a GPU, Triton warns where this is not said, and the deterministic algorithms of poisoned memory need the other.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

# No configuration file of this machine or its user is read, also in processes that tests start.
os.environ["HELIXFOLD_CONFIG"] = os.devnull

if find_spec("beartype"):
    # The first check would import it, and memory that is released meanwhile calls functions that are checked, too.
    import beartype  # noqa: F401
speedups.install()

# A machine that is lent for an hour has PyTorch and pytest, and not all of what the other tests need.
HAS_HYPOTHESIS = find_spec("hypothesis") is not None
IS_BARE = not (HAS_HYPOTHESIS and all(map(find_spec, ("beartype", "cyclopts", "gemmi", "pyhmmer"))))
NOT_ON_A_BARE_MACHINE = [
    Path(__file__).parent / name for name in ("examples", "apps/predict", "apps/serve", "report", "training")
]
if HAS_HYPOTHESIS:
    from hypothesis import settings

    # pytest --hypothesis-profile=thorough: many more inputs for property tests that do not set their own number.
    settings.register_profile("thorough", max_examples=10_000, deadline=None)
    # A busy machine is no failure.
    settings.register_profile("default", max_examples=50, deadline=None)
    settings.load_profile("default")

SHARED = Path(os.environ.get("HELIXFOLD_SHARED", Path(__file__).parents[2] / "shared"))


@pytest.fixture(scope="session")
def reference() -> Path:
    """Arrays computed by DeepMind's program."""
    return _folder("reference")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Real structures, alignments and sequences."""
    return _folder("data")


@pytest.fixture
def site_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration file of a site, which a test may write; there is no other one."""
    path = tmp_path / "etc" / "helixfold.toml"
    path.parent.mkdir()
    monkeypatch.setattr("data_pipeline.io.site_configuration.SITE_FILE", path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    monkeypatch.delenv("HELIXFOLD_CONFIG")
    return path


@pytest.fixture
def without_remedies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors about memory do not search for what would fit, which takes seconds."""
    monkeypatch.setattr(
        "helixfold.planning.estimate.PredictionEstimate._remedies", lambda _: iter(["at most 9 residues"])
    )


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """No plots of a target, which take most of the time of a small one."""
    monkeypatch.setattr("helixfold.apps.predict.postprocess.write_plots", lambda *_: None)
    monkeypatch.setattr("helixfold.apps.predict.lot.write_alignment", lambda *_: None)
    monkeypatch.setattr("helixfold.apps.predict.lot.write_coverage", lambda *_: None)


def pytest_configure(config: pytest.Config) -> None:
    """Let modules of different folders have one name, whatever the options are."""
    config.option.importmode = "importlib"
    if config.option.markexpr == "integration":
        speedups.leave_shapes_unchecked()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """On a bare machine, leave out the folders whose fixtures need packages that are not there."""
    return True if IS_BARE and collection_path in NOT_ON_A_BARE_MACHINE else None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """On a bare machine, leave out the modules whose packages are not there."""
    report = yield
    missing = re.search(r"ModuleNotFoundError: No module named '(\w+)", str(report.longrepr))
    if IS_BARE and report.outcome == "failed" and missing and not find_spec(missing[1]):
        report.outcome = "skipped"
        report.longrepr = (report.nodeid, 0, f"Skipped: {missing[1]} is not installed")
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are processors for this process: some tests wait for time to pass, or for other processes."""
    from data_pipeline.io.processors import available_processors  # noqa: PLC0415  imported once shapes are checked

    return available_processors() + 1


@pytest.fixture(scope="module")
def operators_on_small_tensors() -> Iterator[None]:
    """Operators compute the gradients of small tensors, too, which plain PyTorch computes on a CPU otherwise."""
    from helixfold.ops import sizes  # noqa: PLC0415  imported once shapes are checked

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sizes, "SMALL_STREAM", 0)
        yield


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def _folder(name: str) -> Path:
    folder = SHARED / name
    if not folder.is_dir():
        pytest.skip(f"needs {name} arrays in {SHARED} (set HELIXFOLD_SHARED to where they are)")
    return folder
