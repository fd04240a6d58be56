"""Tasks of design: chains with free and fixed residues, the atoms that they should have, and losses.

`FREE` stands for the type of a residue to design, and `MAX_RESIDUES` is the maximum size of a task.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from data_pipeline.features.sequence import aatype_from_sequence
from data_pipeline.ideal_betas import with_ideal_betas
from data_pipeline.io.errors import InputError, printable
from data_pipeline.residues import ATOM_ORDER, RESTYPES
from data_pipeline.structure import Chain
from helixfold.apps.design.losses import LOSSES, WeightedLoss, binder_helix_loss

# Kinds of design: of any fold, for the backbone of a chain, of a chain around a part of another one, or to bind a
# target.
Protocol = Literal["hallucination", "fixbb", "partial", "binder"]
MAX_RESIDUES = 2000  # of a design, with all its chains
FREE = -1  # stands for the residue type of a residue whose amino acid is designed
# Weights of losses; others are reported where a protocol has them, and weigh nothing. ColabDesign's, and of pLDDT and
# PAE in a hallucination, where it has none, a tenth of its contacts.
_LOSS_WEIGHTS: dict[Protocol, dict[str, float]] = {
    "hallucination": {"con": 1.0, "plddt": 0.1, "pae": 0.1, "helix": 0.0},
    "fixbb": {"dgram": 1.0, "con": 0.0, "plddt": 0.0, "pae": 0.0},
    "partial": {"dgram": 1.0, "con": 1.0, "plddt": 0.0, "pae": 0.0, "helix": 0.0},
    "binder": {"i_con": 1.0, "plddt": 0.1, "con": 0.0, "pae": 0.0, "i_pae": 0.0, "helix": 0.0},
}
_PLACEHOLDER = "G"  # amino acid of free residues in the features, until a sequence replaces it
_N, _CA, _C = (ATOM_ORDER[name] for name in ("N", "CA", "C"))


@dataclass(frozen=True, kw_only=True)
class DesignChain:
    """A chain of a design.

    `aatype` has the residue types that are fixed, and `FREE` elsewhere. `positions` (Å) and `mask` (1 for known atoms)
    are the atoms that the chain has or should have. Losses of confidence and contacts are computed for `designed`
    residues. `hotspots` are residues of a target that a binder should touch. With `is_shown`, the chain's atoms are
    known and put into a template, for models that read templates.
    """

    name: str
    aatype: Int[np.ndarray, "r"]
    positions: Float[np.ndarray, "r 37 3"]
    mask: Float[np.ndarray, "r 37"]
    designed: Bool[np.ndarray, "r"]
    hotspots: Bool[np.ndarray, "r"]
    is_shown: bool = False
    hides_sequence: bool = False  # its template has neither amino acids nor side chains (BindCraft's flexible targets)

    @classmethod
    def free(cls, name: str, length: int) -> "DesignChain":
        """Return a chain of `length` residues, all of them free and designed, without known atoms or hotspots."""
        return cls(
            name=name,
            aatype=np.full(length, FREE),
            positions=np.zeros((length, 37, 3), np.float32),
            mask=np.zeros((length, 37), np.float32),
            designed=np.ones(length, bool),
            hotspots=np.zeros(length, bool),
        )

    @property
    def placeholder(self) -> str:
        """Return the sequence in one-letter codes, with glycine for free residues."""
        return "".join(_PLACEHOLDER if kind == FREE else RESTYPES[kind] for kind in self.aatype.tolist())


@dataclass(frozen=True, kw_only=True)
class DesignTask:
    """Task of a design: its chains, and the losses with their weights, by name.

    `name` is the name of the target. `cyclic` names the chains whose ends are bonded: () means all, None means none.
    Raise `InputError` for fewer than 2 or more than 2,000 residues, or if no residue is free.
    """

    name: str
    protocol: Protocol
    chains: tuple[DesignChain, ...]
    losses: dict[str, WeightedLoss] = field(default_factory=dict)
    cyclic: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        residues = sum(len(chain.aatype) for chain in self.chains)
        if not 2 <= residues <= MAX_RESIDUES:
            raise InputError(f"{printable(self.name)}: a design has 2 to {MAX_RESIDUES:,} residues, got {residues:,}")
        if not any((chain.aatype == FREE).any() for chain in self.chains):
            raise InputError(f"{printable(self.name)}: all residues are fixed, so nothing is left to design")

    def weighted(self, weights: dict[str, float]) -> "DesignTask":
        """Return the task with these weights of losses, by name; other losses keep their weights.

        Losses of `LOSSES` that the task does not have are added. Raise `InputError` for an unknown loss.
        """
        losses = dict(self.losses)
        for name, weight in weights.items():
            if name not in LOSSES and name not in losses:
                raise InputError(f"there is no loss {printable(name)}; choose among {', '.join(LOSSES)}")
            loss = losses[name].loss if name in losses else LOSSES[name]
            losses[name] = WeightedLoss(loss=loss, weight=weight)
        return replace(self, losses=losses)


def hallucination(length: int, *, name: str = "hallucination", cyclic: bool = False) -> DesignTask:
    """Return the task to design one chain A of `length` residues, of any fold."""
    chain = DesignChain.free("A", length)
    return _task(name, "hallucination", [chain], cyclic=() if cyclic else None)


def fixed_backbone(structure: Chain, *, name: str, fixed: Sequence[int] = (), cyclic: bool = False) -> DesignTask:
    """Return the task to design a sequence for the backbone of a chain.

    `fixed` are indices, from 0, of residues that keep their amino acid. Residues without known atoms are left out of
    the loss for the backbone, and stay part of the chain.
    """
    chain = _known(structure, "A")
    aatype = np.full(len(chain.aatype), FREE)
    aatype[list(fixed)] = _types(structure, fixed, name)
    return _task(name, "fixbb", [replace(chain, aatype=aatype)], cyclic=() if cyclic else None)


def partial(
    structure: Chain,
    positions: Sequence[int],
    *,
    name: str,
    length: int | None = None,
    start: int = 0,
    fix_sequence: bool = False,
) -> DesignTask:
    """Return the task to design a chain around a part of another chain: its residues with the indices `positions`.

    The new chain has `length` residues, by default as many as the structure. The first residue of the part gets the
    index `start`, and pieces of the part keep the same number of residues between them. If both have their defaults,
    the part keeps its indices. Distances within the part should match the structure. All amino acids are free,
    except the part's with `fix_sequence`. All indices count from 0.
    """
    part = sorted(set(positions))
    if not part:
        raise InputError(f"{printable(name)}: name the residues that are to be kept")
    length = len(structure.aatype) if length is None else length
    new_indices = np.array(part) - (part[0] - start if length != len(structure.aatype) or start else 0)
    if new_indices[0] < 0 or new_indices[-1] >= length:
        raise InputError(
            f"{printable(name)}: the kept residues span {part[-1] - part[0] + 1}, which do not fit into {length} "
            f"residues from {start + 1} on"
        )
    source_chain, chain = _known(structure, "A"), DesignChain.free("A", length)
    positions_of, mask, designed = chain.positions.copy(), chain.mask.copy(), chain.designed.copy()
    positions_of[new_indices], mask[new_indices] = source_chain.positions[part], source_chain.mask[part]
    designed[new_indices] = False
    aatype = chain.aatype.copy()
    if fix_sequence:
        aatype[new_indices] = _types(structure, part, name)
    new_chain = replace(chain, positions=positions_of, mask=mask, designed=designed, aatype=aatype)
    return _task(name, "partial", [new_chain])


def binder(
    target: Sequence[Chain], length: int, *, name: str, hotspots: Sequence[tuple[str, int]] = (), cyclic: bool = False
) -> DesignTask:
    """Return the task to design a chain of `length` residues that binds the chains in `target`; it is the last chain.

    The residues of the target are fixed. `hotspots` are target residues to touch, by the chain's name and the index
    from 0. Models that read templates get the target's atoms; others get only its sequence. With `cyclic`, the ends of
    the binder are bonded.
    """
    names = [chain.name for chain in target]
    binder_name = next(letter for letter in "BCDEFGHIJKLMNOPQRSTUVWXYZA" if letter not in names)
    chains = []
    for target_chain in target:
        known_chain = _known(target_chain, target_chain.name)
        is_hotspot = np.zeros(len(known_chain.aatype), bool)
        is_hotspot[[index for chain, index in hotspots if chain == target_chain.name]] = True
        types = _types(target_chain, range(len(known_chain.aatype)), name)
        nothing = np.zeros(len(types), bool)
        chains.append(replace(known_chain, aatype=types, designed=nothing, hotspots=is_hotspot, is_shown=True))
    task = _task(
        name, "binder", [*chains, DesignChain.free(binder_name, length)], cyclic=(binder_name,) if cyclic else None
    )
    return replace(task, losses={**task.losses, "helix": WeightedLoss(loss=binder_helix_loss, weight=0.0)})


def _task(
    name: str, protocol: Protocol, chains: Sequence[DesignChain], *, cyclic: tuple[str, ...] | None = None
) -> DesignTask:
    losses = {each: WeightedLoss(loss=LOSSES[each], weight=weight) for each, weight in _LOSS_WEIGHTS[protocol].items()}
    return DesignTask(name=name, protocol=protocol, chains=tuple(chains), losses=losses, cyclic=cyclic)


def _known(structure: Chain, name: str) -> DesignChain:
    """Return a chain with the atoms of `structure`, with C-beta atoms added, at residues with a complete backbone.

    All its residues are free and designed. Raise `InputError` if no residue has a backbone.
    """
    positions, mask = with_ideal_betas(structure.atom_positions, structure.atom_mask)
    has_backbone = np.asarray(mask[:, [_N, _CA, _C]].all(-1))
    if not has_backbone.any():
        raise InputError(f"chain {printable(structure.name)} has no residue with N, CA and C")
    free = DesignChain.free(name, len(structure.aatype))
    return replace(free, positions=positions, mask=mask * has_backbone[:, None])


def _types(structure: Chain, indices: Sequence[int], name: str) -> Int[np.ndarray, "k"]:
    """Return the residue types at these indices; raise `InputError` if one is not one of the twenty amino acids."""
    types = aatype_from_sequence(structure.sequence)[list(indices)]
    if (unknown := np.flatnonzero(types >= len(RESTYPES))).size:
        raise InputError(
            f"{printable(name)}: residue {list(indices)[int(unknown[0])] + 1} of chain {printable(structure.name)} is "
            "none of the 20 amino acids, and cannot be fixed"
        )
    return types.astype(np.int64)
