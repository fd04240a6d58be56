"""Finding a hit's residues in its structure file, whose chain names and sequence may be other than the hit's."""

import re
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from data_pipeline.errors import printable
from data_pipeline.residues import AMBIGUOUS_LETTERS
from data_pipeline.structure import Chain, Structure
from data_pipeline.templates.pairwise_alignment import align_global
from data_pipeline.templates.result import RejectionReason, UnusableHitError

# Below this, hit and file are two proteins, not two versions of one.
_MIN_IDENTITY = 0.9
_AMBIGUOUS_TO_X = str.maketrans(AMBIGUOUS_LETTERS, "X" * len(AMBIGUOUS_LETTERS))


@dataclass(frozen=True, kw_only=True)
class HitLocation:
    """Where a hit's residues are in a chain."""

    chain: Chain
    residues: Int[np.ndarray, "n"]  # for each residue of the hit its index in the chain, -1 for none
    letters: str  # of each residue of the hit
    note: str


def locate_hit(structure: Structure, chain_name: str, letters: str, stated: int, min_residues: int) -> HitLocation:
    """The chain that has a hit's residues `letters`, which by the hit begin at index `stated` of chain `chain_name`.

    In AlphaFold's order: the named chain or else any other with exactly these residues, then the same with X for any
    residue on either side, then the named chain (or the only one) if it can be aligned at 90 % identity. If none
    fits, `UnusableHitError`.
    """
    # The named chain first, the others in the file's order.
    chains = sorted(structure.chains, key=lambda chain: chain.name != chain_name)
    if not chains:
        raise UnusableHitError(
            RejectionReason.NO_CHAIN, f"{structure.name} has no protein chain{_why(structure, chain_name)}"
        )
    # Differs from AlphaFold: with X too the named chain is tried first, not the file's first.
    for find, how in ((find_exact, ""), (find_with_unknown, "up to unknown residues")):
        for chain in chains:
            start = find(chain.sequence, letters, stated)
            if start >= 0:
                notes = [how] if how else []
                if chain.name != chain_name:
                    notes.insert(0, f"found in chain {printable(chain.name)}, not {printable(chain_name)}")
                residues = start + np.arange(len(letters))
                return HitLocation(chain=chain, residues=residues, letters=letters, note=" ".join(notes))
    return _realigned(structure, chain_name, letters, min_residues)


def find_exact(sequence: str, piece: str, stated: int) -> int:
    """Where `piece` begins in `sequence`: at index `stated` if it is there, else where it is first; -1 nowhere.

    Differs from AlphaFold: that takes the first place always, the wrong one for the later of two repeats.
    """
    return stated if sequence.startswith(piece, stated) else sequence.find(piece)


def find_with_unknown(sequence: str, piece: str, stated: int) -> int:
    """As `find_exact`, where letters for unknown residues on either side match any."""
    known = (f"[{letter}X]" if letter != "X" else "." for letter in map(re.escape, piece.translate(_AMBIGUOUS_TO_X)))
    pattern = re.compile("".join(known))
    sequence = sequence.translate(_AMBIGUOUS_TO_X)
    found = pattern.match(sequence, stated) or pattern.search(sequence)
    return -1 if found is None else found.start()


def _realigned(structure: Structure, chain_name: str, letters: str, min_residues: int) -> HitLocation:
    """The hit aligned to the sequence that its chain has in the file."""
    named = [chain for chain in structure.chains if chain.name == chain_name]
    if not named and len(structure.chains) > 1:
        names = printable(", ".join(chain.name for chain in structure.chains))
        problem = f"{structure.name} has chains {names} and no protein chain {printable(chain_name)}"
        raise UnusableHitError(RejectionReason.NO_CHAIN, problem + _why(structure, chain_name))
    # Differs from AlphaFold: that aligns to an only chain of another name, and then looks for atoms under the hit's.
    chain = named[0] if named else structure.chains[0]
    alignment = align_global(letters, chain.sequence)
    identity = alignment.identities / min(len(letters), len(chain.sequence))
    if identity < _MIN_IDENTITY:
        problem = f"only {identity:.0%} of its residues are those of chain {printable(chain.name)} in the file"
        raise UnusableHitError(RejectionReason.OTHER_SEQUENCE, f"{problem}, and {_MIN_IDENTITY:.0%} are needed")
    aligned = alignment.partner >= 0
    if aligned.sum() < min_residues:
        raise UnusableHitError(
            RejectionReason.SHORT,
            f"only {aligned.sum()} of its residues are in the file, and {min_residues} are needed",
        )
    return HitLocation(
        chain=chain,
        residues=alignment.partner,
        letters="".join(chain.sequence[index] if index >= 0 else "-" for index in alignment.partner),
        note=f"realigned to chain {printable(chain.name)} of the file, of which it is {identity:.0%}",
    )


def _why(structure: Structure, chain_name: str) -> str:
    """What the structure says about a chain that it left out."""
    why = structure.skipped.get(chain_name)
    return "" if why is None else f" ({printable(why)})"
