"""The directory of downloaded parameters."""

from pathlib import Path

from data_pipeline.io.site_configuration import site_configuration
from data_pipeline.io.user_cache import user_cache


def parameters_directory() -> Path | None:
    """Return the directory of downloaded parameters, with a file `params_<preset>.npz` for each model.

    It is `weights_directory` of the configuration files, or else a directory in the cache; None without both. It may
    not exist.
    """
    if (configured := site_configuration().weights_directory) is not None:
        return configured
    cache = user_cache()
    return None if cache is None else cache / "params"
