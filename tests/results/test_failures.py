"""Why targets failed, by the names of their directories."""

import json
from pathlib import Path

from data_pipeline.io.errors import InputError, InputProblems
from helixfold.results.failures import exit_code_for, failures_in, failures_of_input, write_failures


def test_invalid_targets_have_names_of_their_own(tmp_path: Path) -> None:
    problems = InputProblems()
    for record in ("sp|P1", "tr/Q8", "valid", "a", "A", "a", "..", "../x", "/etc/passwd", "", "x" * 300):
        problems.add(InputError.at("in.fasta", "wrong", record=record))
    problems.add(InputError("no record"), "dir/in.csv")
    found = failures_of_input(problems, {"valid"})
    assert [*found] == [
        *("sp_P1", "tr_Q8", "invalid input 3", "a", "A", "invalid input 6", "invalid input 7", "invalid input 8"),
        *("_etc_passwd", "invalid input 10", "invalid input 11", "dir_in.csv"),
    ]
    assert found["tr_Q8"] == "InputError: in.fasta, record 'tr/Q8': wrong"
    assert exit_code_for(found) == 1
    # Whoever reads the file makes paths of the names.
    assert all("/" not in name and ".." not in name and len(name) < 200 for name in found)
    write_failures(tmp_path, found)
    assert failures_in(tmp_path) == found == json.loads((tmp_path / "failures.json").read_text())
