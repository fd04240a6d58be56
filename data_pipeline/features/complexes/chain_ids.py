"""Name the chains of a complex, as mmCIF and PDB files do."""

import re
from collections.abc import Iterator, Sequence
from itertools import chain, islice, product
from string import ascii_lowercase, ascii_uppercase, digits

from data_pipeline.io.errors import InputError, printable

# The name of the chain of a target that is no complex.
ONLY_CHAIN = "A"
# A PDB file has one column for a chain's name; this is AlphaFold's order of what it can hold.
PDB_CHAIN_IDS = ascii_uppercase + ascii_lowercase + digits
# An mmCIF file of the Protein Data Bank names a chain by up to four of these.
_CHAIN_ID = re.compile(r"[A-Za-z0-9]{1,4}")
_LONGEST_DEFAULT = 3  # letters
MAX_CHAINS = len(PDB_CHAIN_IDS) + sum(len(ascii_uppercase) ** length for length in range(2, _LONGEST_DEFAULT + 1))


def default_chain_ids(count: int) -> tuple[str, ...]:
    """Return the names of so many chains: the 62 that a PDB file can hold, then AA, BA, ... up to ZZZ.

    From two letters on, the first one changes fastest, as in files of the Protein Data Bank. Raise `InputError` for
    more than `MAX_CHAINS` chains.
    """
    if count > MAX_CHAINS:
        raise InputError(f"{count:,} chains are more than can be named; at most {MAX_CHAINS:,} are")
    longer = (_longer_ids(length) for length in range(2, _LONGEST_DEFAULT + 1))
    return tuple(islice(chain(PDB_CHAIN_IDS, *longer), count))


def _longer_ids(length: int) -> Iterator[str]:
    return ("".join(reversed(letters)) for letters in product(ascii_uppercase, repeat=length))


def check_chain_ids(ids: Sequence[str], count: int) -> None:
    """Raise `InputError` unless these are different names for `count` chains, each one to four letters or digits."""
    if len(ids) != count:
        raise InputError(f"{len(ids):,} chain IDs for {count:,} chains; give one for each, in the order of the chains")
    seen = set[str]()
    for each in ids:
        if not _CHAIN_ID.fullmatch(each):
            raise InputError(f"'{printable(each)}' is no chain ID; it is one to four letters A-Z, a-z or digits")
        if each in seen:
            raise InputError(f"two chains are named '{each}'; give each chain its own ID")
        seen.add(each)


def require_pdb_chain_ids(ids: Sequence[str]) -> None:
    """Raise `InputError` unless a PDB file can name these chains, each by a single letter or digit."""
    long = next((each for each in ids if len(each) > 1), None)
    if len(ids) > len(PDB_CHAIN_IDS):
        raise InputError(
            f"{len(ids):,} chains are more than a PDB file can name, which is {len(PDB_CHAIN_IDS)}; use mmCIF"
        )
    if long is not None:
        raise InputError(f"chain '{printable(long)}' has no place in a PDB file, whose chain IDs are single; use mmCIF")
