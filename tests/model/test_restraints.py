"""Restraints are added to the pair stream as AlphaLink adds a matrix of all residue pairs."""

from dataclasses import replace

import pytest
import torch
from einops import rearrange

from data_pipeline.io.config import RestraintKind
from helixfold.execution.slabs import Slabs
from helixfold.execution.whole import Whole
from helixfold.model.batch import Batch
from helixfold.model.restraints import VALUES, RestraintEmbedder
from tests.support.networks import random_batch, relative_error, tiny_config, with_every_parameter_random

KINDS = ("contacts", "distances")


def restrained(kind: RestraintKind) -> Batch:
    values = torch.rand(3, VALUES[kind], generator=torch.Generator().manual_seed(5))
    pairs = torch.tensor([[1, 7], [0, 12], [5, 6]])
    return replace(random_batch(), restrained_pairs=pairs, restraint_values=values)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [slice(0, 13), slice(4, 8), slice(12, 13)])
def test_rows_have_the_embedding_of_a_dense_matrix(kind: RestraintKind, rows: slice) -> None:
    embedder, pair = RestraintEmbedder(kind, 6), torch.randn(1, 13, 13, 6)
    for parameter in embedder.parameters():
        torch.nn.init.normal_(parameter)
    batch = restrained(kind)
    assert batch.restrained_pairs is not None
    assert batch.restraint_values is not None
    values, groups = torch.zeros(13, 13, VALUES[kind]), torch.zeros(13, 13, 1)
    for index, (first, second) in enumerate(batch.restrained_pairs.tolist()):
        values[first, second] = values[second, first] = batch.restraint_values[index]
        groups[first, second] = groups[second, first] = index + 1
    dense = embedder.value(values) + embedder.group(groups) if kind == "contacts" else embedder.value(1000 * values)
    torch.testing.assert_close(embedder.pair_rows(batch, rows, pair[:, rows]), (pair + dense)[:, rows])
    without = embedder.pair_rows(random_batch(), rows, pair[:, rows]) - pair[:, rows]
    torch.testing.assert_close(without, rearrange(dense[2, 9], "c -> 1 1 1 c").expand_as(without))


@pytest.mark.parametrize("kind", KINDS)
def test_every_executor_adds_the_same_restraints(kind: RestraintKind) -> None:
    model = with_every_parameter_random(replace(tiny_config(), restraints=kind))
    batch = restrained(kind)
    with torch.no_grad():
        whole = model.trunk(Whole(), batch, None, torch.float32).pair
        slabs = model.trunk(Slabs(rows=4), batch, None, torch.float32).pair
        without = model.trunk(Whole(), random_batch(), None, torch.float32).pair
    assert relative_error(slabs, whole) < 1e-5
    assert relative_error(without, whole) > 1e-3
