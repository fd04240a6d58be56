"""A pool takes the targets that fit with every model of a run."""

from typing import Any

import pytest

from helixfold.apps.cluster import forecast
from helixfold.apps.cluster.site import Pool
from helixfold.model.presets import preset

POOL = Pool(name="fold", memory=2**32, cores=4)
PRESETS = [preset(name) for name in ("tiny", "tiny_multimer", "small")]
# Residues that fit in slabs and spilled, by model.
FITTING = {"slabs": (700, 500, 900), "spilled": (800, 600, 400)}


def test_the_longest_target_fits_with_every_model_on_any_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    def longest(model: object, _size: object, _available: object, _card: object, name: str) -> int:
        return FITTING[name][[each.model for each in PRESETS].index(model)]

    def length(*models: int) -> int:
        options: Any = {"dtype": "float32", "ensemble": 1, "templates": True, "passes": [1] * len(models)}
        return forecast.forecast_of_pool(POOL, [PRESETS[number] for number in models], **options).longest

    monkeypatch.setattr(forecast, "longest", longest)
    monkeypatch.setattr(forecast, "_work_by_length", lambda *_: (lambda _: 1.0, 1))
    assert [length(0), length(1), length(2)] == [800, 600, 900]
    assert length(0, 1, 2) == length(2, 1, 0) == 600
    assert length(2, 0) == 800
