"""One search gives many samples: from clusters of the alignment, masked columns and fewer rows, each resumed alone."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.features.complexes.feature_set import TargetFeatures
from data_pipeline.features.schema import Features
from data_pipeline.io.errors import InputError
from data_pipeline.pipeline import Target, prepare
from data_pipeline.residue_ranges import ResidueRange, read_depth, read_ranges, read_window
from data_pipeline.residues import GAP, RESTYPES, UNKNOWN
from data_pipeline.sampling.alignment_variants import AlignmentVariant, VariantSettings, masked_columns
from helixfold.cli.main import main
from helixfold.folding import planned
from helixfold.folding.recycling import FoldingTarget
from helixfold.model.presets import Preset
from tests.apps.predict.conftest import SEQUENCE, Runs
from tests.support.complex_targets import feature_set

pytestmark = pytest.mark.usefixtures("quick")
# Two families of three rows, which differ from each other in most columns, and a row of gaps.
ROWS = ["MKTAYIAKQR", "MKTAYIAKQK", "MKTAYIARQR", "MRTAYIAKQR", "GSHWLPWDCF", "GSHWLPWDCY", "GSHWLPWECF", "MK--------"]
CLUSTERS = ("--cluster-msa", "--cluster-eps", 2.5)


@pytest.fixture
def a3m(tmp_path: Path) -> Path:
    path = tmp_path / "one.a3m"
    path.write_text("".join(f">row{number}\n{row}\n" for number, row in enumerate(ROWS)))
    return path


class Read:
    """The features and the settings of sampling with which each prediction was made, by its name."""

    def __init__(self) -> None:
        self.features: dict[str, TargetFeatures] = {}
        self.presets: dict[str, Preset] = {}


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Read:
    found, fold = Read(), planned.fold

    def watched(model: Any, preset: Preset, targets: Sequence[FoldingTarget], *rest: Any, **named: Any) -> Any:
        for target in targets:
            found.features[str(target.name)], found.presets[str(target.name)] = target.features, preset
        return fold(model, preset, targets, *rest, **named)

    monkeypatch.setattr(planned, "fold", watched)
    return found


def letters(features: TargetFeatures) -> list[str]:
    assert isinstance(features, Features)
    return ["".join([*RESTYPES, "X", "-"][kind] for kind in row) for row in features.msa]


def table(path: Path) -> list[dict[str, str]]:
    header, *lines = path.read_text().splitlines()
    return [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]


def test_each_variant_is_a_prediction_of_its_own(a3m: Path, runs: Runs, read: Read) -> None:
    pytest.importorskip("sklearn")
    masks = ("--mask-columns", "2-3,9", "--mask-window", "5:4", "--subsample-msa", "1:2,2:1")
    names = ["tiny", "tiny_alanine_2-3_9", "tiny_alanine_1-5", "tiny_alanine_5-9", "tiny_alanine_6-10"]
    names += ["tiny_msa_1_2", "tiny_msa_2_1", "tiny_cluster_000", "tiny_cluster_001"]
    assert runs(a3m, *CLUSTERS, *masks) == names
    assert sorted(runs.order()) == sorted(names)
    assert letters(read.features["tiny"]) == ROWS
    assert letters(read.features["tiny_cluster_000"]) == ROWS[:4]
    assert letters(read.features["tiny_cluster_001"]) == [ROWS[0], *ROWS[4:7]]
    assert letters(read.features["tiny_alanine_2-3_9"])[:2] == [ROWS[0], "MAAAYIAKAK"]
    assert letters(read.features["tiny_alanine_2-3_9"])[-1] == "MA--------"
    sampling = read.presets["tiny_msa_1_2"].sampling
    assert (sampling.max_msa_clusters, sampling.max_extra_msa) == (1, 2)
    assert read.presets["tiny_cluster_000"] == read.presets["tiny"]
    lines = {line["alignment"]: line for line in table(runs.target / "alignments.tsv")}
    assert [lines[name]["rows"] for name in ("all", "cluster_000", "msa_1_2")] == ["8", "4", "8"]
    assert lines["alanine_2-3_9"]["masked_columns"] == "3"
    labels = [line["cluster"] for line in table(runs.target / "clusters.tsv")]
    assert labels == ["target", "0", "0", "0", "1", "1", "1", "left out"]
    recorded = json.loads((runs.target / "settings.json").read_text())
    settings = "DBSCAN, eps 2.5, min_samples 3, gaps below 0.25"
    assert recorded["clusters"] == {"settings": settings, "count": 2, "eps": 2.5}
    assert recorded["predictions"]["tiny_cluster_001"]["alignment"] == f"cluster 1 ({settings})"
    assert "alignment" not in recorded["predictions"]["tiny"]
    # The confidence file tells the depth of what was read.
    depth = json.loads((runs.target / "confidence_tiny_cluster_001.json").read_text())["msa"]["rows"]
    assert depth == 4


def test_samples_are_resumed_one_by_one_and_added_to_earlier_ones(a3m: Path, runs: Runs) -> None:
    pytest.importorskip("sklearn")
    assert runs(a3m) == ["tiny"]
    assert runs(a3m, *CLUSTERS) == ["tiny_cluster_000", "tiny_cluster_001"]
    assert "1 prediction there from an earlier run, 1 missing" in runs.out  # at least
    assert runs(a3m, *CLUSTERS) == []
    assert "one: finished before, skipped" in runs.out
    assert runs(a3m, *CLUSTERS, "--num-seeds", 2) == [f"tiny{each}_seed_1" for each in ("", *_clusters())]
    assert runs(a3m, "--subsample-msa", "2:2") == ["tiny_msa_2_2"]
    assert runs(a3m) == []
    (runs.target / "confidence_tiny_cluster_001.json").unlink()
    (runs.target / "ranking_debug.json").unlink()
    assert runs(a3m, *CLUSTERS) == ["tiny_cluster_001"]
    assert len(runs.order()) == 7
    # A name stands for other rows with other settings.
    assert runs(a3m, "--cluster-msa", "--cluster-eps", 3) == []
    assert "clusters by DBSCAN, eps 2.5, min_samples 3, gaps below 0.25, now by DBSCAN, eps 3," in runs.err


def _clusters() -> list[str]:
    return ["_cluster_000", "_cluster_001"]


def test_a_run_that_was_killed_while_clusters_were_unknown_goes_on(a3m: Path, runs: Runs) -> None:
    pytest.importorskip("sklearn")
    assert runs(a3m) == ["tiny"]
    recorded = json.loads((runs.target / "settings.json").read_text())
    recorded["clusters"] = {"settings": "DBSCAN, eps 2.5, min_samples 3, gaps below 0.25", "count": None, "eps": None}
    (runs.target / "settings.json").write_text(json.dumps(recorded))
    assert runs(a3m, *CLUSTERS) == ["tiny_cluster_000", "tiny_cluster_001"]
    recorded["clusters"]["count"] = 3
    (runs.target / "settings.json").write_text(json.dumps(recorded))
    assert runs(a3m, *CLUSTERS) == []
    assert "an earlier run found 3 clusters, and now there are 2" in runs.err
    assert runs.code == 1
    assert runs(a3m, *CLUSTERS, "--overwrite") == ["tiny", "tiny_cluster_000", "tiny_cluster_001"]


@pytest.mark.parametrize("executor", ["slabs", "spilled"])
def test_every_executor_makes_the_same_samples(executor: str, a3m: Path, tmp_path: Path) -> None:
    common = ["predict", str(a3m), "--models", "tiny", "--num-recycles", "0", "--device", "cpu", "--mask-window", "5"]
    outputs = {name: tmp_path / name for name in ("whole", executor)}
    for name, output in outputs.items():
        assert main([*common, "--executor", name, "--output", str(output)]) == 0
    for name in ("tiny_alanine_1-5", "tiny_alanine_6-10"):
        plddt = [
            json.loads((output / "one" / f"confidence_{name}.json").read_text())["plddt"] for output in outputs.values()
        ]
        np.testing.assert_allclose(*plddt, atol=0.02)
        assert json.loads((outputs[executor] / "one/timings.json").read_text())["models"][name]["executor"] == executor


def test_targets_of_a_batch_have_their_own_and_a_complex_that_has_no_clusters_stops_no_other(
    tmp_path: Path, runs: Runs
) -> None:
    pytest.importorskip("sklearn")
    fasta = tmp_path / "all.fasta"
    fasta.write_text(f">one\n{SEQUENCE}\n>two\n{SEQUENCE}QISFV\n>pair\n{SEQUENCE}:{SEQUENCE}\n")
    runs(fasta, *CLUSTERS, "--mask-window", "10", "--targets-at-once", 4)
    assert runs.code == 1
    failures = json.loads((runs.output / "failures.json").read_text())
    assert list(failures) == ["pair"]
    assert "pair is a complex, but --cluster-msa is only supported for single chains" in runs.err
    assert sorted(runs.order()) == ["tiny", "tiny_alanine_1-10"]
    order = json.loads((runs.output / "two" / "ranking_debug.json").read_text())["order"]
    assert sorted(order) == ["tiny", "tiny_alanine_1-10", "tiny_alanine_6-15"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--mask-columns", "5-3"], "--mask-columns must be residues from 1, such as 10-20,45"),
        (["--mask-window", "0"], "--mask-window must be a number of residues"),
        (["--subsample-msa", "16:32,64"], "--subsample-msa must be numbers of rows and of extra rows"),
        (["--cluster-msa", "--cluster-eps", "0"], "--cluster-eps must be a distance above 0"),
        (["--cluster-eps", "5"], "--cluster-eps needs --cluster-msa; pass that too"),
        (["--mask-with", "unknown"], "--mask-with needs --mask-columns or --mask-window"),
    ],
)
def test_words_that_make_no_sense_are_one_sentence(words: Sequence[str], problem: str, fasta: Path, runs: Runs) -> None:
    assert runs(fasta, *words) == []
    assert runs.code == 2
    assert problem in runs.err
    assert runs.err.count("\n") == 1
    assert not runs.output.exists()


def test_a_residue_beyond_the_end_fails_its_target(fasta: Path, runs: Runs) -> None:
    assert runs(fasta, "--mask-columns", "3", "8-12") == []
    assert runs.code == 1
    assert "--mask-columns 8-12 is beyond the last residue, 10" in runs.err


def test_columns_of_a_complex_are_named_by_chain() -> None:
    features = feature_set("AB")
    names, sequences = features.multimer.chain_names, features.chain_sequences
    variant = masked_columns(read_ranges(f"{names[1]}:2-3"), "unknown")
    found = variant.of(features)
    at = len(sequences[0]) + 1
    for before, after in ((features.multimer, found.multimer), (features.residue_gap, found.residue_gap)):  # type: ignore[union-attr]
        changed = before.msa != after.msa
        np.testing.assert_array_equal(changed.any(0).nonzero()[0], [at, at + 1])
        np.testing.assert_array_equal(after.msa[0], before.msa[0])
        assert set(after.msa[1:, at].tolist()) <= {UNKNOWN, GAP}
    for words, problem in (("2", "needs a chain for a complex, such as A:2"), ("Z:2", "the chains are A, B")):
        with pytest.raises(InputError, match=problem):
            masked_columns(read_ranges(words), "alanine").of(features)


def test_a_variant_changes_nothing_else() -> None:
    features = prepare(Target(name="one", sequence=SEQUENCE)).features
    assert AlignmentVariant().of(features) is features
    shallow, *_ = VariantSettings(depths=((2, 3),)).without_clusters([10], ["A"])[1:]
    assert shallow.of(features) is features


def test_long_selections_have_short_names() -> None:
    ranges = [ResidueRange(first=number, last=number) for number in range(1, 60, 3)]
    one, other = (masked_columns(some, "alanine") for some in (ranges, ranges[:-1]))
    assert one.name.startswith("alanine_1_")
    assert one.name != other.name
    assert len(one.name) < 40


numbers = st.integers(1, 999_999)


@given(st.lists(st.tuples(numbers, numbers, st.sampled_from([None, "A", "b2"])), min_size=1, max_size=5))
def test_selections_are_read_as_they_are_written(parts: list[tuple[int, int, str | None]]) -> None:
    ranges = tuple(ResidueRange(first=min(a, b), last=max(a, b), chain=chain) for a, b, chain in parts)
    assert read_ranges(",".join(map(str, ranges))) == ranges


@given(st.text(max_size=12))
def test_any_other_text_is_one_sentence(text: str) -> None:
    for read_text in (read_ranges, read_window, read_depth):
        try:
            read_text(text)
        except ValueError as error:
            assert "\n" not in str(error)
            assert "must" in str(error)
