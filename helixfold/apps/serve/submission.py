"""Read and check submissions of users with the parsers of `helixfold predict`."""

import hashlib
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from data_pipeline.features.complexes.chain_sequences import CHAIN_SEPARATOR
from data_pipeline.features.complexes.sequence_files import (
    CHAIN_IDS_WORD,
    FRAGMENT_ADVICE,
    read_fasta_targets,
    read_table_targets,
)
from data_pipeline.features.complexes.target import ComplexTarget
from data_pipeline.io.errors import InputError
from data_pipeline.parse.fasta import AS_PROTEIN_ADVICE, FastaRecord, kind_problem, unknown_residues_problem
from helixfold.apps.serve.job_options import job_options
from helixfold.apps.serve.storage import checked_name, file_name_of

MAX_SEQUENCE_TEXT: Final = 2**20  # characters
MAX_RECORDS: Final = 100  # of one text
MAX_FILES: Final = 20  # uploaded alignments and templates of a job
_TEMPORARY_FASTA: Final = "sequence.fasta"
FileKind = Literal["alignment", "template"]
_ALIGNMENT_ENDINGS = (".a3m", ".a3m.gz", ".sto", ".sto.gz", ".fasta", ".fa")
_TABLE_DELIMITERS = {"csv": ",", "tsv": "\t"}
_TEMPLATE_ENDINGS = (".cif", ".cif.gz", ".pdb", ".pdb.gz")


