"""Search databases of profiles (BFD, UniRef30) for homologs of a sequence with HHblits.

AlphaFold 2, Suppl. Sec. 1.2.2: HHblits 3 over BFD and Uniclust30 together.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from data_pipeline.errors import check_at_least
from data_pipeline.search.hhsuite import HhsuiteSearch
from data_pipeline.search.tool import FileFormat


@dataclass(frozen=True, kw_only=True)
class HhblitsOptions:
    """Options of HHblits; the defaults are AlphaFold's."""

    iterations: int = 3
    e_value: float = 0.001  # of hits whose rows enter the alignment
    max_rows: int = 1_000_000  # of an input alignment
    max_realigned: int = 100_000  # hits whose alignment is refined
    max_prefiltered: int = 100_000  # hits that pass the second prefilter
    min_prefiltered: int = 1_000  # hits that pass the first prefilter whatever their score
    unfiltered: bool = False  # keep rows that are nearly equal to others

    def __post_init__(self) -> None:
        if not 1 <= self.iterations <= 8:
            raise ValueError(f"iterations must be between 1 and 8, got {self.iterations}")
        if not 0 < self.e_value <= 1:
            raise ValueError(f"e_value must be above 0 and at most 1, got {self.e_value}")
        check_at_least(self, max_rows=1, max_realigned=1, max_prefiltered=1, min_prefiltered=1)

    def arguments(self) -> list[str]:
        """Return the options as HHblits 3 takes them."""
        arguments = ["-n", str(self.iterations), "-e", f"{self.e_value:g}", "-maxseq", str(self.max_rows)]
        arguments += ["-realign_max", str(self.max_realigned), "-maxfilt", str(self.max_prefiltered)]
        arguments += ["-min_prefilter_hits", str(self.min_prefiltered)]
        return [*arguments, "-all"] if self.unfiltered else arguments


@dataclass(frozen=True, kw_only=True)
class Hhblits(HhsuiteSearch):
    """Search of hh-suite databases, all at once, for a sequence's homologs; the result is an a3m."""

    file_format: ClassVar[FileFormat] = "a3m"

    options: HhblitsOptions = field(default_factory=HhblitsOptions)

    def identity(self) -> str:
        """Return tool, version, options and databases in one line; equal lines give equal results."""
        return self.identity_of("hhblits", self.options.arguments())

    def search(self, sequence: str) -> bytes:
        """Return the a3m of all homologs, the target first under the name "query"."""
        query = f">query\n{sequence}\n".encode()
        outputs = ("-oa3m", "hits.a3m", "-o", "hits.hhr")
        return self.run("query.fasta", query, len(sequence), self.options.arguments(), outputs)
