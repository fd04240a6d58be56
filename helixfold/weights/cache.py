"""Find where downloaded parameters are kept."""

from pathlib import Path

from data_pipeline.io.site_configuration import site_configuration
from data_pipeline.io.user_cache import user_cache


def parameters_directory() -> Path | None:
    """Return the directory of downloaded parameters, which has one `params_<preset>.npz` per model.

    It is `weights_directory` of the site's configuration, or else in the cache; None if there is neither.
    """
    if (configured := site_configuration().weights_directory) is not None:
        return configured
    cache = user_cache()
    return None if cache is None else cache / "params"
