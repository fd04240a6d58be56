"""Download sequences from UniProt and the RCSB PDB, and structures from AlphaFold DB and the RCSB PDB, by their ids.

Downloads are stored in a cache directory and reused.
"""

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from data_pipeline.io.addresses import without_password
from data_pipeline.io.errors import InputError, NoNetworkError, RequestError, UnusableAnswerError, printable
from data_pipeline.io.files import atomic_write
from data_pipeline.io.site_configuration import site_configuration
from data_pipeline.parse.fasta import kind_problem
from data_pipeline.parse.mmcif import MAX_MMCIF_BYTES

# https://www.uniprot.org/help/accession_numbers, with an isoform number.
_UNIPROT_ACCESSION = re.compile(r"([OPQ][0-9][A-Z0-9]{3}[0-9]|[A-NR-Z][0-9]([A-Z][A-Z0-9]{2}[0-9]){1,2})(-[0-9]{1,3})?")
_PDB_ENTRY = re.compile(r"[1-9][A-Z0-9]{3}(_[A-Za-z0-9]{1,4})?")
_MAX_FASTA_BYTES = 2**22
_ATTEMPTS, _FIRST_PAUSE, _MAX_PAUSE, _TIMEOUT_SECONDS = 3, 1.0, 10.0, 60.0
_BUSY_STATUSES = (408, 429, 500, 502, 503, 504)
_MISSING_STATUSES = (400, 404, 410)


@dataclass(frozen=True, kw_only=True)
class EntryServers:
    """Addresses of the servers without a trailing slash; the keys of configuration files have the same names.

    Sequences of PDB entries come from `pdb_sequence_server`, their structures from `pdb_structure_server`, predicted
    structures from `alphafold_server`.
    """

    uniprot_server: str = "https://rest.uniprot.org"
    pdb_sequence_server: str = "https://www.rcsb.org"
    pdb_structure_server: str = "https://files.rcsb.org"
    alphafold_server: str = "https://alphafold.ebi.ac.uk"

    @classmethod
    def configured(cls) -> "EntryServers":
        """Return the servers in the configuration files; the defaults are the public servers."""
        site = site_configuration()
        named = {each.name: getattr(site, each.name) for each in fields(cls)}
        return cls(**{name: address.rstrip("/") for name, address in named.items() if address is not None})


def is_entry(word: str) -> bool:
    """Return whether a word is a UniProt accession (P69905), or a PDB id with or without a chain (4HHB, 4HHB_A)."""
    entry, line, chain = word.partition("_")
    return bool(_UNIPROT_ACCESSION.fullmatch(word.upper()) or _PDB_ENTRY.fullmatch(f"{entry.upper()}{line}{chain}"))


def fetch_sequence(word: str, cache: Path, servers: EntryServers, say: Callable[[str], object]) -> Path:
    """Return the path of a FASTA file for a UniProt accession or a PDB id.

    A PDB id without a chain means all protein chains of the entry, as one complex. The file is in the directory
    `cache`, and is only downloaded if it is missing; `say` then receives a line for the user. Raise `InputError` if the
    entry or its chain does not exist, or if it is not in the cache and the server cannot be reached.
    """
    entry, _, chain = word.partition("_")
    entry = entry.upper()
    if _UNIPROT_ACCESSION.fullmatch(entry):
        url = f"{servers.uniprot_server}/uniprotkb/{entry}.fasta"
        return _cached(cache / f"{entry}.fasta", url, _MAX_FASTA_BYTES, say, partial(_uniprot_fasta, entry))
    url = f"{servers.pdb_sequence_server}/fasta/entry/{entry}"
    path = cache / (f"{entry}_{chain}.fasta" if chain else f"{entry}.fasta")
    return _cached(path, url, _MAX_FASTA_BYTES, say, partial(_pdb_fasta, entry, chain))


def fetch_structure(word: str, cache: Path, servers: EntryServers, say: Callable[[str], object]) -> Path:
    """Return the path of an mmCIF file for a PDB id, or for a UniProt accession from AlphaFold DB.

    The cache and `say` are used as in `fetch_sequence`. Raise `InputError` as there, and for a PDB id with a chain.
    """
    entry = word.upper()
    path = cache / f"{entry}.cif"
    if "_" in entry:
        raise InputError(f"{printable(word)}: expected an entry without a chain; pass {entry.partition('_')[0]}")
    if _PDB_ENTRY.fullmatch(entry) or path.is_file():
        return _cached(
            path, f"{servers.pdb_structure_server}/download/{entry}.cif", MAX_MMCIF_BYTES, say, partial(_mmcif, entry)
        )
    answer = _get(entry, f"{servers.alphafold_server}/api/prediction/{entry}", _MAX_FASTA_BYTES)
    try:
        path_on_server = urlsplit(json.loads(answer)[0]["cifUrl"]).path
    except (ValueError, LookupError, TypeError) as error:
        raise InputError(f"{entry}: the answer of {servers.alphafold_server} has no structure") from error
    # Use the configured server, because the answer of a mirror may contain another address.
    return _cached(path, f"{servers.alphafold_server}{path_on_server}", MAX_MMCIF_BYTES, say, partial(_mmcif, entry))


