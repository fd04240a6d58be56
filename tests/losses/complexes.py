"""Small complexes for tests of losses: a network's outputs, and labels with the truth of every equal chain."""

from functools import cache

import numpy as np
import torch
from torch import Tensor

from data_pipeline.residues import ATOM37_MASK, RESTYPES, UNKNOWN
from helixfold.execution.whole import Whole
from helixfold.losses.labels import ComplexLabels, Labels
from helixfold.model.batch import MultimerBatch
from helixfold.model.outputs import Outputs
from tests.losses.chains import labels_from
from tests.support.networks import random_complex, tiny_multimer_config, with_every_parameter_random


def a_complex(chains: str = "ABA", residues: int = 15) -> MultimerBatch:
    """A complex in which equal chains have equal sequences, each with a glycine and an unknown residue."""
    batch = random_complex(chains, residues)
    first = {letter: batch.aatype[batch.asym_id == 1 + chains.index(letter)] for letter in chains}
    for types in first.values():
        types[1], types[2] = RESTYPES.index("G"), UNKNOWN
    for number, letter in enumerate(chains, start=1):
        batch.aatype[batch.asym_id == number] = first[letter]
    return batch


@cache
def outputs_of(batch: MultimerBatch) -> Outputs:
    with torch.no_grad():
        return with_every_parameter_random(tiny_multimer_config())(Whole(), [batch])


def random_truth(batch: MultimerBatch, seed: int = 0, observed: float = 0.9) -> tuple[Tensor, Tensor]:
    """Atoms (b r 37 3) and their mask, every chain somewhere else."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*batch.aatype.shape, *shape, generator=generator)

    places = 12 * torch.randn(int(batch.asym_id.max()) + 1, 3, generator=generator)
    positions = places[batch.asym_id][..., None, :] + 2 * randn(1, 3).cumsum(1) + randn(37, 3)
    exists = torch.tensor(np.asarray(ATOM37_MASK))[batch.aatype]
    return positions, exists * (torch.rand(exists.shape, generator=generator) < observed)


def labels_of_complex(batch: MultimerBatch, positions: Tensor, mask: Tensor) -> ComplexLabels:
    """Labels of a whole complex with these atoms, and the atoms of all copies of each chain."""
    rows = {name: torch.zeros(*batch.msa_feat.shape[:3], dtype=torch.int64) for name in ("true_msa",)}
    own = labels_from(batch.aatype, positions, mask, **rows, bert_mask=torch.ones(batch.msa_mask.shape))
    copies = int(batch.sym_id.max())
    found = {"positions": positions.new_zeros(1, copies, *positions.shape[1:])}
    found["mask"] = mask.new_zeros(1, copies, *mask.shape[1:])
    for number in batch.asym_id.unique():
        here = batch.asym_id[0] == number
        entity = batch.entity_id[0, here][0]
        for other in batch.asym_id[batch.entity_id == entity].unique():
            there = batch.asym_id[0] == other
            copy = int(batch.sym_id[0, there][0]) - 1
            found["positions"][0, copy, here] = own.all_atom_positions[0, there]
            found["mask"][0, copy, here] = own.all_atom_mask[0, there]
    values = {name: getattr(own, name) for name in Labels.__dataclass_fields__}
    return ComplexLabels(**values, copies_positions=found["positions"], copies_mask=found["mask"])
