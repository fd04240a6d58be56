"""The methods paragraph of a report says what was done, and cites what it rests on."""

import json
from dataclasses import asdict, replace
from pathlib import Path

from data_pipeline.search.database import SearchedDatabase
from helixfold.folding.provenance import Provenance, RecordedSearch
from helixfold.report.files import read_target
from helixfold.report.methods import Methods, methods_of
from tests.report.reported import write_target

UNIREF = SearchedDatabase(name="uniref90.fasta", version="2022_01")
PDB70 = SearchedDatabase(name="pdb70")
SERVER = SearchedDatabase(name="uniref30, environmental", url="https://x.org")
RECORD = Provenance(
    software={"helixfold": "9.8.7", "torch": "2.1+cpu"},
    device={},
    threads=1,
    executor="whole",
    backends={},
    searches=(
        RecordedSearch(purpose="alignment", search="jackhmmer 3.3.2 -N 1", databases=(UNIREF,)),
        RecordedSearch(purpose="templates", search="HHsearch 3.3.0", databases=(PDB70,)),
    ),
    templates=("1abc_A", "2xyz_B"),
)


def methods(directory: Path, record: Provenance | None = RECORD, **target: object) -> Methods | None:
    models = write_target(directory / "hairpin", models=("model_1_ptm", "model_2_ptm"), **target)  # type: ignore[arg-type]
    settings = {
        "options": {"num_recycles": 4},
        "predictions": {
            name: {"model": name, "seed": seed, "weights": "0", "standing": "trained"}
            for seed, name in enumerate(models)
        },
        "provenance": [] if record is None else [{"predictions": models, **asdict(record)}],
    }
    (directory / "hairpin/settings.json").write_text(json.dumps(settings))
    return methods_of(read_target(directory / "hairpin"))


def test_searches_models_and_templates_are_named_and_cited(tmp_path: Path) -> None:
    found = methods(tmp_path)
    assert found is not None
    assert "The structure of hairpin (" in found.text
    assert "was predicted by AlphaFold 2 [1], as implemented in helixfold 9.8.7 (PyTorch 2.1)." in found.text
    assert "2 predictions (model_1_ptm, model_2_ptm; 2 random seeds; at most 4 recycles)" in found.text
    assert "were made and ranked by mean pLDDT." in found.text
    assert "which has 40 sequences, was made by searches [2] of uniref90.fasta 2022_01." in found.text
    assert found.text.endswith("Templates were 1abc_A, 2xyz_B, found by searches [3] of pdb70.")
    assert [reference.split(" ")[0] for reference in found.references] == ["Jumper", "Eddy,", "Steinegger"]
    assert found.references[0] == (
        "Jumper et al. Highly accurate protein structure prediction with AlphaFold. Nature (2021), "
        "doi:10.1038/s41586-021-03819-2"
    )


def test_the_protein_and_the_rows_that_were_read_are_named(tmp_path: Path) -> None:
    methods(tmp_path)
    directory = tmp_path / "hairpin"
    for file, key, value in (
        ("settings.json", "description", "Src SH3 OS=Gallus gallus OX=9031"),
        ("timings.json", "models", {name: {"msa_rows_read": 30} for name in ("model_1_ptm", "model_2_ptm")}),
    ):
        content = json.loads((directory / file).read_text()) | {key: value}
        (directory / file).write_text(json.dumps(content))
    found = methods_of(read_target(directory))
    assert found is not None
    assert "The structure of hairpin (Src SH3, Gallus gallus; " in found.text
    assert "which has 40 sequences (of which at most 30 were used in each recycling iteration), was made" in found.text


def test_a_complex_by_a_model_of_single_chains_is_not_called_multimer(tmp_path: Path) -> None:
    found = methods(tmp_path, notes=["COMPLEX BY RESIDUE GAP: made by 'model_1_ptm', which was trained on ..."])
    assert found is not None
    assert "by AlphaFold 2 [1], which read the chains as one chain with gaps in the residue numbers," in found.text
    assert "Multimer" not in found.text


def test_a_server_is_cited_as_colabfolds_with_its_program(tmp_path: Path) -> None:
    search = RecordedSearch(purpose="alignment", search="server", databases=(SERVER,))
    found = methods(tmp_path, replace(RECORD, searches=(search,), templates=()))
    assert found is not None
    assert "was made by searches [2, 3] of uniref30, environmental. No template was used." in found.text
    assert [reference.split(" ")[0] for reference in found.references[1:]] == ["Mirdita", "Steinegger,"]


def test_given_alignments_and_single_sequences_are_no_searches(tmp_path: Path) -> None:
    record = replace(RECORD, searches=(), templates=())
    given, alone = methods(tmp_path / "given", record), methods(tmp_path / "alone", record, rows=1)
    assert given is not None
    assert alone is not None
    assert "The multiple sequence alignment, which has 40 sequences, was provided by the user." in given.text
    assert "Only the sequence was used" in alone.text


def test_parameters_that_are_not_deepminds_are_named(tmp_path: Path) -> None:
    note = ["DEMONSTRATION: made by 'small'"]
    found = methods(tmp_path, notes=note)
    assert found is not None
    assert "The parameters come from the small demonstration model" in found.text


def test_relaxed_predictions_are_counted(tmp_path: Path) -> None:
    methods(tmp_path)
    record = {"model_1_ptm": {"final_energy": 1.0}, "model_2_ptm": {"failed": "it exploded"}}
    (tmp_path / "hairpin/relax_metrics.json").write_text(json.dumps(record))
    target = read_target(tmp_path / "hairpin")
    found = methods_of(target)
    assert found is not None
    best = "The best prediction was relaxed" if target.best.name == "model_1_ptm" else "1 prediction was relaxed"
    assert f"{best} with OpenMM [4]." in found.text


def test_without_a_record_there_is_no_paragraph(tmp_path: Path) -> None:
    assert methods(tmp_path, None) is None
