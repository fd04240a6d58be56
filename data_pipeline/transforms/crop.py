"""Cutting a sample down to a stretch of consecutive residues, as training does."""

from dataclasses import replace

import numpy as np

from data_pipeline.features.schema import SAMPLE_AXES, Sample


def crop_start(length: int, size: int, rng: np.random.Generator) -> int:
    """Where a crop of `size` residues begins, each possible place equally likely; 0 for chains that fit whole."""
    return int(rng.integers(max(0, length - size) + 1))


def crop_residues(sample: Sample, start: int, size: int) -> Sample:
    """Residues `start` to `start + size`, or as many as there are; rows and templates stay."""
    length = len(sample.aatype)
    if not 0 <= start < length or size < 1:
        raise ValueError(f"a crop of {size} residues from residue {start} does not lie in a chain of {length}")

    def cropped(name: str, axes: str) -> np.ndarray:
        array: np.ndarray = getattr(sample, name)
        return array[(*[slice(None)] * axes.index("r"), slice(start, start + size))] if "r" in axes else array

    return replace(sample, **{name: cropped(name, axes) for name, axes in SAMPLE_AXES.items()})
