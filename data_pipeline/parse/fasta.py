"""Read target sequences from FASTA and check their names, which become directory names, and their letters.

Limits are `MAX_FASTA_BYTES` and `MAX_RECORDS` for a file, `MAX_RECORD_BYTES` and `MAX_RESIDUES` for a record, and
`MAX_NAME_BYTES` for a name.
"""

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
MAX_RECORDS = 100_000  # each record gets a directory
MAX_RESIDUES = 100_000
MAX_RECORD_BYTES = 2**20  # including blanks
MAX_NAME_BYTES = 199  # file systems allow 255 bytes, and suffixes are added to the name

_NO_RECORD = "the file is empty; a FASTA record is a line '>name' and lines of residues"
# First bytes and suffixes of structure files, which users sometimes pass as sequences.
_STRUCTURE_STARTS = (
    *(b"HEADER ", b"TITLE ", b"COMPND ", b"EXPDTA ", b"REMARK ", b"SEQRES ", b"CRYST1", b"MODEL ", b"ATOM  "),
    *(b"HETATM", b"data_", b"loop_", b"#\\#CIF"),
)
_STRUCTURE_SUFFIXES = (".pdb", ".ent", ".cif", ".mmcif", ".bcif")
_STRUCTURE_PROBLEM = (
    "got a structure, expected a sequence; pass its sequence (docs/how-to/troubleshooting.md shows how to get it), "
    "and the structure with --templates or --initial-guess; `helixfold score` scores structures"
)
_TOO_LONG = f"at most {MAX_RESIDUES:,} residues are allowed"
_RESIDUE_LETTERS = frozenset(RESTYPES + AMBIGUOUS_LETTERS)
# Explanations for characters that sequence files often contain.
_HINT_OF_CHARACTER = {
    **dict.fromkeys("-.", "a target sequence cannot contain gaps"),
    ":": "':' separates the chains of a complex, but a single chain is expected here",
    "/": "separate the chains of a complex with ':'",
    "*": "a stop codon is only allowed at the end; cut the sequence there",
}
# Real peptides of only A, C, G and T lack one of the four (silk: GA; antifreeze glycoproteins: AAT) or are shorter.
_DNA_BASES, _MIN_DNA_LETTERS = frozenset("ACGT"), 8
# Proteins with selenocysteine (U) are longer and contain other letters too.
_RNA_BASES, _MIN_RNA_LETTERS = frozenset("ACGU"), 4
_LETTER_OF_CODE = dict(zip(THREE_LETTER, RESTYPES, strict=False)) | {"MSE": "M"}
_MIN_CODES = 3
AS_PROTEIN_ADVICE = (
    ", or pass --as-protein (helixfold predict and features; in Python, as_protein=True) if each letter is a residue"
)
_WINDOWS_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])(\.|$)", re.IGNORECASE)
_WINDOWS_DRIVE = re.compile(r"[a-z]:", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class FastaRecord:
    """One target in a FASTA or CSV file.

    `name` is the first word of the header, `description` the rest, and `line` the header's line number, from 1.
    `fragment` has the residue numbers of the sequence in a longer chain, such as 1-100,150-200, or "" for a whole one.
    """

    name: str  # first word of the header
    description: str  # rest of the header
    sequence: str  # in upper case
    line: int  # line number of the header, from 1
    fragment: str = ""  # residues of a longer chain that the sequence has, such as 1-100,150-200; "": all


def read_fasta(path: str | PathLike[str], problems: InputProblems | None = None) -> list[FastaRecord]:
    """Return all records of a plain or gzip FASTA file, in order.

    Lower case is accepted; spaces within a sequence and one `*` at its end are dropped. The letters B, J, O, U, X and Z
    remain (the model treats them as unknown residues). Raise `InputError` with `path`, line, column and record for
    other letters, for names that are unsafe as directory names or differ only in case, for files without a record or
    with more than `MAX_RECORDS`, and for more than `MAX_FASTA_BYTES` (unpacked). Errors of single records are raised
    together, or added to `problems` if it is passed.
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
    """The records of one file; no two names may map to the same directory name."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self._path = path
        self._records: dict[str, FastaRecord] = {}  # by `filesystem_key`

    def add(self, record: FastaRecord) -> None:
        """Add a record; raise `InputError` if the directory of an earlier record may have the same name."""
        line, name = record.line, record.name
        earlier = self._records.setdefault(filesystem_key(name), record)
        if earlier is not record:
            spelling = "" if earlier.name == name else f" ('{earlier.name}') on some file systems"
            if _without_case(name) != _without_case(earlier.name):
                spelling = f" ('{earlier.name}') once it is a directory, {directory_name(name)}"
            problem = f"the same name as in line {earlier.line}{spelling}; give each record its own name"
            raise InputError.at(self._path, problem, line=line, record=name)

    @property
    def all(self) -> list[FastaRecord]:
        """All records in order."""
        return list(self._records.values())


def target_name_problem(name: str) -> str | None:
    """Return the reason why a name is not valid for a target, as "the name ...", or None if it is valid.

    Names with '/', such as `tr/Q8`, are valid because the directory has '_' instead (see `directory_name`).
    """
    return file_name_problem(name.replace("/", "_"))


def file_name_problem(name: str) -> str | None:
    """Return the reason, as "the name ...", why a file name is not valid on all operating systems, or None if it is.

    Names that begin with '.' or '-' or are longer than `MAX_NAME_BYTES` are not valid either.
    """
    step = next((step for step in ("/", "\\", "..") if step in name), None)
    rules = (
        (not name, "is empty; write one after '>'"),
        (not name.isprintable(), "contains control or invisible characters; use letters, digits, '_' and '-'"),
        ("\ufffd" in name, "is not valid UTF-8 text; use letters, digits, '_' and '-'"),
        (step, f"contains '{step}', which could lead to another directory"),
        (name.startswith((".", "-")), "begins with '.' or '-', which is not allowed for output directories"),
        (name.endswith("."), "ends with '.', which Windows drops"),
        (_WINDOWS_DEVICE.match(name) or _WINDOWS_DRIVE.match(name), "is reserved on Windows; choose another"),
        (
            len(name.encode("utf-8", "replace")) > MAX_NAME_BYTES,
            f"is longer than the maximum of {MAX_NAME_BYTES} bytes",
        ),
    )
    return next((f"the name {problem}" for broken, problem in rules if broken), None)


def find_invalid_letter(sequence: str) -> tuple[int, str] | None:
    """Return the index (from 0) of the first letter that is not a residue, with a message; None if all are residues.

    Letters must be in upper case; B, J, O, U, X and Z are residues.
    """
    if _RESIDUE_LETTERS.issuperset(sequence):
        return None
    index = next(index for index, letter in enumerate(sequence) if letter not in _RESIDUE_LETTERS)
    letter = sequence[index]
    if letter == "-" and (problem := _kind_of_code(sequence.replace("-", ""))) is not None:
        return index, problem
    allowed = f"allowed are {RESTYPES} and, as unknown, {AMBIGUOUS_LETTERS}"
    hint = f"{_HINT_OF_CHARACTER[letter]}; " if letter in _HINT_OF_CHARACTER else ""
    code = "" if letter.isascii() else f" (U+{ord(letter):04X})"  # some look like ASCII letters
    return index, f"'{printable(letter)}'{code} is not an amino acid letter; {hint}{allowed}"


def check_sequence(sequence: str, owner: str) -> None:
    """Raise `InputError` unless a sequence consists of one or more residue letters; `owner` begins the message."""
    if not sequence:
        raise InputError(f"{owner} is empty; pass at least one residue")
    if (invalid := find_invalid_letter(sequence)) is not None:
        raise InputError(f"{owner}, residue {invalid[0] + 1}: {invalid[1]}")


def kind_problem(sequence: str) -> str | None:
    """Return a message if a sequence looks like DNA, RNA or three-letter codes instead of residues, else None.

    DNA: at least eight letters, with all of A, C, G and T and no others except N. RNA: at least four letters, with a U
    and no others except A, C, G and N. Three-letter codes: at least three codes and nothing else.
    """
    problem = _kind_of_code(sequence)
    return None if problem is None else f"{problem}{AS_PROTEIN_ADVICE}"


def _kind_of_code(sequence: str) -> str | None:
    """Return a message that names the kind of a sequence other than residues, and the remedy; see `kind_problem`."""
    bases = set(sequence) - {"N"}
    is_rna = len(sequence) >= _MIN_RNA_LETTERS and "U" in bases and bases <= _RNA_BASES
    if is_rna or (len(sequence) >= _MIN_DNA_LETTERS and bases == _DNA_BASES):
        kind = "RNA" if is_rna else "DNA"
        return f"this is {kind}: all its letters are bases; translate the gene and pass the protein's residues"
    codes = [sequence[start : start + 3] for start in range(0, len(sequence), 3)]
    if len(codes) < _MIN_CODES or not _LETTER_OF_CODE.keys() >= set(codes):
        return None
    letters = printable("".join(_LETTER_OF_CODE[code] for code in codes), 30)
    return f"these are three-letter codes; write one letter per residue: {letters}"


def sequence_problem(sequence: str) -> str | None:
    """Return the reason why a sequence of residue letters is empty or too long for a target, else None."""
    if not sequence:
        return "the record has no sequence; add residues or remove it"
    if len(sequence) > MAX_RESIDUES:
        return f"it has {len(sequence):,} residues; {_TOO_LONG}"
    return None


def unknown_residues_problem(sequence: str) -> str | None:
    """Return a message if a sequence has only unknown residues (B, J, O, U, X and Z), else None."""
    if set(AMBIGUOUS_LETTERS).issuperset(sequence):
        return f"it has no known residue, only {', '.join(sorted(set(sequence)))}, whose atoms are undefined"
    return None


def directory_name(name: str) -> str:
    """Return a target's directory name: characters other than letters, digits, '_', '.' and '-' become '_'.

    For example, `sp|P0CG48|UBC_HUMAN` becomes `sp_P0CG48_UBC_HUMAN`, which needs no quotes in a shell and is valid on
    Windows. ColabFold names its files by the same rule.
    """
    letters = unicodedata.normalize("NFC", name)
    return "".join(letter if letter.isalnum() or letter in "_.-" else "_" for letter in letters)


def file_names(name: str) -> tuple[str, ...]:
    """Return the allowed names of a user's files for a target: its name, if a file can have it, and its directory name.

    Equal names are returned once.
    """
    own = (name,) if file_name_problem(name) is None else ()
    return tuple(dict.fromkeys((*own, directory_name(name))))


def filesystem_key(name: str) -> str:
    """Return a key that is equal for names that share a directory on any file system, including macOS and Windows."""
    return _without_case(directory_name(name))


def _without_case(name: str) -> str:
    """Return a name in the form in which names that differ only in case or Unicode form are equal."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def split_records(
    path: str | PathLike[str], lines: Iterable[bytes]
) -> Iterator[tuple[int, bytes, list[tuple[int, bytes]]]]:
    """Yield each record as the line number of its header, its header without '>', and its numbered lines.

    Raise `InputError` if the file is not FASTA, or has no records or more than `MAX_RECORDS`.
    """
    header: tuple[int, bytes] | None = None
    body: list[tuple[int, bytes]] = []
    count = size = 0
    for line_number, line in enumerate(lines, start=1):
        if line.startswith(b">"):
            if header is not None:
                yield *header, body
            check_record_count(path, line_number, count := count + 1)
            header, body, size = (line_number, line[1:]), [], 0
        elif header is not None:
            if not line:
                continue
            body.append((line_number, line))
            size += len(line)
            if size > MAX_RECORD_BYTES:
                problem = f"the record is longer than {MAX_RECORD_BYTES:,} bytes; {_TOO_LONG}"
                raise InputError.at(path, problem, line=header[0], record=first_word(header[1]))
        elif line.strip():
            name = str(path).lower().removesuffix(".gz")
            if line.startswith(_STRUCTURE_STARTS) or name.endswith(_STRUCTURE_SUFFIXES):
                raise InputError.at(path, _STRUCTURE_PROBLEM)
            kind = "binary data" if b"\0" in line else "a sequence"
            raise InputError.at(path, f"{kind} before any '>name' header; is this a FASTA file?", line=line_number)
    if header is None:
        raise InputError.at(path, _NO_RECORD)
    yield *header, body


def check_record_count(path: str | PathLike[str], line: int, count: int) -> None:
    """Raise `InputError` with `line` if `count`, the records of a file up to this line, is above `MAX_RECORDS`."""
    if count > MAX_RECORDS:
        problem = f"the file has more than the maximum of {MAX_RECORDS:,} records; split the file"
        raise InputError.at(path, problem, line=line)


def read_header(path: str | PathLike[str], line: int, header: bytes) -> tuple[str, str]:
    """Return the name (first word) and the description in a header without '>'.

    Raise `InputError` with `path` and `line` for an invalid target name.
    """
    name, _, description = header.decode("utf-8", "replace").strip(" \t").replace("\t", " ").partition(" ")
    if (problem := target_name_problem(name)) is not None:
        raise InputError.at(path, problem, line=line, record=name or None)
    return name, description.strip()


def read_sequence(path: str | PathLike[str], line: int, name: str, lines: list[tuple[int, bytes]]) -> str:
    """Return the sequence of a record from its numbered lines; `line` is the header's number; see `read_fasta`."""
    parts: list[str] = []
    last = max((line_number for line_number, text in lines if text.strip()), default=line)
    for line_number, raw in lines:
        text = raw.upper().decode("utf-8", "replace")  # upper() on bytes, because some non-ASCII letters become two
        if line_number == last:
            text = text.rstrip(" \t").removesuffix("*")
        residues = text.replace(" ", "").replace("\t", "")
        if (invalid := find_invalid_letter(residues)) is not None:
            column = [i for i, letter in enumerate(text, start=1) if letter not in " \t"][invalid[0]]
            raise InputError.at(path, invalid[1], line=line_number, column=column, record=name)
        parts.append(residues)
    sequence = "".join(parts)
    if (problem := sequence_problem(sequence)) is not None:
        raise InputError.at(path, problem, line=line, record=name)
    return sequence
