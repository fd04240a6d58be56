"""`helixfold predict` and `helixfold features` take complexes, from a FASTA to files, and go on where they ended."""

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import gemmi
import numpy as np
import pytest

from data_pipeline.features.complexes.alignments import EntityAlignment
from data_pipeline.features.complexes.complex_input import ComplexInput
from data_pipeline.features.complexes.feature_file import load_features
from data_pipeline.features.complexes.feature_set import ComplexFeatureSet, TargetFeatures
from data_pipeline.features.complexes.pipeline import target_features
from data_pipeline.features.complexes.target import ComplexTarget
from data_pipeline.features.complexes.target_files import read_targets
from data_pipeline.io.errors import InputError
from data_pipeline.parse.a3m import parse_a3m
from data_pipeline.pipeline import Target
from data_pipeline.search.jackhmmer import InProcessJackhmmer
from helixfold.cli.main import main
from helixfold.results.prediction import read_finished
from tests.apps.predict.conftest import Runs
from tests.support.complex_targets import ROWS

pytestmark = pytest.mark.usefixtures("quick")
A, B = ROWS
MULTIMER = ("--models", "tiny_multimer")


@pytest.fixture
def fasta(tmp_path: Path) -> Path:
    path = tmp_path / "complexes.fasta"
    path.write_text(f">hetero chain_ids=H:L\n{A}:{B}\n>homo\n{A}*2\n>single\n{A}\n")
    return path


@pytest.fixture
def alignments(tmp_path: Path) -> Path:
    """A directory with rows of two species for each chain of `hetero`, of which one is in both."""
    directory = tmp_path / "msas"
    directory.mkdir()
    for chain, sequence in (("H", A), ("L", B)):
        names = ("sp|P12345|ONE_HUMAN/1-8", f"tr|A0A0A{chain}0001|TWO_{chain}")
        rows = "".join(f">{name}\n{row}\n" for name, row in zip(names, ROWS[sequence][1:], strict=False))
        (directory / f"hetero_{chain}.a3m").write_text(f">{chain}\n{sequence}\n{rows}")
    return directory


def features_of(path: Path) -> ComplexFeatureSet:
    features = load_features(path)
    assert isinstance(features, ComplexFeatureSet)
    return features


def require_equal(one: TargetFeatures, other: TargetFeatures) -> None:
    assert isinstance(one, ComplexFeatureSet)
    assert isinstance(other, ComplexFeatureSet)
    for part in ("multimer", "residue_gap"):
        for field in fields(getattr(other, part)):
            np.testing.assert_equal(*(getattr(getattr(each, part), field.name) for each in (one, other)))


def chains_in(path: Path) -> dict[str, str]:
    structure = gemmi.read_structure(str(path))
    structure.setup_entities()
    return {chain.name: gemmi.one_letter_code([residue.name for residue in chain]) for chain in structure[0]}


def test_complexes_are_folded_and_found_finished(fasta: Path, runs: Runs) -> None:
    assert sorted(runs(fasta, *MULTIMER)) == ["tiny_multimer"] * 3
    assert runs.code == 0
    assert "COMPLEX BY RESIDUE GAP" not in runs.err
    for kind in ("cif", "pdb"):
        assert chains_in(runs.output / f"hetero/ranked_0.{kind}") == {"H": A, "L": B}
        assert chains_in(runs.output / f"homo/ranked_0.{kind}") == {"A": A, "B": A}
    for name in ("hetero", "homo"):
        found = read_finished(runs.output / name, "tiny_multimer")
        assert found is not None
        assert found.iptm is not None
        assert found.ptm is not None
        assert found.ranking_confidence == pytest.approx(0.8 * found.iptm + 0.2 * found.ptm, abs=1e-3)
        assert json.loads((runs.output / name / "timings.json").read_text())["chains"] == 2
    assert runs(fasta, *MULTIMER) == []
    assert runs.out.count("finished before, skipped") == 3
    assert "hetero: mean pLDDT" not in runs.out
    (runs.output / "hetero/unrelaxed_tiny_multimer.cif").unlink()
    assert runs(fasta, *MULTIMER) == ["tiny_multimer"]


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ("--pair-mode unpaired", "pair_mode unpaired_paired, now unpaired"),
        ("--chain-ids X Y", "other chain IDs"),
        ("--msa {msas}", "other alignments"),
    ],
)
def test_a_complex_made_with_other_settings_is_kept_and_its_user_told(
    options: str, difference: str, alignments: Path, runs: Runs, tmp_path: Path
) -> None:
    (tmp_path / "one.fasta").write_text(f">hetero chain_ids=H:L\n{A}:{B}\n")
    assert runs(tmp_path / "one.fasta", *MULTIMER) == ["tiny_multimer"]
    assert runs(tmp_path / "one.fasta", *MULTIMER, *options.format(msas=alignments).split()) == []
    assert f"finished before with other settings ({difference})" in runs.err


