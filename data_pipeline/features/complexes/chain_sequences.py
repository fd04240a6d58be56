"""Read the chains of a complex from text with colons between chains and `*` before a number of copies.

`CHAIN_SEPARATOR` is the colon, and `COPIES_MARK` the `*`.
"""

from data_pipeline.features.complexes.chain_ids import MAX_CHAINS
from data_pipeline.parse.fasta import MAX_RESIDUES, find_invalid_letter

CHAIN_SEPARATOR, COPIES_MARK = ":", "*"
_MAX_DIGITS = 9


class ChainSequenceError(ValueError):
    """Error for invalid text of a complex, with the index (from 0) of the invalid letter or chain in the text."""

    def __init__(self, index: int, problem: str) -> None:
        super().__init__(problem)
        self.index = index


def split_chains(text: str) -> tuple[str, ...]:
    """Return the sequence of each chain in text such as "MKT:AYI*2", which has one chain MKT and two chains AYI.

    Letters must be upper case, without blanks; a `*` without a number is a stop codon and is dropped. Raise
    `ChainSequenceError` for an empty chain, for letters that are not residues, and for too many chains or residues.
    """
    chains: list[str] = []
    start = residues = 0
    for chain_number, part in enumerate(text.split(CHAIN_SEPARATOR), start=1):
        sequence, _, copies = part.partition(COPIES_MARK)
        if not sequence:
            raise ChainSequenceError(start, f"chain {chain_number} is empty; write residues on both sides of ':'")
        if (invalid := find_invalid_letter(sequence)) is not None:
            raise ChainSequenceError(start + invalid[0], invalid[1])
        count = _number_of_copies(copies, start + len(sequence) + 1)
        residues += count * len(sequence)
        if len(chains) + count > MAX_CHAINS:
            raise ChainSequenceError(start, f"there are more chains than can be named, which is {MAX_CHAINS:,}")
        if residues > MAX_RESIDUES:
            raise ChainSequenceError(start, f"the chains have more than the maximum of {MAX_RESIDUES:,} residues")
        chains += [sequence] * count
        start += len(part) + 1
    return tuple(chains)


def _number_of_copies(digits: str, start: int) -> int:
    """Return the number after a `*`, or 1 if there is none."""
    if not digits:
        return 1
    if not (digits.isascii() and digits.isdecimal()):
        wrong = next(index for index, letter in enumerate(digits) if not (letter.isascii() and letter.isdecimal()))
        raise ChainSequenceError(
            start + wrong, "expected a number of copies after '*', as in MKT*3; a stop codon can only end a chain"
        )
    if len(digits) > _MAX_DIGITS:
        raise ChainSequenceError(start, f"there are more chains than can be named, which is {MAX_CHAINS:,}")
    if not int(digits):
        raise ChainSequenceError(start, "the number of copies must be at least 1")
    return int(digits)
