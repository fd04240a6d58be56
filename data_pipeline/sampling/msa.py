"""Reduce an MSA of any depth to the model's input: masked cluster centres with profiles, and extra rows.

AlphaFold 2, Suppl. Sec. 1.2.6 and 1.2.7. The selection of rows and the masking are random and take a generator; the
other functions are deterministic. `CLASSES` is the number of residue types in a masked MSA, with unknown, gap and mask.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from jaxtyping import Bool, Float, Float32, Int, Int8, Int32, Integer

from data_pipeline.io.config import FRACTION, Config, at_least
from data_pipeline.residues import GAP, MASKED, RESTYPES, UNKNOWN

CLASSES = MASKED + 1  # 20 residues, unknown, gap, masked
_PROFILE_CLASSES = GAP + 1
_CHUNK = 2**18  # entries of the working arrays, which fit into the processor's cache
_ROWS_AT_ONCE = 8192


def replace_with_unknown(
    msa: Int8[np.ndarray, "n r"], aatype: Int[np.ndarray, "r"], fraction: float, rng: np.random.Generator
) -> tuple[Int8[np.ndarray, "n r"], Int[np.ndarray, "r"]]:
    """Return an MSA and residue types of the target with about a `fraction` of the residues replaced by X.

    Residues (not gaps) are chosen independently in the MSA, its first row included, and in `aatype`.
    """
    hidden = (rng.random(msa.shape, np.float32) < fraction) & (msa != GAP)
    return (
        np.where(hidden, msa.dtype.type(UNKNOWN), msa),
        np.where(rng.random(aatype.shape) < fraction, aatype.dtype.type(UNKNOWN), aatype),
    )


def msa_profile(msa: Int8[np.ndarray, "n r"]) -> Float32[np.ndarray, "r 22"]:
    """Return the frequency (0..1) of each residue type, including unknown and gap, in each column of an MSA."""
    counts = _counts(msa, np.zeros(len(msa), np.int32), 1)[0, :, :_PROFILE_CLASSES]
    return (counts / np.float32(len(msa))).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class BlockDeletion(Config):
    """Settings of MSA block deletion: number and size of the blocks of rows to remove in training (Suppl. Alg. 1).

    A block has the fraction `fraction_per_block` of all rows. With `randomize_blocks`, the number of blocks is uniform
    from 0 to `blocks`.
    """

    fraction_per_block: Annotated[float, FRACTION] = 0.3  # of all rows
    blocks: Annotated[int, at_least(0)] = 5  # number of blocks
    randomize_blocks: bool = False  # True: the number of blocks is uniform from 0 to `blocks`


def rows_after_block_deletion(n: int, deletion: BlockDeletion, rng: np.random.Generator) -> Int[np.ndarray, "kept"]:
    """Return the sorted indices of the rows of an MSA of `n` rows that remain after deleting random blocks.

    The target, row 0, always remains. Rows are in search order, so a block is often a branch of the family. AlphaFold
    2, Suppl. Alg. 1.
    """
    size = int(n * deletion.fraction_per_block)
    blocks = int(rng.integers(deletion.blocks + 1)) if deletion.randomize_blocks else deletion.blocks
    starts = rng.integers(n, size=blocks)
    remains = np.ones(n, np.bool_)
    for start in starts:
        remains[start : start + size] = False
    remains[0] = True
    return np.flatnonzero(remains)


def random_rows(n: int, max_rows: int, rng: np.random.Generator) -> Int[np.ndarray, "kept"]:
    """Return the sorted indices of at most `max_rows` of `n` rows: the target (row 0) and random others."""
    if n <= max_rows:
        return np.arange(n)
    return np.sort(np.concatenate([[0], 1 + rng.choice(n - 1, max_rows - 1, replace=False)]))


def sample_rows(
    n: int, max_clusters: int, rng: np.random.Generator
) -> tuple[Int[np.ndarray, "s"], Int[np.ndarray, "e"]]:
    """Return the row indices of the cluster centres, with the target first, and of all other rows, in random order.

    Of `n` rows, at most `max_clusters` become centres.
    """
    order = np.concatenate([[0], 1 + rng.permutation(n - 1)])
    return order[:max_clusters], order[max_clusters:]


def crop_extra_rows(e: int, max_extra: int, rng: np.random.Generator) -> Int[np.ndarray, "rows"]:
    """Return random indices, from 0 to `e` - 1, of at most `max_extra` rows in random order, for the extra MSA.

    `e` is the number of rows that are not cluster centres.
    """
    return rng.permutation(e)[:max_extra]


def mask_msa(
    msa: Int8[np.ndarray, "s r"],
    profile: Float[np.ndarray, "r 22"],
    *,
    fraction: float,
    uniform_prob: float,
    profile_prob: float,
    same_prob: float,
    rng: np.random.Generator,
) -> tuple[Int8[np.ndarray, "s r"], Bool[np.ndarray, "s r"]]:
    """Return an MSA with about a `fraction` of its positions masked as in BERT, and where these are (gaps included).

    A position becomes a uniformly random residue with `uniform_prob`, a sample from the profile of its column with
    `profile_prob`, remains unchanged with `same_prob`, and becomes the mask token otherwise.
    """
    r = msa.shape[1]
    hidden = rng.random(msa.shape) < fraction
    places = np.flatnonzero(hidden)
    columns, original_letters = places % r, msa.reshape(-1)[places]
    # Each class has an interval of the random numbers, in the order of the classes.
    lengths = np.zeros((r, CLASSES))
    lengths[:, : len(RESTYPES)] = uniform_prob / len(RESTYPES)
    lengths[:, :_PROFILE_CLASSES] += profile_prob * profile
    lengths[:, MASKED] = max(0.0, 1 - uniform_prob - profile_prob - same_prob)
    ends = lengths.cumsum(axis=1)
    draws = rng.random(len(places)) * (ends[columns, -1] + same_prob)
    # The interval of `same_prob` follows the interval of a position's own class. After removing it, the numbers are
    # looked up in the intervals of all columns at once, which do not overlap.
    beyond = draws - ends[columns, original_letters]
    is_same = (beyond >= 0) & (beyond < same_prob)
    draws[beyond >= same_prob] -= same_prob
    starts = 2.0 * np.arange(r)
    classes = np.searchsorted((ends + starts[:, None]).reshape(-1), draws + starts[columns], side="right")
    sampled_letters = np.minimum(classes - columns * CLASSES, MASKED)
    masked = msa.copy()
    masked.reshape(-1)[places] = np.where(is_same, original_letters, sampled_letters)
    return masked, hidden


def nearest_clusters(centres: Int8[np.ndarray, "s r"], rows: Int8[np.ndarray, "e r"]) -> Int32[np.ndarray, "e"]:
    """Return the index of the cluster centre that agrees with each row in the most columns; ties go to the first.

    Gaps and masked positions never count as agreement; unknown residues do.
    """
    # Comparing and adding bytes column by column is exact, and about eight times faster than a matrix product of
    # one-hot vectors. A byte holds the agreement of 255 columns. Rows are on the fast axis, because there are many.
    s, r = centres.shape
    if not len(rows):
        return np.zeros(0, np.int32)
    centre_columns = np.where(centres > UNKNOWN, np.int8(-1), centres).T.copy()
    row_columns = np.ascontiguousarray(rows.T)
    nearest = np.empty(len(rows), np.int32)
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        columns = row_columns[:, start : start + _ROWS_AT_ONCE]
        agreement = np.zeros((s, columns.shape[1]), np.uint8 if r <= 255 else np.uint16)
        step = max(1, _CHUNK // columns.shape[1])
        for first in range(0, s, step):
            group = slice(first, first + step)
            equal = np.empty(agreement[group].shape, np.bool_)
            for block in range(0, r, 255):
                count = np.zeros(equal.shape, np.uint8)
                for column in range(block, min(block + 255, r)):
                    np.equal(centre_columns[column, group, None], columns[column], out=equal)
                    count += equal.view(np.uint8)
                agreement[group] += count
        nearest[start : start + _ROWS_AT_ONCE] = agreement.argmax(axis=0)
    return nearest


def count_members(
    rows: Int8[np.ndarray, "e r"],
    row_deletions: Int[np.ndarray, "e r"],
    assignment: Int[np.ndarray, "e"],
    clusters: int,
) -> tuple[Integer[np.ndarray, "m r 23"], Int[np.ndarray, "m r"], Int[np.ndarray, "s"]]:
    """Return, by cluster, the rows with each class in each column, the summed deletions, and the number of rows.

    `assignment` has the cluster of each row, of `clusters` clusters; centres are not included. Without any rows, counts
    and deletions are empty (m = 0).
    """
    r = rows.shape[1]
    if not len(rows):  # a shallow alignment, which is common
        return np.zeros((0, r, CLASSES), np.uint8), np.zeros((0, r), np.int64), np.zeros(clusters, np.int64)
    where = np.flatnonzero(row_deletions != 0)
    row, column = np.divmod(where, r)
    deletions = np.bincount(
        assignment[row].astype(np.int64) * r + column, weights=row_deletions.reshape(-1)[where], minlength=clusters * r
    )
    summed = np.rint(deletions).astype(np.int64).reshape(clusters, r)
    return _counts(rows, assignment, clusters), summed, np.bincount(assignment, minlength=clusters)


def cluster_means(
    centres: Int8[np.ndarray, "s r"],
    centre_deletions: Integer[np.ndarray, "s r"],
    counts: Integer[np.ndarray, "m r 23"],
    deletions: Integer[np.ndarray, "m r"],
    members: Integer[np.ndarray, "s"],
) -> tuple[Float32[np.ndarray, "s r 23"], Float32[np.ndarray, "s r"]]:
    """Return the residue profile and the mean deletion count of each cluster, including its masked centre.

    The last three arguments are the results of `count_members` for the rows.
    """
    divisor = 1e-6 + 1 + members[:, None]  # AlphaFold's guard against empty clusters
    profile = np.zeros((*centres.shape, CLASSES), np.float32)
    np.put_along_axis(profile, centres[..., None].astype(np.int64), 1, axis=-1)
    summed = centre_deletions.astype(np.int64)
    if len(counts):
        profile += counts
        summed += deletions
    np.divide(profile, divisor[:, :, None], out=profile, casting="same_kind")
    return profile, (summed / divisor).astype(np.float32)


def has_deletion(deletions: Integer[np.ndarray, "n r"]) -> Float32[np.ndarray, "n r"]:
    """Return 1 where a row has a deletion count above 0 (residues before the column that the target lacks), else 0."""
    return (deletions > 0).astype(np.float32)


def deletion_value(deletions: Integer[np.ndarray, "n r"] | Float[np.ndarray, "n r"]) -> Float32[np.ndarray, "n r"]:
    """Return deletion counts d mapped to the range 0..1 as 2 / pi * arctan(d / 3) (AlphaFold 2, Suppl. Table 1)."""
    counts = deletions.astype(np.float32)  # counts may have any integer type
    return np.arctan(counts / np.float32(3)) * np.float32(2 / np.pi)


def msa_feature(
    masked_msa: Int8[np.ndarray, "s r"],
    deletions: Integer[np.ndarray, "s r"],
    cluster_profile: Float[np.ndarray, "s r 23"],
    cluster_deletion_mean: Float[np.ndarray, "s r"],
) -> Float32[np.ndarray, "s r 49"]:
    """Return the model's input channels for the cluster rows (`msa_feat`; AlphaFold 2, Suppl. Table 1).

    The channels are the one-hot residue (23), whether there is a deletion (1), the deletion value (1), the cluster
    profile (23) and the deletion value of the cluster's mean deletion count (1).
    """
    feature = np.zeros((*masked_msa.shape, 2 * CLASSES + 3), np.float32)
    np.put_along_axis(feature, masked_msa[..., None].astype(np.int64), 1, axis=-1)
    feature[..., CLASSES] = has_deletion(deletions)
    feature[..., CLASSES + 1] = deletion_value(deletions)
    feature[..., CLASSES + 2 : -1] = cluster_profile
    feature[..., -1] = deletion_value(cluster_deletion_mean)
    return feature


def target_feature(aatype: Int[np.ndarray, "r"]) -> Float32[np.ndarray, "r 22"]:
    """Return the model's input channels for the target: 0 (no segment begins here) and the one-hot residue type."""
    return np.concatenate([np.zeros((len(aatype), 1)), np.eye(UNKNOWN + 1)[aatype]], axis=1, dtype=np.float32)


def _counts(msa: Int8[np.ndarray, "n r"], group: Int[np.ndarray, "n"], groups: int) -> Int[np.ndarray, "groups r 23"]:
    """Count the rows of each group with each class in each column."""
    r = msa.shape[1]
    column, first = np.arange(r) * CLASSES, group.astype(np.int64) * (r * CLASSES)
    step = max(1, max(_CHUNK, groups * r * CLASSES) // r)  # adding takes no longer than counting
    counts: np.ndarray | None = None
    for start in range(0, len(msa), step):
        cell = msa[start : start + step].astype(np.int64, order="C")
        cell += column
        cell += first[start : start + step, None]
        chunk_counts = np.bincount(cell.ravel(), minlength=groups * r * CLASSES)
        counts = chunk_counts if counts is None else counts + chunk_counts
    assert counts is not None, "an MSA has at least one row"
    return counts.reshape(groups, r, CLASSES)
