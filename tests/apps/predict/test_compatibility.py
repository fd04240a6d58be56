"""Options of ColabFold and AlphaFold do here what they do there, or say what there is instead."""

from dataclasses import fields, replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import torch

from data_pipeline.io.errors import InputError
from helixfold.apps.options import PredictOptions
from helixfold.apps.predict.compat import CompatibilityOptions, foreign_options, resolve
from helixfold.cli.app import application
from helixfold.cli.main import main


def read(*arguments: object) -> PredictOptions:
    """Our options, by name, that `helixfold predict` takes these options for."""
    words = ["predict", "a.fasta", *map(str, arguments)]
    _, bound, _ = application(words).parse_args(words)
    options = replace(bound.arguments.get("options", PredictOptions()), inputs=bound.arguments["inputs"])
    return resolve(options, bound.arguments.get("others", CompatibilityOptions()))


FIVE = tuple(f"model_{number}" for number in range(1, 6))
SAME: dict[str, dict[str, Any]] = {
    "--num-recycle 7": {"num_recycles": 7},
    "--recycle-early-stop-tolerance 0.5": {"recycle_tolerance": 0.5},
    "--random-seed 3 --num-seeds 4": {"seed": 3, "num_seeds": 4},
    "--random_seed=3": {"seed": 3},
    "--num-models 2": {"models": ("model_1_ptm", "model_2_ptm")},
    "--model-type alphafold2": {"models": FIVE},
    "--model-type auto --num-models 1 --model-order 3,1": {"models": ("model_3_ptm",)},
    "--overwrite-existing-results --zip": {"overwrite": True, "zip": True},
    "--msa-mode mmseqs2_uniref --host-url http://here": {"msa_mode": "mmseqs2_uniref", "msa_server": "http://here"},
    "--custom-template-path own": {"templates": (Path("own"),)},
    "--max-msa 64:128": {"max_msa_rows": 64, "max_extra_rows": 128},
    "--max-seq 64 --max-extra-seq 128": {"max_msa_rows": 64, "max_extra_rows": 128},
    "--stop-at-score 85 --sort-queries-by none": {"stop_at_score": 85.0, "sort_queries_by": "none"},
    "--rank plddt": {},
    "--rank multimer": {},
    "--model-type alphafold2_multimer_v3 --num-models 1": {"models": ("model_1_multimer_v3",)},
    "--model-type alphafold2_multimer_v1 --model-order 5": {"models": ("model_5_multimer",)},
    "--model_preset=multimer --num_multimer_predictions_per_model=5": {"preset": "multimer", "num_seeds": 5},
    "--pair-mode paired --pair-strategy complete": {"pair_mode": "paired", "pair_strategy": "complete"},
    "--fasta_paths=b.fasta,c.fasta": {"inputs": (Path("a.fasta"), Path("b.fasta"), Path("c.fasta"))},
    "--output_dir=there": {"output": Path("there")},
    "--model_preset=monomer_casp14 --db_preset=reduced_dbs": {"preset": "monomer_casp14", "db_preset": "reduced_dbs"},
    "--model_names=model_1,model_2": {"models": ("model_1", "model_2")},
    "--nouse_gpu": {"device": "cpu"},
    "--use_gpu=true": {"device": "cuda"},
    "--gpu_devices=0,1": {"devices": "0,1"},
    "--benchmark=false --nouse_gpu_relax": {},
    "--use_precomputed_msas --output_dir=/": {"msa": (Path("/"),), "msa_mode": "files", "output": Path("/")},
    "--use_precomputed_msas=false": {},
    "--run_relax=false": {"models_to_relax": "none"},
    "--amber": {"models_to_relax": "all"},
    "--amber --num-relax 1": {"models_to_relax": "best"},
    "--num-relax 0 --amber": {"models_to_relax": "all"},
    "--num-relax 0": {"models_to_relax": "none"},
    "--models_to_relax=best --max_template_date=2020-05-14": {
        "models_to_relax": "best",
        "max_template_date": date(2020, 5, 14),
    },
    "--use-dropout": {"dropout": True},
    "--initial-guess own.pdb": {"initial_guess": Path("own.pdb")},
    "--save-single-representations --save-pair-representations": {"save_representations": ("single", "pair")},
    "--num_recycles 4": {"num_recycles": 4},
}