def test_features_are_made_here_and_folded_there(fasta: Path, alignments: Path, runs: Runs, tmp_path: Path) -> None:
    made = tmp_path / "features"
    (tmp_path / "two.fasta").write_text(fasta.read_text().partition(">single")[0])
    (alignments / "homo_A.a3m").write_text(f">q\n{A}\n>r\n{ROWS[A][1]}\n")
    given = [str(tmp_path / "two.fasta"), "--msa", str(alignments)]
    assert main(["features", *given, "--output", str(made)]) == 0
    told = runs.capsys.readouterr().out
    assert "hetero: 4 rows in the alignment, 1 of them paired; chain H (2 from hetero_H.a3m); chain L (" in told
    hetero = features_of(made / "hetero/features.npz")
    assert hetero.multimer.chain_names == ("H", "L")
    assert features_of(made / "homo/features.npz").multimer.sym_id.tolist() == [1] * 8 + [2] * 8
    runs("--features", made, *MULTIMER)
    first = (runs.output / "hetero/ranked_0.cif").read_bytes()
    require_equal(features_of(runs.output / "hetero/features.npz"), hetero)
    # The same as in one stage.
    output = tmp_path / "at_once"
    assert main(["predict", *given, *MULTIMER, "--num-recycles", "0", "--output", str(output)]) == 0
    both = (each / "hetero/ranked_0.cif" for each in (runs.output, output))
    one, other = (gemmi.read_structure(str(path)) for path in both)
    assert [atom.atom.pos.tolist() for atom in one[0].all()] == [atom.atom.pos.tolist() for atom in other[0].all()]
    assert runs("--features", made, *MULTIMER) == []
    assert (runs.output / "hetero/ranked_0.cif").read_bytes() == first


def test_a_dry_run_forecasts_complexes_and_writes_nothing(fasta: Path, runs: Runs) -> None:
    assert runs(fasta, *MULTIMER, "--dry-run") == []
    lines = {line.split()[0]: line.split() for line in runs.out.splitlines() if "tiny_multimer" in line}
    assert lines["hetero"][2:6] == ["16", "1", "1", "4"]
    assert lines["single"][2] == "8"
    assert "3 of 3 targets to fold" in runs.out
    assert not runs.output.exists()


def test_the_demonstration_model_folds_a_dimer_and_says_what_that_is_worth(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "one.fasta").write_text(f">hetero\n{A}:{B}\n")
    assert runs(tmp_path / "one.fasta", "--models", "small") == ["small"]
    assert "COMPLEX BY RESIDUE GAP: made by 'small'" in runs.err
    for name in ("settings.json", "confidence_small.json"):
        notes = json.loads((runs.output / "hetero" / name).read_text())["notes"]
        assert [note.split(":")[0] for note in notes] == ["DEMONSTRATION", "COMPLEX BY RESIDUE GAP"]
    assert chains_in(runs.output / "hetero/ranked_0.pdb") == {"A": A, "B": B}


def test_a_complex_that_fails_stops_no_other(fasta: Path, runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "bad.fasta").write_text(f">bad\n{A}:{B}\n>good\n{A}:{B}\n")
    assert runs(tmp_path / "bad.fasta", *MULTIMER) == ["tiny_multimer", "tiny_multimer"]
    assert runs.code == 1
    assert list(json.loads((runs.output / "failures.json").read_text())) == ["bad"]
    assert read_finished(runs.output / "good", "tiny_multimer") is not None


def test_pairs_without_species_are_one_sentence(fasta: Path, runs: Runs) -> None:
    assert sorted(runs(fasta, *MULTIMER, "--pair-mode", "paired")) == ["tiny_multimer", "tiny_multimer"]
    (failure,) = json.loads((runs.output / "failures.json").read_text()).values()
    assert "no row to be paired of complex 'hetero' has a species in its name" in failure
    assert "\n" not in failure


