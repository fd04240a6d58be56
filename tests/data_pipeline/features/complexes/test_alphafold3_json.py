"""Inputs of AlphaFold 3 and jobs of AlphaFold Server are targets; what is not a protein is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.features.complexes.complex_input import ComplexInput
from data_pipeline.features.complexes.target_files import read_targets
from data_pipeline.io.errors import InputError

FIRST, SECOND = "MKTAYIAKQRQISFVKSHFSRQ", "GSHMLEDPVDAFAQQIL"


def written(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


def job(*entities: dict[str, Any], name: str = "pair") -> dict[str, Any]:
    return {"name": name, "modelSeeds": [1], "sequences": [*entities], "dialect": "alphafold3", "version": 1}


def test_an_input_of_alphafold_3_is_a_complex_with_its_chain_ids(tmp_path: Path) -> None:
    proteins = {"protein": {"id": ["H", "L"], "sequence": FIRST}}, {"protein": {"id": "X", "sequence": SECOND}}
    (target,) = read_targets([written(tmp_path / "pair.json", job(*proteins))])
    assert isinstance(target, ComplexInput)
    assert (target.name, target.target.chain_ids) == ("pair", ("H", "L", "X"))
    assert target.target.sequences == (FIRST, FIRST, SECOND)


def test_jobs_of_the_server_are_targets(tmp_path: Path) -> None:
    jobs = [
        job({"proteinChain": {"sequence": FIRST, "count": 1}}, name="one"),
        job({"proteinChain": {"sequence": SECOND, "count": 2}}, name="two"),
    ]
    one, two = read_targets([written(tmp_path / "jobs.json", jobs)])
    assert (one.name, one.sequence) == ("one", FIRST)
    assert (two.name, two.sequence) == ("two", f"{SECOND}:{SECOND}")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (job({"protein": {"id": "A", "sequence": FIRST}}, {"ligand": {"ccdCodes": ["ATP"]}}), "has 'ligand'; only"),
        (job({"protein": {"id": "A", "sequence": FIRST, "unpairedMsa": ">a\nM"}}), "has unpairedMsa; pass its"),
        (job({"protein": {"id": "A", "sequence": FIRST, "modifications": [{"ptmType": "SEP"}]}}), "modified residues"),
        (job({"protein": {"id": "A", "sequence": "MK1"}}), "residue 3: '1' is not an amino acid"),
        (job({"protein": {"id": 5, "sequence": FIRST}}), "needs an id, a list of ids, or a count"),
        (job({"protein": {"id": "A", "sequence": FIRST}}, name="../x"), "could lead to another directory"),
        (job(), "a job has no list of sequences"),
        ([5], "a job has no list of sequences"),
        ({"a": 1}, "expected an input file of AlphaFold 3"),
    ],
)
def test_other_contents_are_refused(content: Any, problem: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"x\.json") as error:
        read_targets([written(tmp_path / "x.json", content)])
    assert problem in str(error.value)
