"""The programs that a search of ColabFold's databases runs, in order, as words of the MMseqs2 command line.

The steps and their parameters are those of `colabfold_search` (ColabFold 1.6; Mirdita et al., Nat. Methods 2022): the
representatives of clusters are searched with a profile in three iterations, found clusters are replaced by their
members, which are aligned to the profile and filtered, and what is left becomes an alignment. Names of databases
without a folder are those of the working directory; the queries are in `queries`.
"""

from dataclasses import dataclass
from pathlib import Path

from data_pipeline.errors import check_at_least, check_positive
from data_pipeline.search.colabfold_databases import ClusterDatabase, is_indexed, with_ending

UNPAIRED, PAIRED, TEMPLATE_HITS = "final", "pairs", "template_hits"
Step = list[str]
# Columns of the table of template hits, as ColabFold's server and `colabfold_search` write it.
_HIT_FORMAT = [
    "--format-output",
    "query,target,fident,alnlen,mismatch,gapopen,qstart,qend,tstart,tend,evalue,bits,cigar",
]
_ROWS = "--filter-min-enable 1000 --diff 3000 --qsc 0 --max-seq-id 0.95"
_MAX_ACCEPTED, _MAX_ACCEPTED_UNFILTERED = 100_000, 1_000_000


@dataclass(frozen=True, kw_only=True)
class ColabfoldOptions:
    """Options of a search of ColabFold's databases; the defaults are those of `colabfold_search`.

    Its default sensitivity is MMseqs2's own: it asks for k-mer thresholds instead, in quotes, which MMseqs2 ignores.
    """

    sensitivity: float = 5.7  # 8 is about what ColabFold's server has; the search on a GPU has its own, the highest
    e_value: float = 0.1
    max_hits: int = 10_000  # clusters that pass the prefilter
    filtered: bool = True  # drop poor hits where there are over 100, and nearly equal rows where there are over 1,000
    gpu: bool = False  # databases must be padded for GPUs, as those that ColabFold offers are
    gpu_server: bool = False  # use the running `mmseqs gpuserver` of each database, which holds it in GPU memory

    def __post_init__(self) -> None:
        if not 1 <= self.sensitivity <= 10:
            raise ValueError(f"sensitivity must be between 1 and 10, got {self.sensitivity}")
        check_positive(self, "e_value")
        check_at_least(self, max_hits=1)
        if self.gpu_server and not self.gpu:
            raise ValueError("gpu_server is for searches on a GPU; set gpu = true too")

    def search(self) -> Step:
        """Return the words of a profile search."""
        limits = f"--num-iterations 3 -a -e {self.e_value:g} --max-seqs {self.max_hits}"
        return [*limits.split(), *self._prefilter(self.sensitivity)]

    def template_search(self) -> Step:
        """Return the words of the search for templates, which has one iteration and MMseqs2's number of hits."""
        return ["-a", "-e", "0.1", *self._prefilter(7.5)]

    def _prefilter(self, sensitivity: float) -> Step:
        if not self.gpu:
            return ["--prefilter-mode", "0", "-s", f"{sensitivity:.1f}"]
        # On a GPU all sequences are compared without gaps.
        return ["--gpu", "1", "--prefilter-mode", "1", *(["--gpu-server", "1"] if self.gpu_server else [])]