@pytest.mark.usefixtures("without_remedies")
def test_a_complex_too_large_for_memory_fails_alone(fasta: Path, runs: Runs) -> None:
    assert runs(fasta, *MULTIMER, "--memory", "1MiB") == []
    assert runs.code == 1
    failures = json.loads((runs.output / "failures.json").read_text())
    assert all("NotEnoughMemoryError" in failure for failure in failures.values())
    assert "\n" not in failures["hetero"]


def test_models_that_cannot_be_ranked_together_are_refused(fasta: Path, tmp_path: Path) -> None:
    from helixfold.apps.predict.jobs import Job  # noqa: PLC0415
    from helixfold.apps.predict.run import _check_models  # noqa: PLC0415 (only here)
    from helixfold.model.presets import preset  # noqa: PLC0415

    jobs = [Job(target=target) for target in read_targets([fasta])]
    _check_models(jobs, [preset("model_1"), preset("model_2")])
    _check_models(jobs[2:], [preset("model_1"), preset("model_1_ptm")])
    with pytest.raises(InputError, match="model_1 cannot be ranked with the other models"):
        _check_models(jobs, [preset("model_1"), preset("model_1_ptm")])


INPUTS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "x.fasta": (f">x chain_ids=H:L\n{A}:{B}\n", (A, B), ("H", "L")),
    "y.fasta": (f">y\n{A}*2:{B}\n", (A, A, B), ("A", "B", "C")),
    "x.csv": (f"id,sequence,chain_ids\nx,{A}:{B},H:L\n", (A, B), ("H", "L")),
    "x.tsv": (f"id\tsequence\nx\t{A}*2\n", (A, A), ("A", "B")),
    "x.a3m": (f"#8,8\t2,1\n>101\t102\n{A}{B}\n", (A, A, B), ("A", "B", "C")),
}


@pytest.mark.parametrize("name", INPUTS)
def test_complexes_are_read_from_every_kind_of_file(name: str, tmp_path: Path) -> None:
    text, sequences, ids = INPUTS[name]
    (tmp_path / name).write_text(text)
    (found,) = read_targets([tmp_path / name])
    assert isinstance(found, ComplexInput)
    assert (found.name, found.target.sequences, found.target.chain_ids) == (name[0], sequences, ids)
    (named,) = read_targets([tmp_path / name], chain_ids=("X", "Y", "Z")[: len(ids)])
    assert isinstance(named, ComplexInput)
    assert named.target.chain_ids == ("X", "Y", "Z")[: len(ids)]


def test_typed_sequences_and_records_are_complexes_too(tmp_path: Path) -> None:
    (typed,) = read_targets([Path("MKTAYIAKQRQ:GSHMAEQL*2")])
    assert isinstance(typed, ComplexInput)
    assert typed.target.sequences == ("MKTAYIAKQRQ", B, B)
    path = tmp_path / "dimer.fasta"
    path.write_text(f">one\n{A}\n>two\n{B}\n")
    (found,) = read_targets([path], records_as_chains=True, chain_ids=("H", "L"))
    assert isinstance(found, ComplexInput)
    assert found.target == ComplexTarget.of("dimer", (A, B), ("H", "L"))
    (single,) = read_targets([Path("MKTAYIAKQRQ*1")])
    assert isinstance(single, Target)
    path.write_text(f">one\n{A}\n")
    (alone,) = read_targets([path], records_as_chains=True)
    assert alone == Target(name="dimer", sequence=A)
    (named,) = read_targets([path], chain_ids=("H",))
    assert isinstance(named, ComplexInput)


PAIRED = {"H": f">q\n{A}\n>x\n{ROWS[A][1]}\n>y\n{ROWS[A][2]}\n", "L": f">q\n{B}\n>x\n{ROWS[B][1]}\n>y\n--------\n"}
UNPAIRED = {"H": f">q\n{A}\n>z\n{ROWS[A][3]}\n", "L": f">q\n{B}\n"}


def by_name(directory: Path) -> list[str]:
    for chain in "HL":
        (directory / f"hetero_{chain}.a3m").write_text(UNPAIRED[chain])
        (directory / f"hetero_{chain}.paired.a3m").write_text(PAIRED[chain])
    return [str(directory)]


def by_directory(directory: Path) -> list[str]:
    (directory / "hetero").mkdir()
    for chain in "HL":
        (directory / f"hetero/{chain}.a3m").write_text(UNPAIRED[chain])
        (directory / f"hetero/{chain}.paired.a3m").write_text(PAIRED[chain])
    return [str(directory)]


