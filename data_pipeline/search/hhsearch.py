"""Search a database of profiles such as PDB70 for chains of known structure that match an alignment with HHsearch.

AlphaFold 2, Suppl. Sec. 1.2.3: HHsearch with the alignment of the UniRef90 search, over PDB70.
"""

import re
from dataclasses import dataclass, field
from typing import ClassVar

from data_pipeline.errors import check_at_least
from data_pipeline.search.hhsuite import HhsuiteSearch
from data_pipeline.search.tool import FileFormat

_DATE_LINE = re.compile(rb"^Date .*\n", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class HhsearchOptions:
    """Options of HHsearch; the default is AlphaFold's."""

    max_rows: int = 1_000_000  # of the alignment

    def __post_init__(self) -> None:
        check_at_least(self, max_rows=1)

    def arguments(self) -> list[str]:
        """Return the options as HHsearch 3 takes them."""
        return ["-maxseq", str(self.max_rows)]


@dataclass(frozen=True, kw_only=True)
class Hhsearch(HhsuiteSearch):
    """Search of hh-suite databases, all at once, for chains that match an alignment; the result is an hhr."""

    input_format: ClassVar[FileFormat] = "a3m"
    file_format: ClassVar[FileFormat] = "hhr"

    options: HhsearchOptions = field(default_factory=HhsearchOptions)

    def identity(self) -> str:
        """Return tool, version, options and databases in one line; equal lines give equal results."""
        return self.identity_of("hhsearch", self.options.arguments())

    def search(self, alignment: bytes) -> bytes:
        """Return the hhr of an a3m whose first row is the target, without the date: equal searches give equal bytes."""
        end = alignment.find(b"\n>", 1)
        columns = len(alignment) if end < 0 else end  # the target's residues, or somewhat more
        hits = self.run("query.a3m", alignment, columns, self.options.arguments(), ("-o", "hits.hhr"))
        return _DATE_LINE.sub(b"", hits, count=1)