def unpaired_steps(
    options: ColabfoldOptions, uniref: ClusterDatabase, environmental: ClusterDatabase | None, templates: Path | None
) -> list[Step]:
    """Return the steps that make the alignments `UNPAIRED`, and `TEMPLATE_HITS` if there is a template database.

    Environmental sequences and templates are searched with the profile that the search of UniRef ends with; members
    of environmental clusters are aligned to the profile of their own search.
    """
    steps = [
        ["search", "queries", str(uniref.path), "clusters", "search", *options.search()],
        ["mvdb", "search/latest/profile_1", "profile"],
        ["lndb", "queries_h", "profile_h"],
        *_members(options, uniref, aligned_to="queries", profile="profile", result="uniref"),
    ]
    if environmental is not None:
        steps += [
            ["search", "profile", str(environmental.path), "clusters", "second_search", *options.search()],
            *_members(
                options,
                environmental,
                aligned_to="profile",
                profile="second_search/latest/profile_1",
                result="environmental",
            ),
            ["mergedbs", "queries", UNPAIRED, "uniref", "environmental"],
        ]
    else:
        steps.append(["mvdb", "uniref", UNPAIRED])
    if templates is not None:
        names = str(with_ending(templates, ".idx") if is_indexed(templates) else templates)
        steps += [
            ["search", "profile", str(templates), "chains", "template_search", *options.template_search()],
            ["convertalis", "profile", names, "chains", TEMPLATE_HITS, "--db-output", "1", *_HIT_FORMAT],
        ]
    return steps


def _members(
    options: ColabfoldOptions, database: ClusterDatabase, *, aligned_to: str, profile: str, result: str
) -> list[Step]:
    """Return the steps from found clusters to the alignment of their members, `result`."""
    members, is_first = database.members, aligned_to == "queries"
    # `colabfold_search` filters the members of each cluster of UniRef alone.
    thinned = f"--expand-filter-clusters {int(options.filtered)} --max-seq-id 0.95".split() if is_first else []
    accepted = _MAX_ACCEPTED if options.filtered else _MAX_ACCEPTED_UNFILTERED
    score = "0.8" if options.filtered else "-20.0"
    expand = ["expandaln", aligned_to, members, "clusters", database.alignments, "members"]
    align = f"-e 10 --max-accept {accepted} --alt-ali 10 -a"
    good = f"--qid 0 --qsc {score} --diff 0 --max-seq-id 1.0 --filter-min-enable 100"
    identities = ["--qid", "0.0,0.2,0.4,0.6,0.8,1.0"]
    rows = ["--msa-format-mode", "6", "--filter-msa", str(int(options.filtered)), *_ROWS.split(), *identities]
    return [
        [*expand, "--expansion-mode", "0", "-e", "inf", *thinned],
        ["align", profile, members, "members", "aligned", *align.split()],
        ["filterresult", "queries", members, "aligned", "good", *good.split()],
        ["result2msa", "queries", members, "good", result, *rows],
        *(["rmdb", name] for name in ("clusters", "members", "aligned", "good")),
    ]


def paired_steps(options: ColabfoldOptions, database: ClusterDatabase, *, complete: bool) -> list[Step]:
    """Return the steps that make the alignments `PAIRED` of complexes, whose rows are paired by species.

    Hits are paired twice: to drop those that have no partner, then, after these are aligned, to put gaps where a
    sequence has none. With `complete`, only species are paired that every sequence of a complex has a hit of.
    """
    members, mode = database.members, ["--pairing-mode", str(int(complete))]
    expand = ["expandaln", "queries", members, "clusters", database.alignments, "members"]
    scored = f"--alignment-mode 1 -e 0.001 --max-accept {_MAX_ACCEPTED_UNFILTERED}".split()
    rows = ["--msa-format-mode", "5", "--filter-msa", "0", *_ROWS.split(), "--qid", "0.2,0.4,0.6,0.8,1.0"]
    return [
        ["search", "queries", str(database.path), "clusters", "search", *options.search()],
        ["mvdb", "search/latest/profile_1", "profile"],
        ["lndb", "queries_h", "profile_h"],
        [*expand, "--expansion-mode", "0", "-e", "inf", "--expand-filter-clusters", "0", "--max-seq-id", "0.95"],
        ["align", "profile", members, "members", "scored", *scored],
        ["pairaln", "queries", str(database.path), "scored", "with_partner", *mode, "--pairing-dummy-mode", "0"],
        ["align", "profile", members, "with_partner", "aligned", "-e", "inf", "-a"],
        ["pairaln", "queries", str(database.path), "aligned", "paired", *mode, "--pairing-dummy-mode", "1"],
        ["result2msa", "queries", members, "paired", PAIRED, *rows],
    ]
