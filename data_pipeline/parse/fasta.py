"""Read targets from FASTA, strictly: a target's name becomes a directory, its letters become residues."""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from os import PathLike

from data_pipeline.io.errors import InputError, InputProblems, input_problems, printable
from data_pipeline.parse.alignment_rows import first_word
from data_pipeline.parse.text_files import read_lines
from data_pipeline.residues import AMBIGUOUS_LETTERS, RESTYPES, THREE_LETTER

MAX_FASTA_BYTES = 128 * 2**20
MAX_RECORDS = 100_000  # each becomes a directory
MAX_RESIDUES = 100_000
MAX_RECORD_BYTES = 2**20  # with blanks
MAX_NAME_BYTES = 199  # file names have 255, and endings are added to this one

_NO_RECORD = "the file is empty; a FASTA record is a line '>name' and lines of residues"
# How PDB and mmCIF files begin; users sometimes pass them as sequences.
_STRUCTURE_STARTS = (
    *(b"HEADER ", b"TITLE ", b"COMPND ", b"EXPDTA ", b"REMARK ", b"SEQRES ", b"CRYST1", b"MODEL ", b"ATOM  "),
    *(b"HETATM", b"data_", b"loop_", b"#\\#CIF"),
)
_STRUCTURE_PROBLEM = (
    "this is a structure, and a sequence is expected; pass its sequence (docs/how-to/troubleshooting.md shows how to "
    "get it), and the structure with --templates or --initial-guess; `helixfold score` scores structures"
)
_TOO_LONG = f"at most {MAX_RESIDUES:,} residues are allowed"
_LETTERS = frozenset(RESTYPES + AMBIGUOUS_LETTERS)
# The meaning of other characters in files that contain them.
_HINTS = {
    **dict.fromkeys("-.", "gaps do not belong in a target sequence"),
    ":": "chains of a complex stand between colons, and here is a single chain",
    "/": "between the chains of a complex stands ':'",
    "*": "a stop codon can only be at its end: cut the sequence there",
}
# Real peptides lack one of DNA's letters (silk is GA, antifreeze glycoproteins are AAT) or are shorter than this.
_DNA, _MIN_DNA = frozenset("ACGT"), 8
# Selenocysteine (U) occurs in longer sequences of other letters.
_RNA, _MIN_RNA = frozenset("ACGU"), 4
_CODES = dict(zip(THREE_LETTER, RESTYPES, strict=False)) | {"MSE": "M"}
_MIN_CODES = 3
_AS_PROTEIN = (
    "pass --as-protein (helixfold predict and features; in Python, as_protein=True) if each letter is a residue"
)
_WINDOWS_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])(\.|$)", re.IGNORECASE)
_WINDOWS_DRIVE = re.compile(r"[a-z]:", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class FastaRecord:
    """One target, as it is written in a FASTA or CSV file."""

    name: str  # first word of the header
    description: str  # rest of the header
    sequence: str  # in upper case
    line: int  # of the header, from 1


def read_fasta(path: str | PathLike[str], problems: InputProblems | None = None) -> list[FastaRecord]:
    """Return all records of a plain or gzip FASTA file, in order.

    Lower case is accepted; spaces within a sequence and one `*` at its end are dropped. The letters B, J, O, U, X and Z
    are kept (the model reads them as unknown residues). Raise `InputError` with `path`, line, column and record for
    other letters, names that are not safe for a directory or differ only in case, no record or more than `MAX_RECORDS`,
    and more than `MAX_FASTA_BYTES` (unpacked). The errors of single records are raised together, or added to `problems`
    if they are given.
    """
    records = TargetRecords(path)
    with input_problems(problems) as collection:
        for line, header, sequence_lines in split_records(path, read_lines(path, MAX_FASTA_BYTES)):
            with collection.collected():
                name, description = read_header(path, line, header)
                sequence = read_sequence(path, line, name, sequence_lines)
                records.add(FastaRecord(name=name, description=description, sequence=sequence, line=line))
    return records.all


class TargetRecords:
    """Collects the records of one file, whose names must differ as names of directories."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self._path = path
        self._records: dict[str, FastaRecord] = {}  # by `filesystem_key`

    def add(self, record: FastaRecord) -> None:
        """Add a record; raise `InputError` if its name is taken."""
        line, name = record.line, record.name
        earlier = self._records.setdefault(filesystem_key(name), record)
        if earlier is not record:
            spelling = "" if earlier.name == name else f" ('{earlier.name}') on some file systems"
            if _without_case(name) != _without_case(earlier.name):
                spelling = f" ('{earlier.name}') once it is a directory, {directory_name(name)}"
            problem = f"the same name as in line {earlier.line}{spelling}; give each record its own"
            raise InputError.at(self._path, problem, line=line, record=name)

    @property
    def all(self) -> list[FastaRecord]:
        """Return all records in order."""
        return list(self._records.values())


def target_name_problem(name: str) -> str | None:
    """Return why a target cannot have this name, or None if it can.

    Its directory has '_' instead of '/' (see `directory_name`), so names such as `tr/Q8` are names of targets.
    """
    return file_name_problem(name.replace("/", "_"))


def file_name_problem(name: str) -> str | None:
    """Return why a file or directory cannot have this name on every system, or None if it can."""
    step = next((step for step in ("/", "\\", "..") if step in name), None)
    rules = (
        (not name, "is empty; write one after '>'"),
        (not name.isprintable(), "has control or invisible characters; use letters, digits, '_' and '-'"),
        ("\ufffd" in name, "is not valid UTF-8 text; use letters, digits, '_' and '-'"),
        (step, f"has '{step}', which could lead to another directory"),
        (name.startswith((".", "-")), "begins with '.' or '-', which no output directory should"),
        (name.endswith("."), "ends with '.', which Windows drops"),
        (_WINDOWS_DEVICE.match(name) or _WINDOWS_DRIVE.match(name), "is reserved on Windows; choose another"),
        (
            len(name.encode("utf-8", "replace")) > MAX_NAME_BYTES,
            f"is longer than {MAX_NAME_BYTES} bytes, what a file name can hold",
        ),
    )
    return next((f"the name {problem}" for broken, problem in rules if broken), None)


def find_invalid_letter(sequence: str) -> tuple[int, str] | None:
    """Return the index of the first letter that is no residue, and the problem in words; None if all are residues."""
    if _LETTERS.issuperset(sequence):
        return None
    index = next(index for index, letter in enumerate(sequence) if letter not in _LETTERS)
    letter = sequence[index]
    if letter == "-" and (problem := _kind_of_code(sequence.replace("-", ""))) is not None:
        return index, problem
    allowed = f"allowed are {RESTYPES} and, as unknown, {AMBIGUOUS_LETTERS}"
    hint = f"{_HINTS[letter]}; " if letter in _HINTS else ""
    code = "" if letter.isascii() else f" (U+{ord(letter):04X})"  # some look like letters that are allowed
    return index, f"'{printable(letter)}'{code} is not an amino acid letter; {hint}{allowed}"


def check_sequence(sequence: str, owner: str) -> None:
    """Raise `InputError`, which names the sequence as `owner`, unless it consists of one or more residue letters."""
    if not sequence:
        raise InputError(f"{owner} is empty; give at least one residue")
    if (invalid := find_invalid_letter(sequence)) is not None:
        raise InputError(f"{owner}, residue {invalid[0] + 1}: {invalid[1]}")


def kind_problem(sequence: str) -> str | None:
    """Return why a sequence seems to be DNA, RNA or three-letter codes instead of residues, or None if it does not.

    DNA has at least eight letters: all four of A, C, G and T, and no others except N. RNA has at least four letters: a
    U, and no others except A, C, G and N. Three-letter codes are at least three such codes and nothing else.
    """
    problem = _kind_of_code(sequence)
    return None if problem is None else f"{problem}, or {_AS_PROTEIN}"


def _kind_of_code(sequence: str) -> str | None:
    """Return what a sequence seems to be instead of residues, and how to get residues; see `kind_problem`."""
    bases = set(sequence) - {"N"}
    is_rna = len(sequence) >= _MIN_RNA and "U" in bases and bases <= _RNA
    if is_rna or (len(sequence) >= _MIN_DNA and bases == _DNA):
        kind = "RNA" if is_rna else "DNA"
        return f"this is {kind}, all its letters are bases; translate the gene and pass the protein's residues"
    codes = [sequence[start : start + 3] for start in range(0, len(sequence), 3)]
    if len(codes) < _MIN_CODES or not _CODES.keys() >= set(codes):
        return None
    letters = printable("".join(_CODES[code] for code in codes), 30)
    return f"these are three-letter codes; write one letter for each residue, {letters}"


def sequence_problem(sequence: str) -> str | None:
    """Return why a sequence of residue letters cannot be a target's, or None if it can."""
    if not sequence:
        return "the record has no sequence; add residues or remove it"
    if len(sequence) > MAX_RESIDUES:
        return f"it has {len(sequence):,} residues; {_TOO_LONG}"
    return None


def unknown_residues_problem(sequence: str) -> str | None:
    """Return why a sequence without any known residue cannot be predicted, or None if it has one."""
    if set(AMBIGUOUS_LETTERS).issuperset(sequence):
        return f"it has no known residue, only {', '.join(sorted(set(sequence)))}, whose atoms nobody knows"
    return None


def directory_name(name: str) -> str:
    """Return the name of a target's directory: any character but letters, digits, '_', '.' and '-' becomes '_'.

    So it can be typed in a shell and exists on Windows: `sp|P0CG48|UBC_HUMAN` becomes `sp_P0CG48_UBC_HUMAN`. ColabFold
    names its files by the same rule.
    """
    letters = unicodedata.normalize("NFC", name)
    return "".join(letter if letter.isalnum() or letter in "_.-" else "_" for letter in letters)


def file_names(name: str) -> tuple[str, ...]:
    """Return the names that a user's files for a target may have: the target's own name and its directory's name."""
    own = (name,) if file_name_problem(name) is None else ()
    return tuple(dict.fromkeys((*own, directory_name(name))))


def filesystem_key(name: str) -> str:
    """Return a key that is equal for names of the same directory, also on macOS or Windows."""
    return _without_case(directory_name(name))


def _without_case(name: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def split_records(
    path: str | PathLike[str], lines: Iterable[bytes]
) -> Iterator[tuple[int, bytes, list[tuple[int, bytes]]]]:
    """Yield each record's header line number, its header without '>', and its numbered lines.

    Raise `InputError` for a file without records or with more than `MAX_RECORDS`, and for one that is not FASTA.
    """
    header: tuple[int, bytes] | None = None
    body: list[tuple[int, bytes]] = []
    count = size = 0
    for number, line in enumerate(lines, start=1):
        if line.startswith(b">"):
            if header is not None:
                yield *header, body
            check_record_count(path, number, count := count + 1)
            header, body, size = (number, line[1:]), [], 0
        elif header is not None:
            if not line:
                continue
            body.append((number, line))
            size += len(line)
            if size > MAX_RECORD_BYTES:
                problem = f"the record goes on for more than {MAX_RECORD_BYTES:,} bytes; {_TOO_LONG}"
                raise InputError.at(path, problem, line=header[0], record=first_word(header[1]))
        elif line.strip():
            if line.startswith(_STRUCTURE_STARTS):
                raise InputError.at(path, _STRUCTURE_PROBLEM)
            kind = "binary data" if b"\0" in line else "a sequence"
            raise InputError.at(path, f"{kind} before any '>name' header; is this a FASTA file?", line=number)
    if header is None:
        raise InputError.at(path, _NO_RECORD)
    yield *header, body


def check_record_count(path: str | PathLike[str], line: int, count: int) -> None:
    """Raise `InputError` if a file has more than `MAX_RECORDS` records."""
    if count > MAX_RECORDS:
        problem = f"there are more than {MAX_RECORDS:,} records, the most that is read; divide the file"
        raise InputError.at(path, problem, line=line)


def read_header(path: str | PathLike[str], line: int, header: bytes) -> tuple[str, str]:
    """Return the name and the description in a header; raise `InputError` for a name that no target can have."""
    name, _, description = header.decode("utf-8", "replace").strip(" \t").replace("\t", " ").partition(" ")
    if (problem := target_name_problem(name)) is not None:
        raise InputError.at(path, problem, line=line, record=name or None)
    return name, description.strip()


def read_sequence(path: str | PathLike[str], line: int, name: str, lines: list[tuple[int, bytes]]) -> str:
    """Return the sequence in the numbered lines of a record, whose header is in `line`; see `read_fasta`."""
    parts: list[str] = []
    last = max((number for number, text in lines if text.strip()), default=line)
    for number, raw in lines:
        text = raw.upper().decode("utf-8", "replace")  # as bytes: outside ASCII, some upper cases are two letters
        if number == last:
            text = text.rstrip(" \t").removesuffix("*")
        residues = text.replace(" ", "").replace("\t", "")
        if (invalid := find_invalid_letter(residues)) is not None:
            column = [i for i, letter in enumerate(text, start=1) if letter not in " \t"][invalid[0]]
            raise InputError.at(path, invalid[1], line=number, column=column, record=name)
        parts.append(residues)
    sequence = "".join(parts)
    if (problem := sequence_problem(sequence)) is not None:
        raise InputError.at(path, problem, line=line, record=name)
    return sequence
