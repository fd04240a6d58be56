"""Search requests in the format of ColabFold's MSA server: alignments, paired alignments, or template structures."""

import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

from data_pipeline.io.errors import InputError, choice_problem
from data_pipeline.parse.fasta import find_invalid_letter
from data_pipeline.search.server_archive import ENVIRONMENTAL_FILE, PAIRED_FILE, TEMPLATE_FILE, UNIREF_FILE

__all__ = ["ARCHIVE_FILE", "ENVIRONMENTAL_FILE", "PAIRED_FILE", "TEMPLATE_FILE", "UNIREF_FILE", "AlignmentRequest"]

AlignmentKind = Literal["msa", "pair", "template"]
ARCHIVE_FILE: Final = "result.tar.gz"
# The modes that each kind of search accepts, as in ColabFold's server.
MODES: Final[dict[str, tuple[str, ...]]] = {
    "msa": ("env", "all", "env-nofilter", "nofilter"),
    "pair": ("pairgreedy", "paircomplete", "pairgreedy-env", "paircomplete-env"),
    "template": ("",),
}
MAX_SEQUENCES: Final = 100  # of one request
MAX_TEMPLATES: Final = 50  # of one request
_MAX_QUERY_LETTERS: Final = 2**20  # characters of a query's text, and residues of all its sequences
# ColabFold numbers its records from 101, Protenix names them query_0.
_RECORD_NAME = re.compile(r"[A-Za-z0-9_]{1,40}")
_TEMPLATE_NAME = re.compile(r"(pdb_)?[A-Za-z0-9]{4,12}_[A-Za-z0-9]{1,8}")


@dataclass(frozen=True, kw_only=True)
class AlignmentRequest:
    """A search that another program requests. Raise `InputError` if a value is invalid.

    `mode` selects databases and filters, as in ColabFold's server. For the kinds "msa" and "pair", `names` are the
    names of the FASTA records, and `sequences` their sequences in the same order. For the kind "template", `names` are
    template hits such as 1abc_A, and `sequences` is empty.
    """

    kind: AlignmentKind
    mode: str = ""
    names: tuple[str, ...]
    sequences: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in MODES or self.mode not in MODES[self.kind]:
            raise InputError(f"mode {choice_problem(self.mode, MODES.get(self.kind, ()))}")
        if self.kind == "template":
            if not 0 < len(self.names) <= MAX_TEMPLATES or not all(map(_TEMPLATE_NAME.fullmatch, self.names)):
                raise InputError(f"name 1 to {MAX_TEMPLATES} hits such as 1abc_A, separated by commas")
            return
        if not 0 < len(self.names) <= MAX_SEQUENCES or len(set(self.names)) < len(self.names):
            raise InputError(f"a query has 1 to {MAX_SEQUENCES} records with different names, got {len(self.names)}")
        if len(self.sequences) != len(self.names) or self.residues > _MAX_QUERY_LETTERS:
            raise InputError(f"a query has a sequence for each name, and at most {_MAX_QUERY_LETTERS:,} residues")
        for name, sequence in zip(self.names, self.sequences, strict=True):
            if not _RECORD_NAME.fullmatch(name):
                raise InputError(f"records are named by digits, letters and _, such as >101, got {name[:40]!a}")
            if (invalid := find_invalid_letter(sequence)) is not None or not sequence:
                problem = "it has no sequence" if invalid is None else f"letter {invalid[0] + 1}: {invalid[1]}"
                raise InputError(f"record {name}: {problem}")

    @property
    def residues(self) -> int:
        """Return the total number of residues of the sequences."""
        return sum(map(len, self.sequences))

    def job_id(self, secret: bytes) -> str:
        """Return the job id of this request, 32 hexadecimal digits that equal requests share.

        `secret` is known only to the service, so that nobody else can compute the id from the sequences.
        """
        text = repr((self.kind, self.mode, self.names, self.sequences))
        return hmac.new(secret, f"alignment:{text}".encode(), hashlib.sha256).hexdigest()[:32]

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Self:
        """Return the request in a message that the server sent to a worker."""
        lists = {name: tuple(map(str, content[name])) for name in ("names", "sequences")}
        return cls(kind=content["kind"], mode=str(content["mode"]), **lists)

    @classmethod
    def of_text(cls, kind: AlignmentKind, text: str, mode: str) -> Self:
        """Parse FASTA records with short names, as clients of ColabFold's server send them.

        Whole headers are the names; sequences are converted to upper case. Raise `InputError` for invalid records.
        """
        if len(text) > _MAX_QUERY_LETTERS:
            raise InputError(f"the query has {len(text):,} characters; the maximum is {_MAX_QUERY_LETTERS:,}")
        count = text.count(">")
        if not 0 < count <= MAX_SEQUENCES:
            raise InputError(f"a query has 1 to {MAX_SEQUENCES} records, got {count:,}")
        names, sequences = [], []
        for record in text.split(">")[1:]:
            header, _, body = record.partition("\n")
            names.append(header.strip())
            sequences.append("".join(body.split()).upper())
        return cls(kind=kind, mode=mode, names=tuple(names), sequences=tuple(sequences))

    @classmethod
    def of_templates(cls, text: str) -> Self:
        """Parse a request for the structures of template hits, whose names are separated by commas.

        Repeated and empty names are left out. Raise `InputError` if a name is invalid or the number of names is wrong.
        """
        names = tuple(dict.fromkeys(name for name in text.split(",") if name))
        return cls(kind="template", names=names)