def as_files(directory: Path) -> list[str]:
    by_name(directory)
    return [str(path) for path in sorted(directory.iterdir())]


def as_one_file(directory: Path) -> list[str]:
    rows = [f">101\t102\n{A}{B}", f">x\n{ROWS[A][1]}{ROWS[B][1]}", f">101\n{A}{'-' * 8}", f">z\n{ROWS[A][3]}{'-' * 8}"]
    # Rows of one chain alone are never paired in this format.
    (directory / "hetero.a3m").write_text("\n".join(["#8,8\t1,1", *rows, f">102\n{'-' * 8}{B}", ""]))
    return [str(directory / "hetero.a3m")]


@pytest.mark.parametrize("lay_out", [by_name, by_directory, as_files, as_one_file])
@pytest.mark.parametrize("mode", ["unpaired_paired", "paired", "unpaired"])
def test_alignments_by_chain_give_the_features_that_they_should(
    lay_out: Callable[[Path], list[str]], mode: Any, tmp_path: Path
) -> None:
    directory = tmp_path / "msas"
    directory.mkdir()
    files = lay_out(directory)
    (tmp_path / "x.fasta").write_text(f">hetero chain_ids=H:L\n{A}:{B}\n")
    given = [str(tmp_path / "x.fasta"), "--msa", *files, "--pair-mode", mode, "--output", str(tmp_path / "out")]
    assert main(["features", *given]) == 0
    # In one file, a row of gaps beside a chain's row says that this row is not paired.
    kept = {chain: text.partition(">y")[0] if lay_out is as_one_file else text for chain, text in PAIRED.items()}
    unpaired, paired = ({chain: parse_a3m(text.encode()) for chain, text in each.items()} for each in (UNPAIRED, kept))
    entities = [
        EntityAlignment(sequence=sequence, unpaired=unpaired[chain], paired=paired[chain])
        for chain, sequence in (("H", A), ("L", B))
    ]
    expected = ComplexFeatureSet.of(ComplexTarget.of("hetero", (A, B), ("H", "L")), entities, mode)
    require_equal(features_of(tmp_path / "out/hetero/features.npz"), expected)


def test_a_complex_a3m_without_its_first_line_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = map(Path, as_one_file(tmp_path))
    for text, count in ((path.read_text(), 0), (path.read_text().partition("\n")[2], 1)):
        path.write_text(text)
        assert main(["features", str(path), "--output", str(tmp_path / f"out{count}")]) == 0
        note = f"{path} looks like an alignment of 2 chains, but is used for one; for a complex, pass it as the input, "
        assert capsys.readouterr().out.count(f"{note}with the first line #8,8<TAB>1,1") == count
    with pytest.warns(UserWarning, match="looks like an alignment of 2 chains"):
        target_features(*read_targets([path]))


def test_each_sequence_is_searched_once_and_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    searched: list[str] = []
    search_many = InProcessJackhmmer.search_many

    def watched(self: Any, sequences: Any) -> Any:
        searched.extend(sequences)
        return search_many(self, sequences)

    monkeypatch.setattr(InProcessJackhmmer, "search_many", watched)
    one, other = "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQ", "GSEFKVTVCFGKTRVVVPCGDGRMKVFSLIEQAVTRYKKALAKDPNYW"
    (tmp_path / "x.fasta").write_text(f">x\n{one}:{other}:{one}\n>y\n{other}*2\n")
    names = ("tr|A0A0A00001|A0A0A00001_HUMAN", "tr|A0A0A00002|A0A0A00002_HUMAN")
    hits = zip(names, (one, other), strict=True)
    database = "".join(f">{name}\n{sequence[:-1]}A\n" for name, sequence in hits)
    (tmp_path / "database.fasta").write_text(database)
    given = [
        str(tmp_path / "x.fasta"),
        "--database",
        str(tmp_path / "database.fasta"),
        "--output",
        str(tmp_path / "out"),
    ]
    assert main(["features", *given]) == 0
    assert sorted(searched) == sorted([one, other, other])
    assert "x: 2 rows in the alignment, 1 of them paired" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "out/x/msas").iterdir()) == ["A", "B"]
    assert [path.name for path in (tmp_path / "out/y/msas").iterdir()] == ["A"]
    made = (tmp_path / "out/x/features.npz").read_bytes()
    searched.clear()
    assert main(["features", *given]) == 0
    assert searched == []
    assert (tmp_path / "out/x/features.npz").read_bytes() == made