@pytest.mark.parametrize("given", SAME)
def test_an_option_that_means_the_same_is_ours(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    options, usual = vars(read(*given.split())), vars(read())
    assert {name: value for name, value in options.items() if value != usual[name]} == SAME[given]


REFUSED = {
    "--amber --models-to-relax none": "--amber: is the same as --models-to-relax, which has another value",
    "--max-msa 512": "must be max-seq:max-extra-seq, such as 512:1024, got '512'",
    "--model-type esmfold": "alphafold2_ptm, alphafold2, alphafold2_multimer_v3",
    "--num-models 6": "a number from 1 to 5",
    "--model-order 1,1": "different numbers of models",
    "--num-models 2 --preset quick": "cannot be combined with --models or --preset",
    "--rank ptm": "ranked by mean pLDDT",
    "--calc-extra-ptm": "are AlphaFold-Multimer's",
    "--jackhmmer_binary_path=/usr/bin/jackhmmer": "found on PATH",
    "--uniref90_database_path=/data/x": "with --databases",
    "--num-relax 5": "--models-to-relax best or all",
    "--relax-stiffness 5": "AlphaFold's protocol",
    "--benchmark=true": "helixfold benchmark",
    "--save-all": "--save-logits",
}


@pytest.mark.parametrize("given", REFUSED)
def test_what_cannot_be_followed_says_what_there_is_instead(given: str) -> None:
    with pytest.raises(InputError) as refused:
        read(*given.split())
    assert REFUSED[given] in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--num-recycle seven", "--num-recycle: must be a whole number from 0 to 1,000, got 'seven'"),
        ("--max-seq 0", "--max-seq: must be a whole number of at least 1, got '0'"),
        ("--model_preset=all", "--model_preset: must be one of monomer, monomer_ptm"),
    ],
)
def test_a_wrong_value_is_named_as_it_was_given(given: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "a.fasta", *given.split()]) == 2
    assert message in capsys.readouterr().err


def test_a_switch_without_effect_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    read("--disable-unified-memory", "--recompile-padding", "10")
    told = capsys.readouterr().err
    assert told.count("no effect") == told.count("\n") == 2


def test_alphafolds_data_directory_has_databases_and_parameters(tmp_path: Path) -> None:
    assert read(f"--data_dir={tmp_path}").databases == tmp_path
    (tmp_path / "params").mkdir()
    options = read(f"--data_dir={tmp_path}")
    assert (options.databases, options.weights) == (tmp_path, tmp_path / "params")
    assert read("--data", tmp_path).weights == tmp_path / "params"


def test_a_missing_data_directory_is_reported_with_its_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for options, message in (
        ("--data_dir=gone --db_preset=reduced_dbs", "--data_dir: gone: no such directory"),
        ("--databases=gone --db-preset=reduced_dbs", "gone: cannot be read: No such file or directory"),
    ):
        assert main(["predict", "a.fasta", *options.split()]) == 2
        assert capsys.readouterr().err == f"helixfold: error: {message}\n"


def test_all_of_them_are_listed_and_none_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--other-names"]) == 0
    listed = capsys.readouterr().out
    names = [name for options in foreign_options().values() for name in options]
    assert all(f"  {name} " in listed for name in names)
    assert main(["predict", "--help"]) == 0
    helped = capsys.readouterr().out
    ours = {f"--{each.name}" for each in fields(PredictOptions)}
    assert not [name for name in names if f"{name} " in helped.replace("-", "_") and name not in ours]


def test_a_switch_is_true_or_false(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "a.fasta", "--use_gpu=b.fasta"]) == 2
    assert "--use_gpu: must be one of true, false, got 'b.fasta'" in capsys.readouterr().err


def test_who_names_the_output_last_is_told_how(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fasta = tmp_path / "a.fasta"
    fasta.write_text(">x\nMKV\n")
    assert main(["predict", str(fasta), str(tmp_path / "results")]) == 2
    assert capsys.readouterr().err.endswith(f"to write results there, pass --output {tmp_path / 'results'}\n")


def test_options_are_read_where_pydantic_is_loaded() -> None:
    """The reader of options then checks all values by it."""
    pytest.importorskip("pydantic")
    assert read("--amber", "--num-recycle", 7).num_recycles == 7
