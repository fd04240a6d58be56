"""A benchmark's predictions are compared with the chains that the targets' names ask for."""

from pathlib import Path

import numpy as np

from data_pipeline.parse.structures import read_structure
from helixfold.apps.evaluate.benchmark_data import Benchmark, find_data
from helixfold.apps.evaluate.benchmark_table import read_benchmark
from helixfold.apps.evaluate.compare import compare_benchmark
from helixfold.results.driver import Run
from tests.apps.score.structure_files import SEQUENCE, write


def benchmark(directory: Path, *names: str, data: Path) -> Benchmark:
    table = directory / "table.tsv"
    table.write_text("\n".join(("id", *names, "")))
    return find_data(read_benchmark(str(table)), [data])


def test_a_target_is_compared_with_the_chain_in_its_name(tmp_path: Path) -> None:
    """Chains A and B have one sequence and two structures; all predictions are chain A."""
    known = write(tmp_path / "known" / "pair.pdb", SEQUENCE, SEQUENCE)
    first, second = (chain.atom_positions[:, 1] for chain in read_structure(known).chains)
    assert np.linalg.norm(np.diff(first - second, axis=0), axis=-1).min() > 0.1
    names = ("pair_A", "pair_B")
    for rank, name in enumerate(names):
        target = tmp_path / "predictions" / name
        write(target / "ranked_0.pdb")
        (target / "ranking_debug.json").write_text("{}")
        np.savez(target / "features.npz", msa=np.zeros((3 + rank, len(SEQUENCE)), np.int8))
    found = compare_benchmark(
        benchmark(tmp_path, *names, data=known.parent), tmp_path / "predictions", Run(tmp_path, "target", 2)
    )
    assert found.failures == {}
    one, other = found.results
    assert [(each.target, each.scores.reference_chain) for each in (one, other)] == [("pair_A", "A"), ("pair_B", "B")]
    assert one.scores.lddt_ca == one.scores.tm_score == 1
    assert other.scores.lddt_ca < 0.8
    assert {name: (size.residues, size.rows) for name, size in found.sizes.items()} == {
        "pair_A": (len(SEQUENCE), 3),
        "pair_B": (len(SEQUENCE), 4),
    }


def test_a_target_without_a_finished_prediction_is_named_and_stops_no_other(tmp_path: Path) -> None:
    known = write(tmp_path / "known" / "pair.pdb", SEQUENCE, SEQUENCE)
    target = tmp_path / "predictions" / "pair_B"
    write(target / "ranked_0.pdb")
    (target / "ranking_debug.json").write_text("{}")
    np.savez(target / "features.npz", msa=np.zeros((1, len(SEQUENCE)), np.int8))
    write(tmp_path / "predictions" / "pair_A" / "ranked_0.pdb")  # of a run that has not come to the ranking
    found = compare_benchmark(
        benchmark(tmp_path, "pair_A", "pair_B", data=known.parent),
        tmp_path / "predictions",
        Run(tmp_path, "target", 2),
    )
    assert found.failures == {"pair_A": "it has no finished prediction"}
    assert [each.target for each in found.results] == ["pair_B"]
