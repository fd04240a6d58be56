"""No loss, metric or gradient depends on what masked residues hold: all are those of the real residues alone.

Expected values are computed on smaller inputs, which lack the masked residues; no mask makes them.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from helixfold.execution.nested import with_tensors_changed
from helixfold.losses.config import LossConfig, complexes, finetuning
from helixfold.losses.labels import ComplexLabels, Labels
from helixfold.losses.total import Losses, total_loss
from helixfold.model.batch import Batch, MultimerBatch
from helixfold.model.outputs import Logits, Outputs, PredictedStructure, Representations
from tests.losses.chains import labels_of, random_structure, residue_types
from tests.losses.complexes import labels_of_complex
from tests.support.networks import random_batch, random_complex

# Residues with special atoms or without any: glycine, X, ambiguous names, proline and cysteine.
SEQUENCE = "GDXFPYCEGRKWNHGXDFPYECS"
LENGTH = len(SEQUENCE)
# Of each sample, what is masked: the first residue, some in the middle, also a glycine and an X, and the end.
MASKED = ((0, 2, 5, 6, 14, 20, 21, 22), (3, 8, 9, 10, 15))
MOST = 1.0e4  # what no atom's coordinate is, without an overflow of its square


def axes_of(field: Any) -> list[str]:
    kinds = [field.type, *get_args(field.type)]
    return next((kind.dim_str.split() for kind in kinds if hasattr(kind, "dim_str")), [])


def dropped(part: Any, sample: int, kept: Sequence[int]) -> Any:
    """One sample of a batch, of labels or of outputs, with these residues only."""
    changes: dict[str, Any] = {}
    for field in fields(part):
        value = getattr(part, field.name)
        if isinstance(value, Tensor):
            axes = axes_of(field)
            batch = axes.index("b")
            value = value.narrow(batch, sample, 1)
            for dim, axis in enumerate(axes):
                if axis == "r":
                    value = value.index_select(dim, torch.tensor(kept))
        elif hasattr(value, "__dataclass_fields__"):
            value = dropped(value, sample, kept)
        changes[field.name] = value
    return replace(part, **changes)


def filled(
    part: Any, sample: int, rows: Sequence[int], *, zero: tuple[str, ...] = (), leave: tuple[str, ...] = ()
) -> None:
    """Overwrite masked residues: fields in `zero` with 0, other numbers with large ones, residue types at random."""
    for field in fields(part):
        value = getattr(part, field.name)
        if not isinstance(value, Tensor) or field.name in leave:
            continue
        axes = axes_of(field)
        for dim, axis in enumerate(axes):
            if axis != "r":
                continue
            view = value.select(axes.index("b"), sample).movedim(dim - (dim > axes.index("b")), 0)
            if field.name in zero:
                view[list(rows)] = 0
            elif value.is_floating_point():
                view[list(rows)] = MOST * torch.randn(view[list(rows)].shape)
            else:
                view[list(rows)] = torch.randint(0, 20, view[list(rows)].shape)


def outputs_for(structure: PredictedStructure, rows: int) -> Outputs:
    """Random logits of all heads beside a structure."""
    b, r = structure.mask.shape[:2]

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(b, *shape)

    logits = Logits(
        distogram=torch.randn(b, r, r, 64),
        masked_msa=torch.randn(b, rows, r, 23),
        lddt=torch.randn(b, r, 50),
        experimentally_resolved=torch.randn(b, r, 37),
        aligned_error=torch.randn(b, r, r, 64),
    )
    nothing = Representations(msa=zeros(1, r, 1), msa_first_row=zeros(r, 1), pair=zeros(r, r, 1), single=zeros(r, 1))
    return Outputs(representations=nothing, structure=structure, logits=logits)


LABEL_MASKS = (
    *("all_atom_mask", "atom37_atom_exists", "atom14_atom_exists", "atom14_gt_exists", "atom14_alt_gt_exists"),
    *("atom14_atom_is_ambiguous", "pseudo_beta_mask", "bert_mask", "copies_mask"),
)
DIFFERENTIATED = ("frames", "rigid_groups", "atom14", "torsions", "unnormalized_torsions", "positions")


def joined(parts: Sequence[Any]) -> Any:
    """Samples of one batch."""
    changes = {
        field.name: torch.cat([getattr(part, field.name) for part in parts], axes_of(field).index("b"))
        for field in fields(parts[0])
        if isinstance(getattr(parts[0], field.name), Tensor)
    }
    return replace(parts[0], **changes)


def monomers() -> tuple[Outputs, Batch, Labels]:
    aatype = residue_types(SEQUENCE).expand(2, -1).contiguous()
    structure = random_structure(aatype, 1, spread=4.0)
    labels = labels_of(random_structure(aatype, 2, spread=4.0), aatype, (torch.rand(2, LENGTH, 37) < 0.9).float())
    batch = joined([replace(random_batch(residues=LENGTH, seed=seed), aatype=aatype[:1]) for seed in range(2)])
    index = torch.arange(LENGTH) + 4 * (torch.arange(LENGTH) > 11)
    labels = replace(labels, use_clamped_fape=torch.tensor([1.0, 0.0]))
    return outputs_for(structure, rows=2), replace(batch, residue_index=index.repeat(2, 1)), labels


def complexes_of(chains: str) -> tuple[Outputs, MultimerBatch, ComplexLabels]:
    """Chains whose numbering begins with 0 and restarts in each; equal ones of the truth are exchanged."""
    letters = iter(SEQUENCE)
    batch = random_complex(chains, LENGTH)
    firsts = {letter: chains.index(letter) + 1 for letter in chains}
    types = residue_types("".join(letters))
    for number, letter in enumerate(chains, start=1):
        here, first = batch.asym_id[0] == number, batch.asym_id[0] == firsts[letter]
        types[0, here] = types[0, first][: int(here.sum())]
    batch = replace(batch, aatype=types)
    structure = random_structure(types, 1, spread=4.0)
    truth = random_structure(types, 2, spread=4.0)
    observed = truth.mask * (torch.rand(truth.mask.shape) < 0.95)
    # Farther apart than they are predicted.
    apart = truth.positions + batch.asym_id[..., None, None] * torch.tensor([10.0, 0.0, 0.0])
    labels = labels_of_complex(batch, apart * truth.mask[..., None], observed)
    return outputs_for(structure, rows=batch.msa_mask.shape[1]), batch, labels


def with_masked(
    outputs: Outputs, batch: Batch, labels: Labels, masked: Sequence[Sequence[int]]
) -> tuple[Outputs, Batch, Labels]:
    """The same with residues of each sample masked, and garbage in them."""
    outputs, batch, labels = (with_tensors_changed(Tensor.clone, part) for part in (outputs, batch, labels))
    for sample, rows in enumerate(masked):
        filled(outputs.structure, sample, rows, zero=("mask", "atom14_mask"))
        filled(outputs.logits, sample, rows)
        # The numbers of masked residues are those of other residues, as in padding.
        filled(
            batch,
            sample,
            rows,
            zero=("seq_mask", "msa_mask", "residue_index"),
            leave=("asym_id", "entity_id", "sym_id"),
        )
        filled(labels, sample, rows, zero=LABEL_MASKS)
    return outputs, batch, labels


def with_gradients(outputs: Outputs) -> tuple[Outputs, dict[str, Tensor]]:
    leaves = {name: getattr(outputs.structure, name).clone().requires_grad_() for name in DIFFERENTIATED}
    heads = {field.name: getattr(outputs.logits, field.name).clone().requires_grad_() for field in fields(Logits)}
    made = replace(outputs, structure=replace(outputs.structure, **leaves), logits=replace(outputs.logits, **heads))
    return made, leaves | heads


def gradient(losses: Losses, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    found = torch.autograd.grad(losses.weighted.sum(), list(leaves.values()), allow_unused=True)
    return {
        name: torch.zeros_like(leaf) if each is None else each
        for (name, leaf), each in zip(leaves.items(), found, strict=True)
    }


def agrees(given: tuple[Outputs, Batch, Labels], masked: Sequence[Sequence[int]], config: LossConfig) -> None:
    outputs, batch, labels = with_masked(*given, masked)
    outputs, leaves = with_gradients(outputs)
    found = total_loss(outputs, batch, labels, config)
    gradients = gradient(found, leaves)
    axes = {field.name: axes_of(field) for kind in (PredictedStructure, Logits) for field in fields(kind)}
    for sample, rows in enumerate(masked):
        kept = [row for row in range(LENGTH) if row not in rows]
        alone, small = with_gradients(dropped(given[0], sample, kept))
        expected = total_loss(alone, dropped(given[1], sample, kept), dropped(given[2], sample, kept), config)
        assert all(value.abs() > 0 for name, value in expected.terms().items())
        for name, value in (expected.terms() | expected.metrics).items():
            each = (found.terms() | found.metrics)[name][sample : sample + 1]
            torch.testing.assert_close(
                each, value, rtol=2e-4, atol=1e-6, equal_nan=True, msg=f"{name}: {each}, {value}"
            )
        for name, theirs in gradient(expected, small).items():
            ours = gradients[name].narrow(axes[name].index("b"), sample, 1)
            for dim, axis in enumerate(axes[name]):
                if axis == "r":
                    assert not ours.index_select(dim, torch.tensor(rows)).any(), name
                    ours = ours.index_select(dim, torch.tensor(kept))
            assert float((ours - theirs).abs().max()) <= 1e-3 * float(theirs.abs().max()) + 1e-7, name


def test_losses_of_chains_are_those_without_their_masked_residues() -> None:
    torch.manual_seed(0)
    agrees(monomers(), MASKED, replace(finetuning(), smooth_lddt=0.3))


@pytest.mark.parametrize("chains", ["AB", "ABAC", "AAB"])
def test_losses_of_complexes_are_those_without_their_masked_residues(chains: str) -> None:
    torch.manual_seed(len(chains))
    given = complexes_of(chains)
    agrees(given, MASKED[:1], replace(complexes(finetuning()), smooth_lddt=0.3))


def test_a_whole_chain_may_be_masked() -> None:
    torch.manual_seed(3)
    given = complexes_of("ABC")
    second = (given[1].asym_id[0] == 2).nonzero()[:, 0].tolist()
    agrees(given, [second], replace(complexes(finetuning()), smooth_lddt=0.3))


def test_unobserved_atoms_of_the_truth_may_be_anywhere() -> None:
    """Atoms that were not observed, also C-beta and one of two exchangeable ones, hold large numbers."""
    torch.manual_seed(1)
    outputs, batch, labels = monomers()
    config = replace(finetuning(), smooth_lddt=0.3)
    expected = total_loss(outputs, batch, labels, config)
    far = labels.all_atom_positions + MOST * (1 - labels.all_atom_mask)[..., None] * torch.randn(2, LENGTH, 37, 3)
    beta = labels.pseudo_beta + MOST * (1 - labels.pseudo_beta_mask)[..., None]
    found = total_loss(outputs, batch, replace(labels, all_atom_positions=far, pseudo_beta=beta), config)
    torch.testing.assert_close(found.terms(), expected.terms(), rtol=1e-5, atol=1e-7)
