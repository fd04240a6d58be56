"""Where the tests find things that are not in the repository, and what they skip without them."""

import gc
import os
import re
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from data_pipeline.processors import available_processors
from helixfold.ops import sizes
from tests.support.interpreted_kernels import remember_language
from tests.support.repeated_checks import count_without_checks

# Kernels run in Triton's interpreter where nothing can compile them; that is settled when their modules are imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    if find_spec("triton"):
        remember_language()
    # oneDNN's products in a processor's tiles (AMX) multiply by zero what lies between the end of a row and the next,
    # and NaN stays NaN: memory that tests poison, behind the rows that kernels pack for products of a GPU.
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# With a GPU, Triton warns where this is not said, and the deterministic algorithms of poisoned memory need the other.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

# Processes that tests start would otherwise compile every module of the project again where bytecode is switched off.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

if find_spec("beartype"):
    # The first check would import it, and memory that is released meanwhile calls functions that are checked, too.
    import beartype  # noqa: F401
count_without_checks()
if find_spec("cyclopts"):
    from tests.support.remembered_options import remember_options

    remember_options()

# Test tensors are small: threads that wait for each other would take most of the time, in further processes too.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What tests write need not outlive the machine: to wait for disks would take a tenth of the time.
os.fsync = lambda _: None

# Nor shall plain PyTorch train in place of the operators because tensors are small. Processes that tests start do so.
sizes.SMALL_STREAM = 0

# A machine that is lent for an hour has PyTorch and pytest, and not all of what the other tests need.
HAS_HYPOTHESIS = find_spec("hypothesis") is not None
IS_BARE = not (HAS_HYPOTHESIS and all(map(find_spec, ("beartype", "cyclopts", "gemmi", "pyhmmer"))))
NOT_ON_A_BARE_MACHINE = [
    Path(__file__).parent / name for name in ("examples", "finetune", "predict", "report", "serve", "training")
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
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """No plots of a target, which take most of the time of a small one."""
    monkeypatch.setattr("helixfold.predict.postprocess.write_plots", lambda *_: None)
    monkeypatch.setattr("helixfold.predict.target.write_alignment", lambda *_: None)


def pytest_configure(config: pytest.Config) -> None:
    """Let modules of different folders have one name, whatever the options are."""
    config.option.importmode = "importlib"


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


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put modules with long tests first: one worker begins with them, others take the rest, and none ends alone.

    Most tests that start processes are then in one worker, which prepares for them once.
    """
    long = {item.path for item in items if any(map(item.get_closest_marker, ("distributed", "slow")))}
    items.sort(key=lambda item: item.path not in long)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are processors: some tests wait for time to pass, or for other processes."""
    return available_processors() + 1


@pytest.fixture(autouse=True, scope="module")
def imports_are_no_garbage() -> None:
    """Leave alone what is imported: looking through it takes a collection of garbage most of a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def _folder(name: str) -> Path:
    folder = SHARED / name
    if not folder.is_dir():
        pytest.skip(f"needs {name} arrays in {SHARED} (set HELIXFOLD_SHARED to where they are)")
    return folder
