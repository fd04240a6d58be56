"""A release has one version everywhere, readable workflows, and container recipes that say what was not tried."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import helixfold
from tests.docs.test_names import exists

ROOT = Path(__file__).parents[1]
CHANGELOG = ROOT / "CHANGELOG.md"
MIGRATION = ROOT / "docs" / "migration.md"
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest, date = re.findall(r"^## \[([\d.]+)\] - (\S+)$", CHANGELOG.read_text(), re.MULTILINE)[0]
    assert {project["version"], citation["version"], newest} == {helixfold.__version__}
    assert str(citation["date-released"]) == date
    assert citation["license"] == project["license"]


def test_new_names_in_the_migration_tables_exist() -> None:
    new = r"((?:helixfold|data_pipeline)(?:\.\w+)+)"
    names = re.findall(rf"^\| `[^`]+`.* \| `{new}`", MIGRATION.read_text(), re.MULTILINE)
    names += re.findall(rf"\t{new}", MIGRATION.with_name("renamed.tsv").read_text())
    assert len(names) > 200
    assert [name for name in names if not exists(name)] == []


def steps(workflow: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(workflow.read_text())["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_scripts_that_exist(workflow: Path) -> None:
    commands = " ".join(step.get("run", "") for step in steps(workflow))
    scripts = re.findall(r"bash (\S+)", commands)
    assert scripts
    assert all((ROOT / script).is_file() for script in scripts)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_to_a_major_version(workflow: Path) -> None:
    for step in steps(workflow):
        assert re.fullmatch(r"[\w-]+/[\w-]+@(release/)?v\d+", step.get("uses", "an/action@v1"))


def test_a_release_is_published_only_after_its_wheel_was_tried() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    assert jobs["publish"]["needs"] == "build"
    assert "bash .ci/wheel" in [step.get("run") for step in jobs["build"]["steps"]]


@pytest.mark.parametrize("name", ["Dockerfile", "helixfold.def"])
def test_container_recipes_run_the_script_that_is_tested_and_say_what_is_not(name: str) -> None:
    recipe = (ROOT / "containers" / name).read_text()
    assert "has not been built" in recipe
    assert "install.sh" in recipe
    assert "/install.sh" in (ROOT / ".ci/container").read_text()
