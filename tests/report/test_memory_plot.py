"""The plot of peak memory shows every point it is given."""

import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from helixfold.report.memory_plot import STYLES, MemoryCurve, memory_plot


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def colored(image: np.ndarray, executor: str) -> int:
    color = [int(STYLES[executor][0][start : start + 2], 16) for start in (1, 3, 5)]
    return int((np.abs(image - np.array(color)).max(-1) <= 2).sum())


def drawn(dtypes: Sequence[str], *executors: str) -> np.ndarray:
    floors = {dtype: {residues: residues**2 * 1000 for residues in (256, 512, 1024)} for dtype in dtypes}
    curves = [
        MemoryCurve(executor=name, dtype=dtype, measured={256: 10**8, 1024: 10**9 * place}, predicted=predicted)
        for dtype in dtypes
        for place, name in enumerate(executors, 1)
        for predicted in ({} if name == "plain" else {256: 10**8, 512: 3 * 10**8, 1024: 10**9},)
    ]
    return pixels(memory_plot(curves, floors, "a title"))


def test_points_of_every_executor_are_drawn_for_every_dtype() -> None:
    everything, two = drawn(["float32", "bfloat16"], *STYLES), drawn(["float32"], "plain", "slabs")
    assert all(colored(everything, name) > 100 for name in STYLES)
    assert [name for name in STYLES if colored(two, name) > 100] == ["plain", "slabs"]
    half = everything.shape[1] // 2
    assert all(
        colored(side, name) > 100
        for side in (everything[:, :half], everything[:, half:])
        for name in ("whole", "slabs")
    )
