"""Made-up protein families, and hh-suite databases of their alignments."""

import gzip
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.search.mmseqs_program import find_mmseqs
from data_pipeline.search.process import find_program, run_program

AMINO_ACIDS = np.frombuffer(b"ACDEFGHIKLMNPQRSTVWY", np.uint8)
# Debian's own starter of cstranslate looks for it in the wrong folder; this is what it would start on any processor.
DEBIAN_PROGRAM = "/usr/libexec/hhsuite/cstranslate-plain"


def needed_program(name: str) -> Path:
    program = find_mmseqs() if name == "mmseqs" else find_program(name)
    if program is None:
        pytest.skip(f"needs the program {name}")
    return program


def random_protein(rng: np.random.Generator, residues: int) -> str:
    return rng.choice(AMINO_ACIDS, residues).tobytes().decode()


def relative(rng: np.random.Generator, ancestor: str, identity: float) -> str:
    """The ancestor with some residues replaced by others, none inserted or lost."""
    letters = np.frombuffer(ancestor.encode(), np.uint8)
    kept = rng.random(len(letters)) < identity
    return np.where(kept, letters, rng.choice(AMINO_ACIDS, len(letters))).tobytes().decode()


def family_a3m(rng: np.random.Generator, name: str, ancestor: str, rows: int = 30) -> bytes:
    records = [(name, ancestor)] + [(f"{name}_{i}", relative(rng, ancestor, 0.7)) for i in range(1, rows)]
    return "".join(f">{name}\n{row}\n" for name, row in records).encode()


def real_alignments(real_data: Path) -> dict[str, bytes]:
    """a3m files that hhblits made, by the name of their target, which is the first row's here."""
    alignments = {}
    for name in ("3l4q_C__bfd_uniref_hits", "T1084_D1__bfd_uniclust_hits", "6exz_A__6exz"):
        target = name.split("__")[0]
        content = gzip.decompress((real_data / "msa" / f"{name}.a3m.gz").read_bytes())
        alignments[target] = f">{target}\n".encode() + content.split(b"\n", 1)[1]
    return alignments


def build_hhsuite_database(prefix: Path, alignments: Mapping[str, bytes]) -> Path:
    """The six files of a database of a3m alignments, as HH-suite's manual makes them; names have at most 31 letters."""
    hhmake, ffindex_apply = needed_program("hhmake"), needed_program("ffindex_apply")
    cstranslate = find_program("cstranslate") or find_program(DEBIAN_PROGRAM)
    if cstranslate is None:
        pytest.skip("needs the program cstranslate")
    files = {part: [f"{prefix.name}_{part}.{kind}" for kind in ("ffdata", "ffindex")] for part in ("a3m", "hhm")}
    _write_ffindex(*(prefix.with_name(name) for name in files["a3m"]), alignments)
    data, index = files["hhm"]
    make: list[str | Path] = [
        ffindex_apply,
        "-q",
        "-d",
        data,
        "-i",
        index,
        *files["a3m"],
        "--",
        hhmake,
        "-v",
        "0",
        "-i",
        "stdin",
    ]
    run_program([*make, "-o", "stdout"], timeout=60, directory=prefix.parent)
    translate = ["-i", f"{prefix.name}_a3m", "-o", f"{prefix.name}_cs219", "-I", "a3m"]
    run_program([cstranslate, "-f", "-x", "0.3", "-c", "4", *translate], timeout=60, directory=prefix.parent)
    return prefix


def _write_ffindex(data: Path, index: Path, entries: Mapping[str, bytes]) -> None:
    """Entries end in NUL; the index has name, place and length (NUL included) and is sorted by name."""
    with data.open("wb") as data_file, index.open("w") as index_file:
        for name in sorted(entries):
            index_file.write(f"{name}\t{data_file.tell()}\t{len(entries[name]) + 1}\n")
            data_file.write(entries[name] + b"\0")
