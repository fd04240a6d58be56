"""A pool takes the targets that fit with every model of a run."""

from helixfold.cluster.forecast import forecast_of_pool
from helixfold.cluster.site import Pool
from helixfold.presets import preset

POOL = Pool(name="fold", memory=4 * 2**30, cores=4)


def longest(*names: str) -> int:
    presets = [preset(name) for name in names]
    passes = [1] * len(names)
    return forecast_of_pool(POOL, presets, dtype="float32", passes=passes, ensemble=1, templates=True).longest


def test_the_longest_target_fits_with_every_model() -> None:
    small, large = longest("model_5"), longest("model_1_multimer_v3")
    assert 0 < large < small
    assert longest("model_5", "model_1_multimer_v3") == longest("model_1_multimer_v3", "model_5") == large
