"""Create tasks of design from structure files and words of the command line."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_pipeline.io.errors import InputError, did_you_mean, printable
from data_pipeline.parse.gemmi_chains import structure_title
from data_pipeline.parse.structures import read_structure
from data_pipeline.structure import Chain
from helixfold.apps.design import task
from helixfold.apps.design.task import DesignTask


@dataclass(frozen=True, kw_only=True)
class BinderInput:
    """Binder options of the command line: target structures, binder lengths, and the chains and hotspots to bind.

    `lengths` is the inclusive range of binder lengths in residues. Without `chains`, all chains of a structure are
    bound. `hotspots` are words such as A5-20. `cyclic` is whether the binder's ends are bonded.
    """

    structures: tuple[Path, ...]
    lengths: tuple[int, int] | None
    chains: tuple[str, ...] = ()
    hotspots: tuple[str, ...] = ()
    cyclic: bool = False


_RESIDUE_RANGE = re.compile(r"([A-Za-z0-9]*?)(-?[0-9]{1,6})(?:-(-?[0-9]{1,6}))?")


def chain_of(path: Path, name: str | None) -> Chain:
    """Return the chain of this name in a structure file; None means its only chain.

    Raise `InputError` if the file has no such chain, or if `name` is None and the file has several chains.
    """
    chains = {chain.name: chain for chain in read_structure(path).chains}
    chain_names = ", ".join(chains) or "none of protein"
    if name is None:
        if len(chains) != 1:
            raise InputError.at(path, f"name one of its chains with --chain; they are {chain_names}")
        return next(iter(chains.values()))
    if name not in chains:
        raise InputError.at(
            path, f"there is no chain {printable(name)}; its chains are {chain_names}{did_you_mean(name, chains)}"
        )
    return chains[name]


def residues_of(words: Sequence[str], chains: Sequence[Chain]) -> list[tuple[str, int]]:
    """Return the chain's name and the index, from 0, of each residue in words such as A5-20, 30 or B7.

    A word may have several of these, separated by commas. Numbers are the residue numbers of the file, and ranges
    include both ends. A word without a chain is for the only chain. Raise `InputError` for a word of another form, and
    if no residue has these numbers.
    """
    residues = []
    by_name = {chain.name: chain for chain in chains}
    for word in (part for text in words for part in text.split(",") if part):
        match = _RESIDUE_RANGE.fullmatch(word)
        if match is None:
            raise InputError(f"residues are named as 5, 5-20 or A5-20, got {printable(word)!r}")
        name = match[1] or (chains[0].name if len(chains) == 1 else "")
        if name not in by_name:
            chain_names = f"{', '.join(by_name)}{did_you_mean(name, by_name)}"
            raise InputError(f"{printable(word)!r} names no chain of the structure; they are {chain_names}")
        first, last = int(match[2]), int(match[3] or match[2])
        numbers = by_name[name].residue_numbers
        inside = np.flatnonzero((numbers >= first) & (numbers <= last))
        if not len(inside) or last < first:
            raise InputError(f"there are no residues {printable(word)} in chain {name} of the structure")
        residues += [(name, index) for index in inside.tolist()]
    return residues


def title_of(path: Path) -> str:
    """Return the name of a structure file without its suffixes, which becomes the name of its task."""
    return structure_title(path)


def fixed_backbone_of(path: Path, chain: str | None, fixed: Sequence[str], *, cyclic: bool) -> DesignTask:
    """Return the task to design a sequence for the backbone of a chain in a file (`task.fixed_backbone`).

    `chain` is as in `chain_of`, and `fixed` are words as in `residues_of`, for residues that keep their amino acid.
    """
    structure = chain_of(path, chain)
    indices = [index for _, index in residues_of(fixed, [structure])]
    return task.fixed_backbone(structure, name=title_of(path), fixed=indices, cyclic=cyclic)


def partial_of(
    path: Path, chain: str | None, kept: Sequence[str], *, length: int | None, start: int, fix_sequence: bool
) -> DesignTask:
    """Return the task to design a chain around a part of a chain in a file (`task.partial`).

    `kept` are words as in `residues_of`, for the residues of the part. `start` is the position of its first residue in
    the new chain, from 1; 0 and 1 mean the same.
    """
    structure = chain_of(path, chain)
    indices = [index for _, index in residues_of(kept, [structure])]
    return task.partial(
        structure, indices, name=title_of(path), length=length, start=max(0, start - 1), fix_sequence=fix_sequence
    )


def binder_of(path: Path, chains: Sequence[str], length: int, hotspots: Sequence[str], *, cyclic: bool) -> DesignTask:
    """Return the task to design a binder of `length` residues for these chains in a file, by default for all chains.

    `hotspots` are words as in `residues_of`. The task is named after the file.
    """
    target = list(read_structure(path).chains)
    if chains:
        target = [chain_of(path, name) for name in chains]
    if not target:
        raise InputError.at(path, "it holds no protein to bind")
    hotspot_residues = residues_of(hotspots, target)
    return task.binder(target, length, name=title_of(path), hotspots=hotspot_residues, cyclic=cyclic)
