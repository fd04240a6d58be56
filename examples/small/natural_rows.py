"""Shallow alignments of natural sequences: rows from the training chains and from small sample databases."""

from collections.abc import Sequence
from pathlib import Path

from library import LibraryChain
from manifest import is_copyleft, rows

from data_pipeline.io.files import atomic_write
from data_pipeline.parse.fasta import read_fasta
from data_pipeline.search.mmseqs_program import require_mmseqs
from data_pipeline.search.process import run_program, working_directory

SAMPLES = "fasta/minidb_"  # of UniRef90, MGnify, UniProt, BFD and the PDB's sequences, a thousand of each
_SEARCH = "-s 7.5 -e 0.001 -c 0.5 --cov-mode 2 --max-seqs 2000 --num-iterations 2 -a"


def natural_alignments(
    data: Path, output: Path, queries: Sequence[LibraryChain], library: Sequence[LibraryChain], cpus: int
) -> dict[str, int]:
    """Write `<chain>/natural.a3m` for each chain that has homologs; return the number of rows by chain.

    The search covers `library` and the sample databases in DATA that are not under a copyleft licence.
    """
    sequences = {chain.sequence for chain in library}
    for row in rows(data / "manifest.tsv"):
        if row["file"].startswith(SAMPLES) and not is_copyleft(row["licence"]):
            sequences |= {record.sequence for record in read_fasta(data / row["file"])}
    program = require_mmseqs()
    depths: dict[str, int] = {}
    with working_directory() as directory:
        ordered = sorted(sequences)
        directory.joinpath("database.fasta").write_text(
            "".join(f">{index}\n{sequence}\n" for index, sequence in enumerate(ordered))
        )
        directory.joinpath("queries.fasta").write_text(
            "".join(f">query_{index}\n{chain.sequence}\n" for index, chain in enumerate(queries))
        )
        for words in (
            "createdb database.fasta database --dbtype 1 --shuffle 0",
            "createdb queries.fasta queries --dbtype 1 --shuffle 0",
            f"search queries database hits steps {_SEARCH} --threads {cpus}",
            "result2msa queries database hits rows --msa-format-mode 6",
            "unpackdb rows unpacked --unpack-name-mode 0 --unpack-suffix .a3m",
        ):
            run_program([program, *words.split(), "-v", "1"], timeout=None, directory=directory)
        for index, chain in enumerate(queries):
            path = directory / "unpacked" / f"{index}.a3m"
            records = path.read_text().replace("\0", "").split(">")[1:] if path.is_file() else []
            own = chain.sequence
            others = [
                lines
                for record in records
                if (lines := record.split("\n")) and not lines[0].startswith("query_") and lines[1] != own
            ]
            if not others:
                continue
            text = f">query\n{own}\n" + "".join(f">{lines[0].split()[0]}\n{lines[1]}\n" for lines in others)
            place = output / chain.name / "natural.a3m"
            place.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(place) as temporary:
                temporary.write_text(text, encoding="ascii")
            depths[chain.name] = 1 + len(others)
    return depths
