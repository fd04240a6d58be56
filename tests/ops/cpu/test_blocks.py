"""Work is divided into blocks that cover it, and blocks fit the caches that the system reports."""

from pathlib import Path

import pytest

from helixfold.ops.cpu import blocks
from helixfold.ops.cpu.blocks import slices


@pytest.mark.parametrize(("length", "size"), [(0, 4), (1, 4), (4, 4), (5, 4), (11, 4), (14, 5), (7, 0)])
def test_slices_cover_everything_once_and_the_longest_comes_first(length: int, size: int) -> None:
    found = list(slices(length, size))
    assert [index for each in found for index in range(length)[each]] == list(range(length))
    lengths = [each.stop - each.start for each in found]
    # Otherwise a buffer for the first slice is too small for later ones, and both buffers exist at once.
    assert lengths[:1] == [max(lengths)] if lengths else length == 0
    assert max(lengths, default=0) - min(lengths, default=0) <= 1
    assert max(lengths, default=0) <= max(size, 1)


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
