"""Record the interfaces that users rely on, and compare them with the baseline in tests/inventory.

The inventory has five parts, each a file of the baseline: the options of the command line (options.json), the service
(service.json), the Python names that pages, notebooks and examples import (names.json), extras, environment variables
and keys of files (formats.json), and the results of small runs and bad inputs (runs.json, bad_inputs.json).

    python scripts/inventory.py --check              exit code 1 with one line for each difference
    python scripts/inventory.py --check --only runs  one part, or several
    python scripts/inventory.py --write              renew the baseline
    python scripts/inventory.py --losses             break ten interfaces in a copy, and check that each is reported

An interface that is removed or changed on purpose needs an entry in tests/inventory/removed.toml until the baseline is
renewed. Additions are printed but do not fail the check.
"""

import argparse
import fnmatch
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BASELINE = ROOT / "tests/inventory"
REMOVED = BASELINE / "removed.toml"
# Relative and absolute tolerance of numbers, because processors round differently.
RELATIVE, ABSOLUTE = 0.03, 0.03
# A parameter in the text of a signature, such as `rows`, `*, seed=0` or `**more`.
_PARAMETER = re.compile(r"""(?:\*, )?\*{0,2}\w+(?:=(?:'[^']*'|"[^"]*"|[^,]*))?""")
_OTHER_OUTPUTS = ("scan/", "scores/", "relaxed/", "evaluation/", "bench/", "many/", "tuned/")
# Separates the name of a file from the name of an item in its digest.
_BELOW = " > "


def main(words: Sequence[str] | None = None) -> int:
    """Check or write the baseline, and return the exit code."""
    parser = argparse.ArgumentParser(
        description="Record the interfaces that users rely on, and compare them with the baseline."
    )
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="compare with the baseline")
    action.add_argument("--write", action="store_true", help="renew the baseline")
    action.add_argument("--losses", action="store_true", help="check that deliberate losses are reported")
    parser.add_argument("--only", nargs="+", metavar="PART", choices=PARTS, default=[*PARTS], help="only these parts")
    parser.add_argument("--runs", nargs="+", metavar="NAME", help="only these runs of the part `runs`")
    parser.add_argument(
        "--printed", type=Path, metavar="DIR", help="write the output of the commands to this directory"
    )
    options = parser.parse_args(words)
    if options.losses:
        return report_losses()
    differences, additions = [], []
    for part, current in collect(options.only, options.runs, options.printed):
        expected = read_part(part)
        if part == "runs":
            differences += unknown_files(current)
        if options.write:
            other_runs = expected if options.runs and part == "runs" else {}
            (BASELINE / f"{part}.json").write_text(to_text({**other_runs, **current}))
            continue
        if options.runs and part == "runs":
            expected = {name: value for name, value in expected.items() if name in current}
        lost, new = compare({part: expected}, {part: current})
        differences += lost
        additions += new
    if options.write:
        print("\n".join(f"{name}: {what}" for name, what in differences))
        return int(bool(differences))
    left, unused = without_removals(differences, read_removals())
    is_whole = options.only == [*PARTS] and not options.runs
    for name in additions:
        print(f"added: {name}")
    for name, what in left:
        print(f"{name}: {what}")
    if is_whole:
        for pattern in unused:
            print(f"removed.toml: {pattern!r} matches no difference")
    times = os.times()
    seconds = times.user + times.system + times.children_user + times.children_system
    print(f"{len(left)} differences, {len(additions)} additions; {seconds:.0f} s of CPU time", file=sys.stderr)
    from tests.inventory.interface import test_counts  # noqa: PLC0415

    print(f"tests: {json.dumps(test_counts())}", file=sys.stderr)
    return int(bool(left or (is_whole and unused)))


