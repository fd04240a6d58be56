"""Tasks say which residues are free, which atoms are aimed at or shown, and by which losses a design is judged."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from data_pipeline.io.errors import InputError
from data_pipeline.parse.structures import read_structure
from data_pipeline.residues import ATOM_ORDER, RESTYPES
from helixfold.apps.design import task
from helixfold.apps.design.inputs import task_input, task_target
from helixfold.apps.design.sequence import DesignedSequence
from helixfold.apps.design.task import FREE, DesignTask
from helixfold.model.presets import tiny, tiny_multimer

HAIRPIN = Path(__file__).parents[3] / "examples" / "structures" / "hairpin_short.pdb"
(CHAIN,) = read_structure(HAIRPIN).chains
LENGTH = len(CHAIN.sequence)
BETA = ATOM_ORDER["CB"]


def kinds(letters: str) -> list[int]:
    return [RESTYPES.index(letter) for letter in letters]


def weights(of: DesignTask) -> dict[str, float]:
    return {name: each.weight for name, each in of.losses.items() if each.weight}


def test_each_protocol_has_its_losses() -> None:
    made = {
        "hallucination": task.hallucination(5),
        "fixbb": task.fixed_backbone(CHAIN, name="x"),
        "partial": task.partial(CHAIN, [1, 2], name="x"),
        "binder": task.binder([CHAIN], 5, name="x"),
    }
    assert {name: weights(each) for name, each in made.items()} == {
        "hallucination": {"con": 1.0, "plddt": 0.1, "pae": 0.1},
        "fixbb": {"dgram": 1.0},
        "partial": {"dgram": 1.0, "con": 1.0},
        "binder": {"i_con": 1.0, "plddt": 0.1},
    }
    assert {name: each.protocol for name, each in made.items()} == {name: name for name in made}
    # None: whether a ring is closed is for the features to say; nothing named: every chain.
    assert [each.cyclic for each in made.values()] == [None] * 4
    changed = made["hallucination"].weighted({"con": 0.5, "i_pae": 2.0})
    assert weights(changed) == {"con": 0.5, "plddt": 0.1, "pae": 0.1, "i_pae": 2.0}
    assert changed.losses["con"].loss is made["hallucination"].losses["con"].loss
    with pytest.raises(InputError, match="there is no loss beauty; choose among plddt, pae,"):
        changed.weighted({"beauty": 1.0})


def test_a_backbone_is_known_and_its_sequence_is_free() -> None:
    (chain,) = task.fixed_backbone(CHAIN, name="x", fixed=[0, 2], cyclic=True).chains
    assert chain.aatype[[0, 2]].tolist() == kinds(CHAIN.sequence[0] + CHAIN.sequence[2])
    assert (np.delete(chain.aatype, [0, 2]) == FREE).all()
    assert chain.designed.all()
    assert not chain.is_shown
    np.testing.assert_array_equal(chain.positions[:, :3], CHAIN.atom_positions[:, :3])
    assert chain.mask[:, BETA].all()  # also of glycine, which has none in the file
    lacking = CHAIN.atom_mask.copy()
    lacking[3, ATOM_ORDER["C"]] = 0
    (chain,) = task.fixed_backbone(replace(CHAIN, atom_mask=lacking), name="x").chains
    assert not chain.mask[3].any()  # without its backbone, a residue has no atoms
    assert chain.mask[[2, 4], 1].all()
    assert len(chain.aatype) == LENGTH
    with pytest.raises(InputError, match="chain A has no residue with N, CA and C"):
        task.fixed_backbone(replace(CHAIN, atom_mask=np.zeros_like(lacking)), name="x")
    with pytest.raises(InputError, match="all residues are fixed, so nothing is left to design"):
        task.fixed_backbone(CHAIN, name="x", fixed=range(LENGTH))


@pytest.mark.parametrize(
    ("length", "start", "places"),
    [
        (None, 0, [2, 3, 5]),
        (LENGTH + 4, 0, [0, 1, 3]),
        (LENGTH + 4, 6, [6, 7, 9]),
        (None, 1, [1, 2, 4]),
        (7, 3, [3, 4, 6]),
    ],
)
def test_a_motif_stands_where_it_is_put(length: int | None, start: int, places: list[int]) -> None:
    (chain,) = task.partial(CHAIN, [5, 2, 3, 2], name="x", length=length, start=start, fix_sequence=True).chains
    assert len(chain.aatype) == (length or LENGTH)
    assert chain.mask[:, 1].nonzero()[0].tolist() == places
    np.testing.assert_array_equal(chain.positions[places, :3], CHAIN.atom_positions[[2, 3, 5], :3])
    assert chain.designed.nonzero()[0].tolist() == [each for each in range(len(chain.aatype)) if each not in places]
    assert chain.aatype[places].tolist() == kinds("".join(CHAIN.sequence[each] for each in (2, 3, 5)))
    (free,) = task.partial(CHAIN, [2, 3, 5], name="x", length=length, start=start).chains
    assert (free.aatype == FREE).all()


def test_a_motif_that_does_not_fit_is_refused() -> None:
    for start, length in ((5, 8), (0, 3)):
        with pytest.raises(InputError, match=f"span 4, which do not fit into {length} residues from {start + 1} on"):
            task.partial(CHAIN, [2, 3, 5], name="x", length=length, start=start)
    with pytest.raises(InputError, match="name the residues that are to be kept"):
        task.partial(CHAIN, [], name="x")


def test_a_binder_is_the_last_chain_and_its_targets_are_shown() -> None:
    other = replace(CHAIN, name="B")
    made = task.binder([other, CHAIN], 4, name="x", hotspots=[("A", 3), ("B", 1)], cyclic=True)
    assert [chain.name for chain in made.chains] == ["B", "A", "C"]
    assert made.cyclic == ("C",)
    assert [chain.hotspots.nonzero()[0].tolist() for chain in made.chains] == [[1], [3], []]
    assert [chain.is_shown for chain in made.chains] == [True, True, False]
    assert [bool(chain.designed.any()) for chain in made.chains] == [False, False, True]
    assert made.chains[0].aatype.tolist() == kinds(CHAIN.sequence)
    assert made.chains[2].aatype.tolist() == [FREE] * 4
    unknown = replace(CHAIN, sequence="X" + CHAIN.sequence[1:])
    with pytest.raises(InputError, match="residue 1 of chain A is none of the 20 amino acids, and cannot be fixed"):
        task.binder([unknown], 4, name="x")


def test_a_binder_reads_its_target_as_a_template_and_aims_at_no_atoms() -> None:
    made = task.binder([CHAIN], 4, name="x", hotspots=[("A", 3)])
    given = task_input(made, tiny_multimer())
    is_target = [1.0] * LENGTH + [0.0] * 4
    assert given.target[0].tolist() == is_target
    assert given.designed[0].tolist() == [1 - each for each in is_target]
    assert given.hotspots[0].nonzero()[:, 0].tolist() == [3]
    assert given.known is None
    assert given.is_free[0].tolist() == [not each for each in is_target]
    template = {
        name: getattr(given.batch, f"template_{name}")[0, 0]
        for name in ("aatype", "all_atom_masks", "mask")
        if name != "mask"
    }
    assert template["aatype"][:LENGTH].tolist() == kinds(CHAIN.sequence)
    assert template["aatype"][LENGTH:].tolist() == [21] * 4  # gaps
    assert template["all_atom_masks"][:LENGTH, 1].all()
    assert not template["all_atom_masks"][LENGTH:].any()
    assert given.batch.template_mask[0].tolist()[:2] == [1.0, 0.0]
    beta = given.batch.template_pseudo_beta[0, 0]
    np.testing.assert_allclose(beta[1], made.chains[0].positions[1, BETA if CHAIN.sequence[1] != "G" else 1], rtol=1e-6)
    assert not beta[LENGTH:].any()


def test_a_backbone_is_aimed_at_and_not_shown() -> None:
    made = task.fixed_backbone(CHAIN, name="x", fixed=[1])
    given = task_input(made, tiny())
    assert given.known is not None
    np.testing.assert_array_equal(given.known.mask[0], made.chains[0].mask)
    np.testing.assert_array_equal(given.known.positions[0], made.chains[0].positions.astype(np.float32))
    assert given.batch.template_mask is None or not given.batch.template_mask.any()
    free = given.batch.seq_mask.new_zeros(1, LENGTH, 20)
    sequence = given.with_fixed(DesignedSequence(logits=free, soft=free, hard=free, mixed=free))
    kind = RESTYPES.index(CHAIN.sequence[1])
    for each in (sequence.soft, sequence.hard, sequence.mixed):
        assert each[0].nonzero().tolist() == [[1, kind]]
    assert not sequence.logits.any()


def test_targets_have_placeholders_or_the_sequences_of_a_design() -> None:
    alone = task.fixed_backbone(CHAIN, name="x", fixed=[0])
    assert task_target(alone).sequence == CHAIN.sequence[0] + "G" * (LENGTH - 1)  # type: ignore[union-attr]
    assert task_target(alone, {"A": "ACDE"}).sequence == "ACDE"  # type: ignore[union-attr]
    both = task_target(task.binder([CHAIN], 3, name="x"), {"B": "WWW", "A": CHAIN.sequence}).target  # type: ignore[union-attr]
    assert (both.sequences, both.chain_ids) == ((CHAIN.sequence, "WWW"), ("A", "B"))


def test_a_flexible_target_shows_its_backbone_alone() -> None:
    made = task.binder([CHAIN], 4, name="x")
    hidden = replace(made, chains=(replace(made.chains[0], hides_sequence=True), made.chains[1]))
    shown, bare = (task_input(each, tiny()).batch for each in (made, hidden))
    length = len(CHAIN.sequence)
    assert (bare.template_aatype[0, 0, :length] == 21).all()
    assert (shown.template_aatype[0, 0, :length] < 20).all()
    assert not bare.template_all_atom_masks[0, 0, :, 5:].any()
    assert shown.template_all_atom_masks[0, 0, :, 5:].any()
    torch.testing.assert_close(bare.template_all_atom_masks[..., :5], shown.template_all_atom_masks[..., :5])
    # Whether a residue is glycine, which has its C-alpha there, is part of the sequence.
    other = torch.tensor([letter != "G" for letter in CHAIN.sequence])
    for each in (bare, shown):
        each.template_pseudo_beta[0, 0, :length] *= other[:, None]
    torch.testing.assert_close(bare.template_pseudo_beta, shown.template_pseudo_beta)
