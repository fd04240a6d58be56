"""Small structure and alignment files to build training sets from."""

import gzip
from pathlib import Path

import numpy as np

from data_pipeline.residues import RESTYPES, THREE_LETTER

_NAMES = dict(zip(RESTYPES, THREE_LETTER[:20], strict=True))
_BACKBONE = (("N", "N", 0.0, 1.4), ("CA", "C", 0.0, 0.0), ("C", "C", 1.4, -0.5), ("O", "O", 1.5, -1.7))


def sequence(seed: int, length: int = 40) -> str:
    return "".join(np.random.default_rng(seed).choice(list(RESTYPES), length))


def write_pdb(path: Path, entry: str, chains: dict[str, str], released: str = "30-APR-18") -> None:
    """A PDB file with the backbone of each chain, and its SEQRES."""
    lines = [f"HEADER    {'PROTEIN':<40}{released}   {entry.upper()}              "]
    lines += [f"REVDAT   1   {released} {entry.upper()}    0", "REMARK   2 RESOLUTION.    2.10 ANGSTROMS."]
    for chain, letters in chains.items():
        for start in range(0, len(letters), 13):
            names = " ".join(_NAMES[letter] for letter in letters[start : start + 13])
            lines.append(f"SEQRES {start // 13 + 1:3d} {chain} {len(letters):4d}  {names}")
    serial = 0
    for offset, (chain, letters) in enumerate(chains.items()):
        for number, letter in enumerate(letters, start=1):
            for atom, element, x, y in _BACKBONE:
                serial += 1
                place = f"{3.8 * number + x:8.3f}{10 * offset + y:8.3f}{0.1 * number:8.3f}"
                start = f"ATOM  {serial:5d}  {atom:<3} {_NAMES[letter]} {chain}{number:4d}    "
                lines.append(f"{start}{place}  1.00 80.00          {element:>2}")
        lines.append(f"TER   {serial + 1:5d}      {_NAMES[letters[-1]]} {chain}{len(letters):4d}")
    text = ("\n".join([*lines, "END"]) + "\n").encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


def write_a3m(path: Path, *rows: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f">row{index}\n{row}\n" for index, row in enumerate(rows)))


def write_training_files(root: Path, entries: int = 3) -> tuple[Path, Path]:
    """Directories of structures and alignments: entries 0abc, 1abc, ... of two chains each, A with an alignment."""
    structures, alignments = root / "structures", root / "alignments"
    for index in range(entries):
        name = f"{index}abc"
        first, second = sequence(2 * index), sequence(2 * index + 1)
        suffix = ".pdb.gz" if index % 2 else ".pdb"
        write_pdb(structures / f"{name}{suffix}", name, {"A": first, "B": second})
        folder = alignments / f"{name}_A"
        write_a3m(folder / "a3m/mgnify_hits.a3m", first, first[:20] + "-" * 20)
        write_a3m(folder / "a3m/uniref90_hits.a3m", first, "-" * 20 + first[20:], first[:30] + "aa" + first[30:])
    return structures, alignments
