"""Pad samples to fixed sizes, so that they can be stacked into one batch."""

from dataclasses import replace

import numpy as np

from data_pipeline.features.sample import SAMPLE_AXES, Sample


def pad_sample(
    sample: Sample,
    *,
    residues: int | None = None,
    msa_rows: int | None = None,
    extra_rows: int | None = None,
    templates: int | None = None,
) -> Sample:
    """Return the sample padded with zeros, also in its masks, up to the given sizes; other axes are unchanged.

    Raise `ValueError` if the sample is larger than a given size.
    """
    sizes = {"r": residues, "s": msa_rows, "e": extra_rows, "t": templates}

    def padded(name: str, axes: str) -> np.ndarray:
        array: np.ndarray = getattr(sample, name)
        widths = [(0, 0)] * array.ndim
        for dim, axis in enumerate(axes):
            size = sizes[axis]
            if size is not None:
                if size < array.shape[dim]:
                    raise ValueError(
                        f"{name} has size {array.shape[dim]} along {axis}, more than {size}; crop it first"
                    )
                widths[dim] = (0, size - array.shape[dim])
        return np.pad(array, widths)

    return replace(sample, **{name: padded(name, axes) for name, axes in SAMPLE_AXES.items()})
