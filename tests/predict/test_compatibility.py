"""Options of ColabFold and AlphaFold do here what they do there, or say what there is instead."""

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch

from data_pipeline.errors import InputError
from helixfold.cli.main import _parser, main
from helixfold.predict import compatibility
from helixfold.predict.compatibility import OTHER_NAMES


def read(*arguments: object) -> argparse.Namespace:
    """What `helixfold predict` takes these options for."""
    given = ["predict", "a.fasta", *map(str, arguments)]
    options = _parser(given).parse_args(given)
    compatibility.resolve(options)
    # As in processes that are started with what was read.
    compatibility.resolve(options)
    return options


FIVE = [f"model_{number}" for number in range(1, 6)]
SAME: dict[str, dict[str, Any]] = {
    "--num-recycle 7": {"num_recycles": 7},
    "--recycle-early-stop-tolerance 0.5": {"recycle_tolerance": 0.5},
    "--random-seed 3 --num-seeds 4": {"seed": 3, "num_seeds": 4},
    "--random_seed=3": {"seed": 3},
    "--num-models 2": {"models": ["model_1_ptm", "model_2_ptm"]},
    "--model-type alphafold2": {"models": FIVE},
    "--model-type auto --num-models 1 --model-order 3,1": {"models": ["model_3_ptm"]},
    "--overwrite-existing-results --zip": {"overwrite": True, "zip": True},
    "--msa-mode mmseqs2_uniref --host-url http://here": {"msa_mode": "mmseqs2_uniref", "msa_server": "http://here"},
    "--custom-template-path own": {"templates": [Path("own")]},
    "--max-msa 64:128": {"max_msa_rows": 64, "max_extra_rows": 128},
    "--max-seq 64 --max-extra-seq 128": {"max_msa_rows": 64, "max_extra_rows": 128},
    "--stop-at-score 85 --sort-queries-by none": {"stop_at_score": 85.0, "sort_queries_by": "none"},
    "--rank plddt": {},
    "--fasta_paths=b.fasta,c.fasta": {"inputs": [Path("a.fasta"), Path("b.fasta"), Path("c.fasta")]},
    "--output_dir=there": {"output": Path("there")},
    "--model_preset=monomer_casp14 --db_preset=reduced_dbs": {"preset": "monomer_casp14", "db_preset": "reduced_dbs"},
    "--model_names=model_1,model_2": {"models": ["model_1", "model_2"]},
    "--nouse_gpu": {"device": "cpu"},
    "--use_gpu=true": {"device": "cuda"},
    "--gpu_devices=0,1": {"devices": "0,1"},
    "--benchmark=false --nouse_gpu_relax": {},
}


@pytest.mark.parametrize("given", SAME)
def test_an_option_that_means_the_same_is_ours(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    options, usual = vars(read(*given.split())), vars(read())
    changed = {name: value for name, value in options.items() if value != usual.get(name) and name[:6] != "other_"}
    assert changed == SAME[given]


REFUSED = {
    "--num-recycle 7 --num-recycles 3": "--num-recycle: is the same as --num-recycles, which is given with another",
    "--num-recycle seven": "--num-recycle: must be a whole number, got 'seven'",
    "--max-seq 0": "must be a whole number of at least 1",
    "--max-msa 512": "is max-seq:max-extra-seq, such as 512:1024, got '512'",
    "--model-type alphafold2_multimer_v3": "single chains are",
    "--model_preset=multimer": "complexes are not predicted",
    "--model_preset=all": "must be one of monomer, monomer_ptm",
    "--num-models 6": "a number from 1 to 5",
    "--model-order 1,1": "each once",
    "--num-models 2 --preset quick": "name models, as --models and --preset do",
    "--rank ptm": "ranked by their mean pLDDT",
    "--pair-mode paired": "complexes are not predicted",
    "--use-dropout": "--num-seeds draws other alignments",
    "--jackhmmer_binary_path=/usr/bin/jackhmmer": "found on PATH",
    "--uniref90_database_path=/data/x": "give it with --databases",
    "--num-relax 5": "--models-to-relax best or all",
    "--relax-stiffness 5": "AlphaFold's protocol",
    "--benchmark=true": "helixfold benchmark",
    "--save-all": "--save-logits",
    "--use_gpu=b.fasta": "is true or false, with a = before it",
}


@pytest.mark.parametrize("given", REFUSED)
def test_what_cannot_be_followed_says_what_there_is_instead(given: str) -> None:
    with pytest.raises(InputError) as refused:
        read(*given.split())
    assert REFUSED[given] in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_switch_without_effect_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    read("--disable-unified-memory", "--recompile-padding", "10")
    told = capsys.readouterr().err
    assert told.count("without effect") == told.count("\n") == 2


def test_alphafolds_data_directory_has_databases_and_parameters(tmp_path: Path) -> None:
    assert read(f"--data_dir={tmp_path}").databases == tmp_path
    (tmp_path / "params").mkdir()
    options = read(f"--data_dir={tmp_path}")
    assert (options.databases, options.weights) == (tmp_path, tmp_path / "params")
    assert read("--data", tmp_path).weights == tmp_path / "params"


def test_all_of_them_are_listed_and_none_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["predict", "--other-names"])
    listed = capsys.readouterr().out
    assert done.value.code == 0
    assert all(f"  {other.name} " in listed for other in OTHER_NAMES)
    with pytest.raises(SystemExit):
        main(["predict", "--help"])
    helped = capsys.readouterr().out
    assert not [other.name for other in OTHER_NAMES if f"{other.name} " in helped]


@pytest.mark.parametrize("columns", [80, 120])
def test_the_help_fits_the_screen(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit):
        main(["predict", "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) < columns
    assert [line for line in lines if line.startswith("  helixfold predict ")]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["a.fasta", "--num-recyles", "3"], "there is no option --num-recyles; did you mean --num-recycles?"),
        (["a.fasta", "--seed", "x"], "argument --seed: must be a whole number, got 'x'"),
        (["a.fasta", "--preset", "casp"], "choose from"),
        (["a.fasta", "--templates"], "--templates needs files or directories of structures; others come from"),
    ],
)
def test_a_wrong_option_is_one_line(given: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["predict", *given])
    told = capsys.readouterr().err
    assert done.value.code == 2
    assert message in told
    assert told.startswith("helixfold: error: ")
    assert told.count("\n") == 1


def test_files_may_stand_between_options() -> None:
    assert read("--seed", "3", "b.fasta").inputs == [Path("a.fasta"), Path("b.fasta")]


def test_who_names_the_output_last_is_told_how(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fasta = tmp_path / "a.fasta"
    fasta.write_text(">x\nMKV\n")
    assert main(["predict", str(fasta), str(tmp_path / "results")]) == 2
    assert f"to write results there, give --output {tmp_path / 'results'}" in capsys.readouterr().err