def _cached(path: Path, url: str, limit: int, say: Callable[[str], object], convert: Callable[[bytes], bytes]) -> Path:
    """Return `path`; if it does not exist, first download `url`, convert it and write it there.

    `limit` is the maximum size of the download in bytes. `say` gets a message after a download.
    """
    if not path.is_file():
        content = convert(_get(path.stem, url, limit))
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            temporary.write_bytes(content)
        say(f"{path.stem}: {printable(without_password(url))}")
    return path


def _get(name: str, url: str, limit: int) -> bytes:
    """Return the body of a response, with retries; raise `InputError` if there is none."""
    from data_pipeline.io.http import pause, send  # noqa: PLC0415  loads urllib3, which most runs do not need

    for attempt in range(_ATTEMPTS):
        try:
            with send("GET", url, timeout=_TIMEOUT_SECONDS, max_bytes=limit, redirects=True) as response:
                if response.status == 200:
                    return response.read_all()
                if response.status in _MISSING_STATUSES:
                    raise InputError(f"{name}: {_host(url)} has no such entry")
                problem = f"status {response.status} {printable(response.reason)}"
                if response.status not in _BUSY_STATUSES:
                    break
        except RequestError as error:
            problem = str(error)
            if isinstance(error, NoNetworkError | UnusableAnswerError):
                break
        if attempt + 1 < _ATTEMPTS:
            time.sleep(pause(attempt, first=_FIRST_PAUSE, longest=_MAX_PAUSE))
    raise InputError(
        f"{name}: cannot be fetched from {_host(url)} ({problem}); without a network, download the file elsewhere and "
        "pass its path"
    )


def _host(url: str) -> str:
    """Return the host of an address, without user and password."""
    return printable(urlsplit(url).netloc.rpartition("@")[2])


def _mmcif(name: str, content: bytes) -> bytes:
    """Return the content unchanged; raise `InputError` if it is no mmCIF file."""
    if not content.lstrip().lower().startswith(b"data_"):
        raise InputError(f"{name}: the server did not send an mmCIF file; try again later")
    return content


def _records(name: str, content: bytes) -> list[tuple[str, str]]:
    """Return the header and sequence of each record; raise `InputError` for anything but FASTA of letters."""
    records = []
    for record in content.decode("utf-8", "replace").split(">")[1:]:
        header, _, lines = record.partition("\n")
        records.append((" ".join(header.split()), "".join(lines.split()).upper()))
    if not records or not all(re.fullmatch(r"[A-Z]+", sequence) for _, sequence in records):
        raise InputError(f"{name}: the server has no sequence for it; the entry may be deleted or merged")
    return records


def _uniprot_fasta(entry: str, content: bytes) -> bytes:
    """Return the first record of a FASTA file with the name `entry`."""
    (header, sequence), *_ = _records(entry, content)
    return f">{entry} {header.partition(' ')[2]}\n{sequence}\n".encode()


def _pdb_fasta(entry: str, chain: str, content: bytes) -> bytes:
    """Return the FASTA record of all proteins of an entry, or of one chain.

    Headers are like `4HHB_1|Chains A, C|HEMOGLOBIN (ALPHA CHAIN)|Homo sapiens (9606)`; `A[auth X]` is author's chain X.
    """
    chains: dict[str, str] = {}
    proteins: dict[str, str] = {}
    for header, sequence in _records(entry, content):
        _, names, protein, *_ = [*header.split("|"), "", ""]
        words = re.sub(r"^Chains? ", "", names).replace(" ", "").replace("[auth", "[").split(",")
        for word in words if kind_problem(sequence) is None else ():
            name = re.sub(r".*\[(.*)\]", r"\1", word)
            chains[name], proteins[name] = sequence, protein
    if chain and chain not in chains:
        raise InputError(
            f"{entry}: the entry has no protein chain {printable(chain)}; its chains are {', '.join(chains)}"
        )
    if not chains:
        raise InputError(f"{entry}: the entry has no protein")
    chain_ids = [chain] if chain else [*chains]
    ids = f" chain_ids={':'.join(chain_ids)}" if len(chain_ids) > 1 else ""
    description = "; ".join(dict.fromkeys(proteins[name] for name in chain_ids))
    name = f"{entry}_{chain}" if chain else entry
    return f">{name} {description}{ids}\n{':'.join(chains[name] for name in chain_ids)}\n".encode()