def collect(
    parts: Sequence[str], runs: Sequence[str] | None = None, printed: Path | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the parts of the inventory, each of which maps names to their records.

    The CPU time and the exit codes of each run are printed to stderr.
    """
    sys.path.insert(0, str(ROOT))
    from tests.inventory import commands  # noqa: PLC0415

    commands.import_everything()
    with commands.folders() as root:
        for part in parts:
            yield part, _runs(root, runs) if part == "runs" else PARTS[part](root)
        if printed is not None:
            printed.mkdir(parents=True, exist_ok=True)
            for path in (root / "home").glob("*.printed"):
                shutil.copy(path, printed)


def _runs(root: Path, names: Sequence[str] | None = None) -> dict[str, Any]:
    from tests.inventory.commands import carry_out  # noqa: PLC0415
    from tests.inventory.runs import RUNS  # noqa: PLC0415

    selected = {run.name for run in RUNS} if names is None else set(names)
    for run in reversed(RUNS):
        if run.name in selected and run.after is not None:
            selected.add(run.after)
    results = {}
    for run in RUNS:
        if run.name in selected:
            before = os.times()
            results[run.name] = carry_out(run, root)
            after = os.times()
            seconds = after.children_user + after.children_system - before.children_user - before.children_system
            print(f"{run.name}: exit codes {results[run.name]['exit codes']}, {seconds:.1f} s", file=sys.stderr)
    return results


def unknown_files(runs: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return files in the output directories of runs that the table of files does not list.

    Directories with a lock are output directories. Commands other than `predict` and `design` write other files.
    """
    from helixfold.results.file_table import LOCK, kind_of  # noqa: PLC0415

    unknown = []
    for run, files in runs.items():
        outputs = [name.removesuffix(LOCK.name()) for name in files if Path(name).name == LOCK.name()]
        for name in files:
            output = next((each for each in outputs if name.startswith(each) and each not in _OTHER_OUTPUTS), None)
            if output is None:
                continue
            first, *inner = name.removeprefix(output).split("/")
            places = ("designs", "output") if run.startswith("design ") else ("output",)
            if inner and not kind_of(f"{first}/", "output"):
                first, *inner = inner
                places = ("design",) if run.startswith("design ") else ("target",)
            if not any(kind_of(f"{first}/" if inner else first, place) for place in places):
                unknown.append((f"runs{_BELOW}{run}{_BELOW}{name}", "is not in helixfold/results/file_table.py"))
    return unknown


def _bad_inputs(root: Path) -> dict[str, Any]:
    from tests.inventory.bad_inputs import BAD_INPUTS, meet  # noqa: PLC0415

    return {name: meet(name, root) for name in BAD_INPUTS}


def _interface(name: str, *, needs_folder: bool = False) -> Callable[[Path], dict[str, Any]]:
    def collected(root: Path) -> dict[str, Any]:
        from tests.inventory import interface  # noqa: PLC0415

        function = getattr(interface, name)
        return function(root) if needs_folder else function()

    return collected


PARTS: Mapping[str, Callable[[Path], dict[str, Any]]] = {
    "options": _interface("options"),
    "service": _interface("service", needs_folder=True),
    "names": _interface("python_names"),
    "formats": _interface("formats", needs_folder=True),
    "runs": _runs,
    "bad_inputs": _bad_inputs,
}


def read_part(part: str) -> dict[str, Any]:
    """Return a part of the baseline, or an empty dict if its file is missing."""
    path = BASELINE / f"{part}.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def read_removals() -> dict[str, Mapping[str, str]]:
    """Return the entries of removed.toml by name; raise SystemExit for an incomplete entry."""
    entries = tomllib.loads(REMOVED.read_text()).get("removed", []) if REMOVED.is_file() else []
    for entry in entries:
        if missing := sorted({"name", "instead", "changelog"} - entry.keys()):
            raise SystemExit(f"removed.toml: {entry.get('name', 'an entry')!r} lacks {', '.join(missing)}")
    return {entry["name"]: entry for entry in entries}


def compare(expected: Any, current: Any, name: str = "") -> tuple[list[tuple[str, str]], list[str]]:
    """Return the differences, as pairs of a name and a sentence, and the names of additions."""
    if isinstance(expected, dict) and isinstance(current, dict):
        differences, additions = [], []
        for key in expected.keys() | current.keys():
            below = f"{name}{_BELOW}{key}" if name else key
            if key not in current:
                differences.append((below, "is missing"))
            elif key not in expected:
                additions.append(below)
            else:
                lost, new = compare(expected[key], current[key], below)
                differences += lost
                additions += new
        return sorted(differences), sorted(additions)
    if _is_equal(expected, current):
        return [], []
    added: list[str] = []
    if isinstance(expected, str) and isinstance(current, str):
        added = _added_parameters(expected, current)
    elif isinstance(expected, list) and isinstance(current, list):
        added = _added_words(expected, current)
    if added:
        return [], [f"{name}: {', '.join(added)}"]
    return [(name, f"was {_shortened(expected)}, is {_shortened(current)}")], []


def _added_parameters(expected: str, current: str) -> list[str]:
    """Return the parameters that a signature gained, or an empty list if existing calls may fail."""
    if not all(each.startswith("(") and each.endswith(")") for each in (expected, current)):
        return []
    before, after = (_PARAMETER.findall(each[1:-1]) for each in (expected, current))
    added = [each for each in after if each not in before]
    common = [each for each in after if each in before]
    # Positional parameters must keep their positions.
    first, now = ([each for each in parameters if not each.startswith("*, ")] for parameters in (before, after))
    is_safe = common == before and now[: len(first)] == first and all("=" in each for each in added)
    return added if is_safe else []


def _added_words(expected: list[Any], current: list[Any]) -> list[str]:
    """Return the words that a list gained, or an empty list if other words are missing or in another order."""
    if not all(isinstance(each, str) for each in (*expected, *current)):
        return []
    # Choices of an option are one text, separated by spaces or bars.
    before, after = ([word for each in texts for word in re.split("[ |]", each)] for texts in (expected, current))
    is_extended = [word for word in after if word in before] == before
    return [word for word in after if word not in before] if is_extended else []


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_equal, one, other))
    are_numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (one, other))
    if are_numbers and (isinstance(one, float) or isinstance(other, float)):
        return math.isclose(one, other, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    return type(one) is type(other) and one == other


def _shortened(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) < 300 else f"{text[:300]}..."


def without_removals(
    differences: Sequence[tuple[str, str]], removals: Mapping[str, object]
) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the differences that no entry of removed.toml explains, and the entries that explain no difference.

    An entry explains differences whose name equals or begins with its name; `*` matches any characters.
    """

    def explains(pattern: str, name: str) -> bool:
        return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]")) or name.startswith(f"{pattern}{_BELOW}")

    left = [(name, what) for name, what in differences if not any(explains(each, name) for each in removals)]
    unused = [each for each in removals if not any(explains(each, name) for name, _ in differences)]
    return left, unused


def report_losses() -> int:
    """Apply the losses of losses.toml to a copy of the project, and print which of them the check reports.

    Return the exit code: 1 if a loss is not reported.
    """
    losses = tomllib.loads((BASELINE / "losses.toml").read_text())["loss"]
    of_runs = [loss for loss in losses if loss["name"].startswith("runs")]
    others = [loss for loss in losses if loss not in of_runs]
    # Checked separately, because changed result files make the jobs of the service fail.
    lines = _check_with(of_runs, "runs", "--runs", "complex", "out of memory")
    lines += _check_with(others, "options", "service", "formats", "bad_inputs")
    code = 0
    for loss in losses:
        reported = next((line for line in lines if fnmatch.fnmatchcase(line, f"{loss['name']}*")), None)
        print(f"{loss['kind']}: {reported or 'NOT REPORTED'}")
        code = code or int(reported is None)
    return code


def _check_with(losses: Sequence[Mapping[str, str]], *parts: str) -> list[str]:
    """Apply losses to a copy of the project, and return the lines that a check of these parts prints."""
    with tempfile.TemporaryDirectory(prefix="losses_") as directory:
        copy = Path(directory) / "copy"
        shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(".*", "__pycache__", "build"))
        for loss in losses:
            path = copy / loss["file"]
            if (count := path.read_text().count(loss["old"])) != 1:
                raise SystemExit(f"{loss['file']}: {loss['old']!r} occurs {count} times")
            path.write_text(path.read_text().replace(loss["old"], loss["new"]))
        command = [sys.executable, str(copy / "scripts/inventory.py"), "--check", "--only", *parts]
        return subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False).stdout.splitlines()


def to_text(items: Mapping[str, Any]) -> str:
    """Return JSON with a line for each item and for each item of a nested dict."""
    return "{\n" + ",\n".join(_lines(items, " ")) + "\n}\n"


def _lines(items: Mapping[str, Any], indent: str) -> Iterator[str]:
    for name in sorted(items):
        value = items[name]
        key = json.dumps(name, ensure_ascii=False)
        if isinstance(value, dict) and len(indent) == 1:
            inner = ",\n".join(_lines(value, indent + " "))
            yield f"{indent}{key}: {{\n{inner}\n{indent}}}" if inner else f"{indent}{key}: {{}}"
        else:
            yield f"{indent}{key}: {json.dumps(value, ensure_ascii=False)}"


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # otherwise libraries print leaks at exit
