"""From a sequence and alignment files to features, on made-up and on real input."""

from pathlib import Path

import numpy as np
import pytest

from data_pipeline.errors import InputError
from data_pipeline.parse.a3m import read_a3m
from data_pipeline.pipeline import features_from_sequence
from data_pipeline.transforms.sample import SamplingConfig, draw_sample


def test_target_without_alignment_is_its_own_msa() -> None:
    features = features_from_sequence("T1", "ACDU")
    assert (features.domain_name, features.sequence) == ("T1", "ACDU")
    assert features.aatype.tolist() == [0, 4, 3, 20]
    assert features.msa.tolist() == [[0, 4, 3, 4]]
    assert features.deletion_matrix.tolist() == [[0, 0, 0, 0]]
    assert features.template_aatype.shape == (0, 4)


def test_files_are_merged_in_order_and_kept(tmp_path: Path) -> None:
    contents = {"a.a3m": b">q\nACX\n>h\nA-U\n", "b.a3m": b">q\nACU\n>i\nWcWW\n>h\nA-U\n"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    features = features_from_sequence("T1", "ACU", [tmp_path / name for name in contents])
    assert features.msa.tolist() == [[0, 4, 4], [0, 21, 4], [17, 17, 17]]
    assert features.deletion_matrix.tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 0]]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == contents


@pytest.mark.parametrize(("sequence", "message"), [("", "is empty"), ("AC1", "residue 3: '1' is not an amino acid")])
def test_wrong_sequence_is_told(sequence: str, message: str) -> None:
    with pytest.raises(InputError, match=f"sequence of 'T1'.* {message}"):
        features_from_sequence("T1", sequence)


def test_alignment_of_another_target_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.a3m").write_bytes(b">q\nACD\n")
    with pytest.raises(InputError, match=r"a\.a3m, line 1, record 'q': the first row is not the target"):
        features_from_sequence("T1", "ACE", [tmp_path / "a.a3m"])


@pytest.mark.parametrize(
    ("name", "rows"),
    [("T1034_D1__T1034", 10265), ("5trv_A__5trv", 1122), ("7zzx_B__3", 8356), ("5zyh_A__2", 1004)],
)
def test_real_alignments_become_samples(real_data: Path, name: str, rows: int) -> None:
    path = real_data / "msa" / f"{name}.a3m.gz"
    alignment = read_a3m(path)
    assert len(alignment.letters) == rows
    features = features_from_sequence("target", alignment.query, [path])
    assert 0.5 * rows < len(features.msa) <= rows
    sample = draw_sample(features, SamplingConfig(max_msa_clusters=508), np.random.default_rng(0))
    assert sample.msa_feat.shape == (508, len(alignment.query), 49)
    assert np.isfinite(sample.msa_feat).all()
    assert sample.extra_msa.shape[0] == min(1024, len(features.msa) - 508)
