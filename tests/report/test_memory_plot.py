"""The plot of peak memory shows every point it is given."""

import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from helixfold.report.memory_plot import STYLES, MemoryCurve, memory_plot
from tests.support.figures import figure_of


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


def test_points_are_measured_and_lines_predicted_in_gib_by_residues() -> None:
    floors = {"float32": {512: 2**29, 256: 2**28}, "bfloat16": {256: 2**27, 512: 2**28}}
    curves = [
        MemoryCurve(executor="slabs", dtype="float32", measured={512: 3 * 2**30, 256: 2**30}, predicted={256: 2**31}),
        MemoryCurve(executor="plain", dtype="bfloat16", measured={256: 2**32, 512: 2**33}, predicted={}),
    ]
    first, second = figure_of(lambda: memory_plot(curves, floors, "title")).axes
    assert (first.get_title(), second.get_title()) == ("float32", "bfloat16")

    def data(axes: object) -> list[tuple[list[float], list[float]]]:
        return [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]  # type: ignore[attr-defined]

    assert data(first) == [([256, 512], [0.25, 0.5]), ([256], [2]), ([256, 512], [1, 3])]
    assert data(second) == [([256, 512], [0.125, 0.25]), *[([256, 512], [4, 8])] * 2]
    assert [axes.texts[0].get_text() for axes in (first, second)] == ["6.00x", "32x"]
    assert [first.lines[2].get_marker(), second.lines[2].get_marker()] == ["o", "s"]
