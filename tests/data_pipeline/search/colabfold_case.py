"""Databases of clusters for comparisons with `colabfold_search`: real sequences, and made relatives of 50 targets.

    python -m tests.data_pipeline.search.colabfold_case PYTHON

makes `colabfold_digests.json` with `colabfold_search` of the package colabfold, which PYTHON has installed. The digests
are those of one release of MMseqs2, which is named in the file.
"""

import gzip
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from data_pipeline.search.cluster_build import ClusterBuild
from data_pipeline.search.colabfold_databases import ClusterDatabase
from data_pipeline.search.mmseqs_program import require_mmseqs
from data_pipeline.search.process import program_version
from tests.data_pipeline.search.families import AMINO_ACIDS

DIGESTS = Path(__file__).with_name("colabfold_digests.json")
UNIREF, ENVIRONMENTAL, TEMPLATES = "uniref30_made_db", "colabfold_envdb_made_db", "pdb100_made"
Record = tuple[str, str]


class ColabfoldCase:
    """Targets, complexes of neighbouring targets, and databases in `folder`, made from the files in `fasta`."""

    def __init__(self, fasta: Path, folder: Path) -> None:
        self.folder, self.program = folder, require_mmseqs()
        known = [(name.split()[0], text.upper()) for name, text in records(fasta / "cameo2022.fasta")]
        self.targets = [record for record in known if 40 <= len(record[1]) <= 300][:50]
        sequences = [sequence for _, sequence in self.targets]
        self.complexes = [sequences[index : index + 2] for index in range(0, 20, 2)]
        rng = np.random.default_rng(1)
        small = [path for name in ("uniref90", "uniprot_all") for path in fasta.glob(f"minidb_{name}__*")]
        write(folder / "uniref.fasta", [*read(small), *self.relatives(rng, "UPI", 20)])
        small = [path for name in ("mgy_clusters", "bfd-first") for path in fasta.glob(f"minidb_{name}_*")]
        write(folder / "env.fasta", [*read(small), *self.relatives(rng, "MGYP", 12)])
        chains = [(f"{9000 + index}_A", changed(rng, text, 0.6)) for index, text in enumerate(sequences)]
        write(folder / "pdb.fasta", [*read(fasta.glob("minidb_pdb_seqres_*")), *chains])
        build = ClusterBuild(program=self.program, single_step=True, cpus=2)
        build.clusters([folder / "uniref.fasta"], folder / UNIREF)
        build.clusters([folder / "env.fasta"], folder / ENVIRONMENTAL)
        build.sequences([folder / "pdb.fasta"], folder / TEMPLATES)
        self.uniref, self.environmental = ClusterDatabase(folder / UNIREF), ClusterDatabase(folder / ENVIRONMENTAL)
        self.templates = folder / TEMPLATES

    def relatives(self, rng: np.random.Generator, prefix: str, count: int) -> Iterator[Record]:
        """Yield relatives of every target, each of one of twelve species."""
        for number, (_, sequence) in enumerate(self.targets):
            for index in range(count):
                species = 9000 + int(rng.integers(12))
                yield f"{prefix}{number:02d}x{index:02d} OX={species}", changed(rng, sequence, rng.uniform(0.35, 0.9))


def changed(rng: np.random.Generator, sequence: str, identity: float) -> str:
    """Return a sequence with other residues, and in half of the cases with three more or three fewer."""
    letters = np.frombuffer(sequence.encode(), np.uint8)
    kept = rng.random(len(letters)) < identity
    text = np.where(kept, letters, rng.choice(AMINO_ACIDS, len(letters))).tobytes().decode()
    place = int(rng.integers(5, len(text) - 5))
    return (text, text, text[:place] + "GSG" + text[place:], text[:place] + text[place + 3 :])[int(rng.integers(4))]


def records(path: Path) -> Iterator[Record]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else open(path) as lines:
        for record in lines.read().split(">")[1:]:
            header, _, body = record.partition("\n")
            yield header, "".join(body.split())


def read(paths: Iterable[Path]) -> Iterator[Record]:
    for path in paths:
        yield from records(path)


def write(path: Path, found: Iterable[Record]) -> None:
    path.write_text("".join(f">{name}\n{sequence}\n" for name, sequence in found))


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def reference(python: str, case: ColabfoldCase) -> dict[str, object]:
    """Run `colabfold_search` on the case, and return the digests of its results."""
    folder = case.folder

    def run(query: str, output: str, *options: str) -> Path:
        words = [python, "-m", "colabfold.mmseqs.search", query, ".", output, "--mmseqs", str(case.program)]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        subprocess.run([*words, "--db1", UNIREF, "--threads", "2", *options], cwd=folder, env=environment, check=True)
        return folder / output

    write(folder / "targets.fasta", case.targets)
    write(folder / "complexes.fasta", [(f"c{index}", ":".join(each)) for index, each in enumerate(case.complexes)])
    both = run("targets.fasta", "both", "--db3", ENVIRONMENTAL, "--db2", TEMPLATES, "--use-templates", "1")
    alone = run("targets.fasta", "alone", "--use-env", "0")
    pairs = run("complexes.fasta", "pairs", "--use-env", "0", "--pair-mode", "paired", "--unpack", "0")
    unpack = [case.program, "unpackdb", "pair.a3m", "out", "--unpack-name-mode", "0", "--unpack-suffix", ".a3m"]
    subprocess.run(unpack, cwd=pairs, check=True)
    return {
        "mmseqs": program_version(case.program, "version"),
        "environmental": {name: digest((both / f"{name}.a3m").read_bytes()) for name, _ in case.targets},
        "uniref": {name: digest((alone / f"{name}.a3m").read_bytes()) for name, _ in case.targets},
        "templates": {name: digest((both / f"{name}_{TEMPLATES}.m8").read_bytes()) for name, _ in case.targets},
        "pairs": [digest((pairs / "out" / f"{number}.a3m").read_bytes()) for number in range(2 * len(case.complexes))],
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        shared = Path(os.environ["HELIXFOLD_SHARED"]) / "data" / "fasta"
        found = reference(sys.argv[1], ColabfoldCase(shared, Path(made)))
    DIGESTS.write_text(json.dumps(found, indent=1) + "\n")
