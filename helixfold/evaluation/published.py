"""The lists of targets in the package, where each comes from, and the scores that were published for it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

_LISTS = Path(__file__).parent / "lists"
_HELIXFOLD = "HelixFold, arXiv 2207.05477"


@dataclass(frozen=True, kw_only=True)
class PublishedScores:
    """Mean scores that were published for a program, from 0 to 1; None where no number was published."""

    program: str
    source: str
    tm_score: float | None = None
    lddt: float | None = None
    remark: str = ""


@dataclass(frozen=True, kw_only=True)
class TargetList:
    """A list of targets in the package: names and dates, without sequences or structures.

    `count` is the number of structures that the published means are over, and `origin` says where the names come from
    and how far they are known to be those of the publication.
    """

    path: Path
    what: str
    count: int
    origin: str
    published: tuple[PublishedScores, ...]


# The paper gives HelixFold's means; AlphaFold's are as high in TM-score, and 0.9 and 1.5 points higher in lDDT. Whether
# lDDT is over all atoms or over C-alpha atoms is not said.
TARGET_LISTS: Mapping[str, TargetList] = MappingProxyType(
    {
        "casp14": TargetList(
            path=_LISTS / "casp14.tsv",
            what="domains of CASP14",
            count=87,
            origin=(
                "the 87 domains of AlphaFold's evaluation (Jumper et al. 2021), as a public program that repeats it "
                "lists them; HelixFold's paper gives the number 87 and no names. Templates are those up to 2020-05-14, "
                "AlphaFold's limit for CASP14"
            ),
            published=(
                PublishedScores(program="HelixFold", source=_HELIXFOLD, tm_score=0.8771, lddt=0.7932),
                PublishedScores(
                    program="AlphaFold 2", source=_HELIXFOLD, lddt=0.8022, remark="TM-score equal to HelixFold's"
                ),
            ),
        ),
        "cameo_2021": TargetList(
            path=_LISTS / "cameo_2021.tsv",
            what="chains of CAMEO, 2021-09-04 to 2022-02-19",
            count=371,
            origin=(
                "all 372 chains that CAMEO lists for these weeks, by the table in NVIDIA's BioNeMo (the one in "
                "EigenFold's repository is equal for the weeks that it has); HelixFold's paper has 371 and no names, "
                "so one chain here is not among them"
            ),
            published=(
                PublishedScores(program="HelixFold", source=_HELIXFOLD, tm_score=0.8885, lddt=0.8344),
                PublishedScores(
                    program="AlphaFold 2", source=_HELIXFOLD, lddt=0.8494, remark="TM-score equal to HelixFold's"
                ),
            ),
        ),
        "cameo_2022": TargetList(
            path=_LISTS / "cameo_2022.tsv",
            what="chains of CAMEO, August 2022",
            count=60,
            origin=(
                "all 60 chains that CAMEO lists for 2022-08-06 to 2022-08-27, by the table in EigenFold's repository; "
                "HelixFold's README has 60 and no names"
            ),
            published=(PublishedScores(program="HelixFold", source="HelixFold's README", tm_score=0.9026),),
        ),
    }
)
