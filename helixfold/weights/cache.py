"""Find where downloaded parameters are kept."""

from pathlib import Path

from data_pipeline.user_cache import user_cache


def parameters_directory() -> Path | None:
    """Return the cache directory of downloaded parameters, which has one `params_<preset>.npz` per model.

    It is None if the user has no cache.
    """
    cache = user_cache()
    return None if cache is None else cache / "params"
