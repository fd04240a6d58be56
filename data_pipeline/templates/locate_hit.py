"""Find a hit's residues in its structure file, whose chain names and sequence may differ from the hit's."""

import re
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from data_pipeline.errors import printable
from data_pipeline.residues import AMBIGUOUS_LETTERS
from data_pipeline.structure import Chain, Structure
from data_pipeline.templates.pairwise_alignment import align
from data_pipeline.templates.result import RejectionReason, UnusableHitError

# With less identity, the hit and the file hold two different proteins, not two versions of one.
_MIN_IDENTITY = 0.9
_AMBIGUOUS_TO_X = str.maketrans(AMBIGUOUS_LETTERS, "X" * len(AMBIGUOUS_LETTERS))


@dataclass(frozen=True, kw_only=True)
class HitLocation:
    """Location of a hit's residues in a chain of its structure file."""

    chain: Chain
    residues: Int[np.ndarray, "n"]  # for each residue of the hit its index in the chain, -1 if it has none
    letters: str  # one-letter code of each residue of the hit, "-" if the chain lacks it
    note: str  # how the location differs from what the hit states, else ""


def locate_hit(structure: Structure, chain_name: str, letters: str, stated: int, min_residues: int) -> HitLocation:
    """Find a hit's residues `letters` in a structure; the hit states that they begin at index `stated` of `chain_name`.

    The order is AlphaFold's. First choice is a chain with exactly these residues, the named chain before the others;
    then a chain with these residues where X on either side matches any residue; then the named chain (or the only
    chain) if it can be aligned with at least 90 % identity. Raise `UnusableHitError` if no chain fits.
    """
    # The named chain comes first, then the others in file order.
    chains = sorted(structure.chains, key=lambda chain: chain.name != chain_name)
    if not chains:
        raise UnusableHitError(
            RejectionReason.NO_CHAIN, f"{structure.name} has no protein chain{_why(structure, chain_name)}"
        )
    # Differs from AlphaFold: also with X the named chain is tried first. AlphaFold begins with the file's first chain.
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
    """Return the index at which `piece` begins in `sequence`, or -1 if it does not occur.

    This is `stated` if the piece begins there, else the index of its first occurrence.

    Differs from AlphaFold, which always takes the first occurrence: the wrong one for the later of two repeats.
    """
    return stated if sequence.startswith(piece, stated) else sequence.find(piece)


def find_with_unknown(sequence: str, piece: str, stated: int) -> int:
    """Return the same index as `find_exact`, but let letters for unknown residues on either side match any letter."""
    known = (f"[{letter}X]" if letter != "X" else "." for letter in map(re.escape, piece.translate(_AMBIGUOUS_TO_X)))
    pattern = re.compile("".join(known))
    sequence = sequence.translate(_AMBIGUOUS_TO_X)
    found = pattern.match(sequence, stated) or pattern.search(sequence)
    return -1 if found is None else found.start()


def _realigned(structure: Structure, chain_name: str, letters: str, min_residues: int) -> HitLocation:
    """Locate a hit by aligning it to the sequence that its chain has in the file."""
    named = [chain for chain in structure.chains if chain.name == chain_name]
    if not named and len(structure.chains) > 1:
        names = printable(", ".join(chain.name for chain in structure.chains))
        problem = f"{structure.name} has chains {names} and no protein chain {printable(chain_name)}"
        raise UnusableHitError(RejectionReason.NO_CHAIN, problem + _why(structure, chain_name))
    # Differs from AlphaFold, which aligns to an only chain of another name, then looks for atoms under the hit's name.
    chain = named[0] if named else structure.chains[0]
    alignment = align("global", letters, chain.sequence)
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
    """Return, in brackets, the reason why a chain of the file is not in the structure; empty if none is known."""
    why = structure.skipped.get(chain_name)
    return "" if why is None else f" ({printable(why)})"
