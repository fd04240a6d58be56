"""Blocks of work fit the caches that the system tells."""

from pathlib import Path

import pytest

from helixfold.ops.cpu import blocks


@pytest.mark.parametrize(
    ("caches", "kibibytes"),
    [
        ({"index0": ("1", "32K"), "index2": ("2", "1024K"), "index3": ("3", "32768K")}, 1024),
        ({"index2": ("2", "2048K")}, 2048),
        ({"index2": ("2", "16384K")}, 2048),
        ({"index2": ("2", "256K")}, 512),
        ({"index2": ("2", "unknown")}, 512),
        ({"index3": ("3", "32768K")}, 512),
        ({}, 512),
    ],
)
def test_size_of_the_level_2_cache_is_read_within_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caches: dict[str, tuple[str, str]], kibibytes: int
) -> None:
    monkeypatch.setattr(blocks, "_CACHES", tmp_path)
    for name, (level, size) in caches.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "level").write_text(f"{level}\n")
        (tmp_path / name / "size").write_text(f"{size}\n")
    assert blocks.l2_cache_bytes() == kibibytes * 2**10
