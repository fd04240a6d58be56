"""Make the alignments of training examples shallow and incomplete, so that the network copes with any alignment."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from jaxtyping import Int, Int8

from data_pipeline.io.config import FRACTION, Config
from data_pipeline.residues import GAP
from data_pipeline.sampling.msa import random_rows


@dataclass(frozen=True, kw_only=True)
class AlignmentAugmentation(Config):
    """Settings of the alignments of training examples; the defaults change nothing.

    `alone_fraction` of the examples have only the target row. With `random_depth`, the number of rows of the others is
    log-uniform from 1 to all. A fraction of the columns, uniform from 0 to `most_dropped_columns`, has gaps in all rows
    except the target, so that a network cannot memorize alignments.
    """

    alone_fraction: Annotated[float, FRACTION] = 0.0  # part of the examples with the target row only
    random_depth: bool = False  # draw the number of rows
    most_dropped_columns: Annotated[float, FRACTION] = 0.0  # max part of the columns with gaps

    @property
    def is_on(self) -> bool:
        """Return whether the settings can change an alignment."""
        return self.alone_fraction > 0 or self.random_depth or self.most_dropped_columns > 0


def augmented_alignment(
    msa: Int8[np.ndarray, "n r"],
    deletions: Int[np.ndarray, "n r"],
    settings: AlignmentAugmentation,
    rng: np.random.Generator,
) -> tuple[Int8[np.ndarray, "m r"], Int[np.ndarray, "m r"]]:
    """Return some rows of an alignment, the target first, and their deletion counts.

    In some columns, all rows except the target have gaps and no deletions; no column is removed. An alignment of the
    target only is returned unchanged.
    """
    if len(msa) == 1 or not settings.is_on:
        return msa, deletions
    if rng.random() < settings.alone_fraction:
        return msa[:1], deletions[:1]
    if settings.random_depth:
        depth = int(np.exp(rng.uniform(0, np.log(len(msa) + 1))))
        rows = random_rows(len(msa), min(depth, len(msa)), rng)
        msa, deletions = msa[rows], deletions[rows]
    dropped = rng.random(msa.shape[1]) < rng.uniform(0, settings.most_dropped_columns)
    dropped_cells = dropped & (np.arange(len(msa)) > 0)[:, None]
    return np.where(dropped_cells, msa.dtype.type(GAP), msa), np.where(dropped_cells, 0, deletions)
