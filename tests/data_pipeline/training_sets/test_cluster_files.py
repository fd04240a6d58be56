"""Clusters as people have them in files."""

from pathlib import Path

import pytest

from data_pipeline.io.errors import InputError
from data_pipeline.training_sets.cluster_files import given_clusters, identical_clusters, read_clusters, write_clusters


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "clusters.txt"
    path.write_bytes(text.encode())
    return path


def test_lines_of_chains_are_clusters(tmp_path: Path) -> None:
    found = read_clusters(written(tmp_path, "1ABC_A 2xyz_B\r\n\r\n3def_C  \r\n"))
    assert found == {"1ABC_A": "1ABC_A", "2xyz_B": "1ABC_A", "3def_C": "3def_C"}


def test_a_table_of_chain_and_cluster_is_read_and_written(tmp_path: Path) -> None:
    clusters = {"1abc_A": "one", "odd name": "one", "3def_C": "two"}
    write_clusters(tmp_path / "clusters.tsv", clusters)
    assert read_clusters(tmp_path / "clusters.tsv") == clusters


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "there are no clusters"),
        ("a b\nc a\n", "line 2: 'a' is already in cluster 'a'"),
        ("a\tone\na\ttwo\n", "line 2: 'a' is already in cluster 'one'"),
        ("a\tb\tc\n", "line 1: 3 columns"),
        ("a\t\n", "line 1: the name '' is empty"),
        ("a\x01b\n", "line 1: the name 'a\\\\x01b' has control characters"),
    ],
)
def test_anything_else_is_refused_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        read_clusters(written(tmp_path, text))


def test_binary_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "clusters.txt").write_bytes(b"\x80\x81")
    with pytest.raises(InputError, match="not UTF-8"):
        read_clusters(tmp_path / "clusters.txt")


def test_chains_without_a_cluster_are_alone_and_told() -> None:
    clusters, missing = given_clusters(["1abc_A", "1abc_a", "9zzz_Z"], {"1ABC_A": "one", "1abc_a": "two"})
    assert clusters == {"1abc_A": "one", "1abc_a": "two", "9zzz_Z": "9zzz_Z"}
    assert missing == ["9zzz_Z"]


def test_identical_sequences_share_a_cluster_whatever_the_others_are() -> None:
    first = identical_clusters({"a": "MKV", "b": "MKV", "c": "MKL"})
    assert first["a"] == first["b"] != first["c"]
    assert identical_clusters({"z": "MKV"}) == {"z": first["a"]}
