"""Tasks of design: chains with free and fixed residues, atoms that they are to have, and losses."""

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

Protocol = Literal["hallucination", "fixbb", "partial", "binder"]
MAX_RESIDUES = 2000
FREE = -1  # the residue type of a residue whose amino acid is designed
# Weights of losses; others are reported where a protocol has them, and weigh nothing. ColabDesign's, and of pLDDT and
# PAE in a hallucination, where it has none, a tenth of its contacts.
_WEIGHTS: dict[Protocol, dict[str, float]] = {
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

    `aatype` has the residue types that are fixed, and `FREE` elsewhere. `positions` and `mask` are atoms that the chain
    has or is to have, where they are known. `designed` residues are judged by the network's confidence. A chain that is
    `shown` stands in a template with its atoms, for models that read templates.
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
        """Return a chain of which nothing is known but its length."""
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
        """Return the sequence with glycine where a residue is free."""
        return "".join(_PLACEHOLDER if kind == FREE else RESTYPES[kind] for kind in self.aatype.tolist())


@dataclass(frozen=True, kw_only=True)
class DesignTask:
    """A design: its chains, whether any of them is a ring, and the losses with their weights, by name."""

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
        """Return the task with other weights of losses by name. Raise `InputError` for an unknown loss."""
        losses = dict(self.losses)
        for name, weight in weights.items():
            if name not in LOSSES and name not in losses:
                raise InputError(f"there is no loss {printable(name)}; choose among {', '.join(LOSSES)}")
            known = losses[name].loss if name in losses else LOSSES[name]
            losses[name] = WeightedLoss(loss=known, weight=weight)
        return replace(self, losses=losses)


def hallucination(length: int, *, name: str = "hallucination", cyclic: bool = False) -> DesignTask:
    """Return the design of a chain of so many residues, of any fold."""
    chain = DesignChain.free("A", length)
    return _task(name, "hallucination", [chain], cyclic=() if cyclic else None)


def fixed_backbone(structure: Chain, *, name: str, fixed: Sequence[int] = (), cyclic: bool = False) -> DesignTask:
    """Return the design of a sequence for the backbone of a chain; residues with the indices `fixed` keep their type.

    Residues without atoms are left out of the loss, and stay part of the chain.
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
    """Return the design of a chain that has a part of another one: the residues with the indices `positions`.

    The part stands in a chain of `length` residues, by default as long as the structure, from residue `start` on, with
    the same number of residues between its pieces as in the structure. The distances within the part shall match the
    structure, and the rest is free; with `fix_sequence` the part keeps its amino acids too.
    """
    chosen = sorted(set(positions))
    if not chosen:
        raise InputError(f"{printable(name)}: name the residues that are to be kept")
    length = len(structure.aatype) if length is None else length
    places = np.array(chosen) - (chosen[0] - start if length != len(structure.aatype) or start else 0)
    if places[0] < 0 or places[-1] >= length:
        raise InputError(
            f"{printable(name)}: the kept residues span {chosen[-1] - chosen[0] + 1}, which do not fit into {length} "
            f"residues from {start + 1} on"
        )
    known, chain = _known(structure, "A"), DesignChain.free("A", length)
    positions_of, mask, designed = chain.positions.copy(), chain.mask.copy(), chain.designed.copy()
    positions_of[places], mask[places] = known.positions[chosen], known.mask[chosen]
    designed[places] = False
    aatype = chain.aatype.copy()
    if fix_sequence:
        aatype[places] = _types(structure, chosen, name)
    made = replace(chain, positions=positions_of, mask=mask, designed=designed, aatype=aatype)
    return _task(name, "partial", [made])


def binder(
    target: Sequence[Chain], length: int, *, name: str, hotspots: Sequence[tuple[str, int]] = (), cyclic: bool = False
) -> DesignTask:
    """Return the design of a chain of so many residues that binds these chains; it is the last chain.

    `hotspots` are residues that it is to touch, by chain and index. Models that read templates see the target's atoms;
    others know its sequence alone.
    """
    names = [chain.name for chain in target]
    own = next(letter for letter in "BCDEFGHIJKLMNOPQRSTUVWXYZA" if letter not in names)
    chains = []
    for given in target:
        known = _known(given, given.name)
        marked = np.zeros(len(known.aatype), bool)
        marked[[index for chain, index in hotspots if chain == given.name]] = True
        types = _types(given, range(len(known.aatype)), name)
        nothing = np.zeros(len(types), bool)
        chains.append(replace(known, aatype=types, designed=nothing, hotspots=marked, is_shown=True))
    made = _task(name, "binder", [*chains, DesignChain.free(own, length)], cyclic=(own,) if cyclic else None)
    return replace(made, losses={**made.losses, "helix": WeightedLoss(loss=binder_helix_loss, weight=0.0)})


def _task(
    name: str, protocol: Protocol, chains: Sequence[DesignChain], *, cyclic: tuple[str, ...] | None = None
) -> DesignTask:
    losses = {each: WeightedLoss(loss=LOSSES[each], weight=weight) for each, weight in _WEIGHTS[protocol].items()}
    return DesignTask(name=name, protocol=protocol, chains=tuple(chains), losses=losses, cyclic=cyclic)


def _known(structure: Chain, name: str) -> DesignChain:
    """Return a chain whose atoms are all known, with a C-beta wherever there is a backbone."""
    positions, mask = with_ideal_betas(structure.atom_positions, structure.atom_mask)
    has_backbone = np.asarray(mask[:, [_N, _CA, _C]].all(-1))
    if not has_backbone.any():
        raise InputError(f"chain {printable(structure.name)} has no residue with N, CA and C")
    free = DesignChain.free(name, len(structure.aatype))
    return replace(free, positions=positions, mask=mask * has_backbone[:, None])


def _types(structure: Chain, indices: Sequence[int], name: str) -> Int[np.ndarray, "k"]:
    """Return the residue types of these residues; raise `InputError` if one is none of the twenty."""
    types = aatype_from_sequence(structure.sequence)[list(indices)]
    if (unknown := np.flatnonzero(types >= len(RESTYPES))).size:
        raise InputError(
            f"{printable(name)}: residue {list(indices)[int(unknown[0])] + 1} of chain {printable(structure.name)} is "
            "none of the 20 amino acids, and cannot be fixed"
        )
    return types.astype(np.int64)
