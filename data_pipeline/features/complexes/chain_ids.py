"""Names of the chains of a complex, as in mmCIF and PDB files.

`ONLY_CHAIN` is the name of the chain of a single-chain target, `PDB_CHAIN_IDS` has the 62 names in PDB files, and
`MAX_CHAINS` is the number of default names.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import chain, islice, product
from string import ascii_lowercase, ascii_uppercase, digits

from data_pipeline.io.errors import InputError, printable

# Chain name of a target that is not a complex.
ONLY_CHAIN = "A"
# A PDB file has one column for the chain name; the order is AlphaFold's.
PDB_CHAIN_IDS = ascii_uppercase + ascii_lowercase + digits
# Chain names in mmCIF files of the Protein Data Bank.
_CHAIN_ID = re.compile(r"[A-Za-z0-9]{1,4}")
_MAX_DEFAULT_LETTERS = 3
MAX_CHAINS = len(PDB_CHAIN_IDS) + sum(len(ascii_uppercase) ** length for length in range(2, _MAX_DEFAULT_LETTERS + 1))


def default_chain_ids(count: int) -> tuple[str, ...]:
    """Return default names for `count` chains: the 62 names of PDB files, then AA, BA, ... to ZZZ.

    In names of several letters, the first letter changes fastest, as in files of the Protein Data Bank. Raise
    `InputError` for more than `MAX_CHAINS` chains.
    """
    if count > MAX_CHAINS:
        raise InputError(f"got {count:,} chains; the maximum is {MAX_CHAINS:,}")
    longer = (_longer_ids(length) for length in range(2, _MAX_DEFAULT_LETTERS + 1))
    return tuple(islice(chain(PDB_CHAIN_IDS, *longer), count))


def _longer_ids(length: int) -> Iterator[str]:
    """Return all chain IDs of this many letters, in the order AA, BA, CA, ..."""
    return ("".join(reversed(letters)) for letters in product(ascii_uppercase, repeat=length))


def check_chain_ids(ids: Sequence[str], count: int) -> None:
    """Raise `InputError` unless these are distinct names for `count` chains, each of one to four letters or digits."""
    if len(ids) != count:
        raise InputError(f"got {len(ids):,} chain IDs for {count:,} chains; pass one per chain, in order")
    seen = set[str]()
    for each in ids:
        if not _CHAIN_ID.fullmatch(each):
            raise InputError(f"a chain ID must be one to four letters A-Z, a-z or digits, got '{printable(each)}'")
        if each in seen:
            raise InputError(f"two chains have the ID '{each}'; give each chain its own ID")
        seen.add(each)


def require_pdb_chain_ids(ids: Sequence[str]) -> None:
    """Raise `InputError` unless a PDB file can hold these chains, each with a single letter or digit as its ID."""
    long_id = next((each for each in ids if len(each) > 1), None)
    if len(ids) > len(PDB_CHAIN_IDS):
        raise InputError(f"got {len(ids):,} chains, but a PDB file can have at most {len(PDB_CHAIN_IDS)}; use mmCIF")
    if long_id is not None:
        raise InputError(f"chain IDs of PDB files have a single character, got '{printable(long_id)}'; use mmCIF")


def valid_chain_ids(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of chains, or the default names for all if `check_chain_ids` rejects one or two are equal."""
    try:
        check_chain_ids(names, len(names))
    except InputError:
        return default_chain_ids(len(names))
    return tuple(names)