@dataclass(frozen=True, kw_only=True)
class UploadedFile:
    """An alignment or a template structure of a submission; only the extension of its name is used."""

    kind: FileKind
    name: str
    content: bytes

    def stored_name(self, index: int) -> str:
        """Return the name under which the server stores the file, such as alignment_0.a3m.

        `index` is its position among the files of the job, from 0. Raise `InputError` for an unknown extension.
        """
        endings = _ALIGNMENT_ENDINGS if self.kind == "alignment" else _TEMPLATE_ENDINGS
        ending = next((ending for ending in endings if self.name.lower().endswith(ending)), None)
        if ending is None:
            raise InputError(f"the name of an uploaded {self.kind} must end in {', '.join(endings)}")
        return f"{self.kind}_{index}{ending}"


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A protein or complex to predict, with its options and uploaded files.

    `name` is the name of the job. `chains` are the sequences, `chain_ids` their ids, or empty for the default ids.
    Raise `InputError` for too many files.
    """

    name: str
    chains: tuple[str, ...]
    chain_ids: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=job_options)  # all of them, see `job_options`
    files: tuple[UploadedFile, ...] = ()

    def __post_init__(self) -> None:
        if len(self.files) > MAX_FILES:
            raise InputError(f"a job takes at most {MAX_FILES} files, got {len(self.files)}")

    @property
    def residues(self) -> int:
        """Return the total number of residues of the chains."""
        return sum(map(len, self.chains))

    @property
    def sequence(self) -> str:
        """Return the sequences of the chains, joined by colons."""
        return CHAIN_SEPARATOR.join(self.chains)

    def stored_files(self) -> dict[str, UploadedFile]:
        """Return the files by the names under which the server stores them."""
        return {file.stored_name(index): file for index, file in enumerate(self.files)}

    def request(self) -> dict[str, Any]:
        """Return the JSON object that the server sends to the worker, with the stored names of the files."""
        stored = self.stored_files()
        return {
            "name": file_name_of(self.name),
            "sequence": self.sequence,
            "chain_ids": list(self.chain_ids),
            "options": dict(self.options),
            "alignments": [name for name, file in stored.items() if file.kind == "alignment"],
            "templates": [name for name, file in stored.items() if file.kind == "template"],
        }

    def digest(self) -> str:
        """Return a SHA-256 digest of the request and its files, which equal submissions share."""
        files = {name: hashlib.sha256(file.content).hexdigest() for name, file in self.stored_files().items()}
        return hashlib.sha256(json.dumps([self.request(), files], sort_keys=True).encode()).hexdigest()


def read_sequence_file(name: str, content: bytes) -> tuple[str, list[UploadedFile]]:
    """Convert an uploaded FASTA, CSV, TSV or a3m file to FASTA text; an a3m file is also returned as an alignment.

    The extension of `name` gives the format. A file with any other extension is FASTA, and its text is returned as it
    is, without what exceeds the maximum length. Raise `InputError` for a table or a3m file that cannot be read.
    """
    name_without_extension, _, ending = name.rpartition(".")
    if ending.lower() == "a3m":
        return _target_of_a3m(checked_name(name_without_extension), content), [
            UploadedFile(kind="alignment", name=name, content=content)
        ]
    text = content[: MAX_SEQUENCE_TEXT + 1].decode("utf-8", "replace")
    if len(content) > MAX_SEQUENCE_TEXT or ending.lower() not in _TABLE_DELIMITERS:
        return text, []
    lines = []
    for record in _records(text, _TABLE_DELIMITERS[ending.lower()]):
        if isinstance(record, ComplexTarget):
            ids, sequence = CHAIN_SEPARATOR.join(record.chain_ids), CHAIN_SEPARATOR.join(record.sequences)
            lines.append(f">{record.name} {CHAIN_IDS_WORD}={ids}\n{sequence}")
        else:
            lines.append(f">{record.name}\n{record.sequence}")
    return "\n".join(lines), []


def _target_of_a3m(name: str, content: bytes) -> str:
    """Return the first row of an a3m file as a FASTA record.

    In files of ColabFold, the first line contains the lengths and numbers of copies of the chains.
    """
    preamble, _, records = content[: MAX_SEQUENCE_TEXT + 1].decode("utf-8", "replace").partition(">")
    row = "".join(records.partition("\n")[2].partition("\n>")[0].split())
    sequence = "".join(letter for letter in row if letter.isupper())
    if (
        lengths_line := re.fullmatch(r"#([0-9]{1,6}(?:,[0-9]{1,6})*)\t([0-9]{1,6}(?:,[0-9]{1,6})*)\s*", preamble)
    ) is not None:
        lengths, copies = ([*map(int, part.split(","))] for part in lengths_line.groups())
        chains, start = list[str](), 0
        if sum(max(length, 1) * count for length, count in zip(lengths, copies, strict=False)) > MAX_SEQUENCE_TEXT:
            raise InputError("the first line of the a3m file asks for too many chains")
        for length, count in zip(lengths, copies, strict=False):
            chains += [sequence[start : start + length]] * count
            start += length
        sequence = CHAIN_SEPARATOR.join(chains)
    if not sequence:
        raise InputError("the a3m file has no first row with the sequence to predict")
    return f">{name}\n{sequence}"


def read_submissions(
    text: str, name: str = "", options: Mapping[str, Any] | None = None, files: Sequence[UploadedFile] = ()
) -> list[Submission]:
    """Read a sequence, with colons between the chains of a complex, or FASTA records; return a submission for each.

    A submission is named by the FASTA header, or by `name` if there is one sequence; with several records, `name`
    precedes their own names. Without both names, it is "protein". `files` need exactly one sequence. Raise
    `InputError` for a text that `helixfold predict` does not accept, and for invalid options.
    """
    if len(text) > MAX_SEQUENCE_TEXT:
        raise InputError(f"the text has {len(text):,} characters; the maximum is {MAX_SEQUENCE_TEXT:,}")
    if not text.strip():
        raise InputError("the sequence is empty; enter one-letter codes of amino acids, or FASTA records")
    own_name = checked_name(name)
    stripped = text.lstrip()
    has_headers = stripped.startswith(">")
    if (count := stripped.count("\n>") + 1) > MAX_RECORDS:
        raise InputError(f"the text has {count:,} records; the maximum is {MAX_RECORDS}")
    records = (
        _records(stripped) if has_headers else _records(f">sequence\n{''.join(stripped.split())}\n", only_sequence=True)
    )
    if len(records) > 1 and files:
        raise InputError(
            "alignments and templates can only be used with a single sequence, and the text has several records"
        )
    submissions = []
    for record in records:
        job_name = record.name if has_headers else own_name or "protein"
        if own_name and has_headers:
            job_name = own_name if len(records) == 1 else f"{own_name}: {record.name}"
        chains = record.sequences if isinstance(record, ComplexTarget) else (record.sequence,)
        problem = unknown_residues_problem("".join(chains))
        problem = problem or next(filter(None, map(kind_problem, chains)), None)
        if problem is not None:
            raise InputError(f"'{job_name}' cannot be predicted: {_without_options(problem)}")
        submissions.append(
            Submission(
                name=checked_name(job_name),
                chains=chains,
                chain_ids=record.chain_ids if isinstance(record, ComplexTarget) else (),
                options=job_options(options),
                files=tuple(files),
            )
        )
    return submissions


def _records(
    text: str, delimiter: str | None = None, *, only_sequence: bool = False
) -> list[FastaRecord | ComplexTarget]:
    """Return the records of a FASTA text, or of a table with this delimiter."""
    with tempfile.TemporaryDirectory(prefix="helixfold-") as directory:
        path = Path(directory) / _TEMPORARY_FASTA
        path.write_text(text, encoding="utf-8", errors="replace")
        try:
            return read_fasta_targets(path) if delimiter is None else read_table_targets(path, delimiter)
        except InputError as error:
            problem = _without_options(str(error).replace(str(path), "your text"))
            if only_sequence:  # the header, its line and its name are not part of the user's text
                problem = problem.replace("line 2, ", "").replace("line 1, ", "").replace(", record 'sequence'", "")
            raise InputError(problem) from error


def _without_options(problem: str) -> str:
    """Return a message of a parser without advice to pass options, which the service does not have."""
    return problem.replace(AS_PROTEIN_ADVICE, "").replace(FRAGMENT_ADVICE, "")
