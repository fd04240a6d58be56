"""Search ColabFold's databases for many targets at once, with the same results as `colabfold_search`.

Results can be cached under a hash of search and query, so runs and targets with equal sequences share them.

The same programs run in the same order and with the same parameters as in `colabfold_search` (ColabFold 1.6; Mirdita et
al., Nat. Methods 2022). The representatives of clusters are searched with a profile in three iterations. The clusters
of the hits are replaced by their members, which are aligned to the profile and filtered. The remaining rows become the
alignment. In the steps, database names without a folder are in the working directory; `queries` holds the queries. A
`Step` is an MMseqs2 command with its arguments, except for threads. `UNPAIRED`, `PAIRED` and `TEMPLATE_HITS` are the
names of the databases of results.
"""

import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from data_pipeline.io.config import POSITIVE, Checked, at_least, between
from data_pipeline.io.errors import SearchError
from data_pipeline.io.files import atomic_write
from data_pipeline.search.colabfold_databases import (
    ClusterDatabase,
    check_sequences,
    database_size,
    is_indexed,
    with_ending,
)
from data_pipeline.search.mmseqs_program import MAX_RESIDUES
from data_pipeline.search.process import program_version, read_output, run_program, working_directory
from data_pipeline.search.tool import FileFormat

UNPAIRED, PAIRED, TEMPLATE_HITS = "final", "pairs", "template_hits"
Step = list[str]
# Columns of the table of template hits, as in ColabFold's server and `colabfold_search`.
_HIT_FORMAT = [
    "--format-output",
    "query,target,fident,alnlen,mismatch,gapopen,qstart,qend,tstart,tend,evalue,bits,cigar",
]
_ROW_FILTER = "--filter-min-enable 1000 --diff 3000 --qsc 0 --max-seq-id 0.95"
_MAX_ACCEPTED, _MAX_ACCEPTED_UNFILTERED = 100_000, 1_000_000


@dataclass(frozen=True, kw_only=True)
class ColabfoldOptions(Checked):
    """Options of a search of ColabFold's databases; the defaults are the same as in `colabfold_search`.

    The default sensitivity is MMseqs2's default, because `colabfold_search` passes k-mer thresholds in quotes, which
    MMseqs2 ignores. `max_hits` is the number of clusters that pass the prefilter. `filtered` drops poor hits if there
    are over 100, and near-duplicate rows if over 1,000. `gpu_server` uses the running `mmseqs gpuserver` of each
    database.
    """

    # ColabFold's server has about 8; a GPU search always has the maximum.
    sensitivity: Annotated[float, between(1, 10)] = 5.7
    e_value: Annotated[float, POSITIVE] = 0.1
    max_hits: Annotated[int, at_least(1)] = 10_000  # clusters that pass the prefilter
    filtered: bool = True  # drop poor hits if there are over 100, and near-duplicate rows if over 1,000
    gpu: bool = False  # databases must be padded for GPUs, as ColabFold's downloads are
    gpu_server: bool = False  # use the running `mmseqs gpuserver` of each database, which keeps it in GPU memory

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gpu_server and not self.gpu:
            raise ValueError("gpu_server needs gpu = true")

    def search(self) -> Step:
        """Return the options of `mmseqs search` for a profile search, without the databases."""
        limits = f"--num-iterations 3 -a -e {self.e_value:g} --max-seqs {self.max_hits}"
        return [*limits.split(), *self._prefilter(self.sensitivity)]

    def template_search(self) -> Step:
        """Return the options of `mmseqs search` for templates, with one iteration and the default number of hits.

        E-value and sensitivity are constants, and only the options for GPUs apply.
        """
        return ["-a", "-e", "0.1", *self._prefilter(7.5)]

    def _prefilter(self, sensitivity: float) -> Step:
        """Return the options of the prefilter; on a GPU, the sensitivity has no effect."""
        if not self.gpu:
            return ["--prefilter-mode", "0", "-s", f"{sensitivity:.1f}"]
        # The GPU prefilter compares all sequences without gaps.
        return ["--gpu", "1", "--prefilter-mode", "1", *(["--gpu-server", "1"] if self.gpu_server else [])]


def unpaired_steps(
    options: ColabfoldOptions, uniref: ClusterDatabase, environmental: ClusterDatabase | None, templates: Path | None
) -> list[Step]:
    """Return the steps that produce the alignments `UNPAIRED`, and `TEMPLATE_HITS` if there is a template database.

    Environmental sequences and templates are searched with the final profile of the UniRef search. Members of
    environmental clusters are aligned to the profile of their own search.
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
    """Return the steps from the clusters of the hits to the alignment of their members, `result`."""
    members, is_first = database.members, aligned_to == "queries"
    # `colabfold_search` filters the members of each cluster only for UniRef.
    cluster_filter = f"--expand-filter-clusters {int(options.filtered)} --max-seq-id 0.95".split() if is_first else []
    accepted = _MAX_ACCEPTED if options.filtered else _MAX_ACCEPTED_UNFILTERED
    score = "0.8" if options.filtered else "-20.0"
    expand = ["expandaln", aligned_to, members, "clusters", database.alignments, "members"]
    align = f"-e 10 --max-accept {accepted} --alt-ali 10 -a"
    hit_filter = f"--qid 0 --qsc {score} --diff 0 --max-seq-id 1.0 --filter-min-enable 100"
    identities = ["--qid", "0.0,0.2,0.4,0.6,0.8,1.0"]
    rows = ["--msa-format-mode", "6", "--filter-msa", str(int(options.filtered)), *_ROW_FILTER.split(), *identities]
    return [
        [*expand, "--expansion-mode", "0", "-e", "inf", *cluster_filter],
        ["align", profile, members, "members", "aligned", *align.split()],
        ["filterresult", "queries", members, "aligned", "good", *hit_filter.split()],
        ["result2msa", "queries", members, "good", result, *rows],
        *(["rmdb", name] for name in ("clusters", "members", "aligned", "good")),
    ]


def paired_steps(options: ColabfoldOptions, database: ClusterDatabase, *, complete: bool) -> list[Step]:
    """Return the steps that produce the alignments `PAIRED` of complexes, whose rows are paired by species.

    Hits are paired twice: first to drop hits without a partner; then, after the alignment, to add rows of gaps for
    sequences without a hit. With `complete`, only species with a hit for every sequence of the complex are paired.
    """
    members, mode = database.members, ["--pairing-mode", str(int(complete))]
    expand = ["expandaln", "queries", members, "clusters", database.alignments, "members"]
    score_options = f"--alignment-mode 1 -e 0.001 --max-accept {_MAX_ACCEPTED_UNFILTERED}".split()
    rows = ["--msa-format-mode", "5", "--filter-msa", "0", *_ROW_FILTER.split(), "--qid", "0.2,0.4,0.6,0.8,1.0"]
    return [
        ["search", "queries", str(database.path), "clusters", "search", *options.search()],
        ["mvdb", "search/latest/profile_1", "profile"],
        ["lndb", "queries_h", "profile_h"],
        [*expand, "--expansion-mode", "0", "-e", "inf", "--expand-filter-clusters", "0", "--max-seq-id", "0.95"],
        ["align", "profile", members, "members", "scored", *score_options],
        ["pairaln", "queries", str(database.path), "scored", "with_partner", *mode, "--pairing-dummy-mode", "0"],
        ["align", "profile", members, "with_partner", "aligned", "-e", "inf", "-a"],
        ["pairaln", "queries", str(database.path), "aligned", "paired", *mode, "--pairing-dummy-mode", "1"],
        ["result2msa", "queries", members, "paired", PAIRED, *rows],
    ]


# The fastest level still compresses alignments to a fifth, and does not slow down a search of a thousand targets.
_GZIP_LEVEL = 1


@dataclass(frozen=True)
class SharedResults:
    """A folder of search results, with files named by the hash of search and query.

    Any number of processes may read and write it at once. Damaged or deleted results are searched again, so any file
    can be deleted to save space.
    """

    directory: Path

    def find(self, identity: str, query: str) -> bytes | None:
        """Return the unpacked result of an earlier search with this identity and query; None if missing or damaged."""
        try:
            packed = self._path(identity, query).read_bytes()
            return gzip.decompress(packed) if packed else None
        except (OSError, EOFError, zlib.error):
            return None

    def save(self, identity: str, query: str, content: bytes) -> None:
        """Store a result; raise `OSError` if it cannot be written."""
        path = self._path(identity, query)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path, sync=False) as temporary:
            temporary.write_bytes(gzip.compress(content, _GZIP_LEVEL, mtime=0))

    def _path(self, identity: str, query: str) -> Path:
        name = hashlib.sha256(f"{identity}\n{query}".encode()).hexdigest()
        return self.directory / name[:2] / f"{name[2:]}.gz"


_FIRST_NAME = 101  # as in ColabFold; the sequences of a target are named 101, 102, ...
# Steps without an option for threads.
_STEPS_WITHOUT_THREADS = ("mvdb", "lndb", "rmdb", "mergedbs")
_STEPS_WITH_MAX_LENGTH = ("search", "align")


@dataclass(frozen=True, kw_only=True)
class MmseqsBatch(Checked):
    """Runs MMseqs2 with many queries at once; `cpus` is its number of threads, and `timeout` is per step in seconds."""

    program: Path
    cpus: Annotated[int, at_least(1)] = 4
    timeout: float | None = None  # seconds, for each step

    def version(self) -> str:
        """Return the version that the program prints."""
        return program_version(self.program, "version")

    def run(self, groups: Sequence[Sequence[str]], steps: Sequence[Step], results: Sequence[str]) -> list[list[bytes]]:
        """Run the steps for groups of sequences (complexes or single chains), and return the results.

        For each database name in `results`, there is a list with the content for each sequence of all groups in order.
        MMseqs2 pairs rows within a group. Raise `SearchError` if a step fails.
        """
        sequences = [sequence for group in groups for sequence in group]
        longest = max(map(len, sequences))
        with working_directory() as directory:
            names = (str(_FIRST_NAME + index) for group in groups for index in range(len(group)))
            records = (f">{name}\n{sequence}\n" for name, sequence in zip(names, sequences, strict=True))
            directory.joinpath("queries.fasta").write_text("".join(records))
            self._run(directory, ["createdb", "queries.fasta", "queries", "--shuffle", "0", "--dbtype", "1"])
            group_indices = (index for index, group in enumerate(groups) for _ in group)
            lines = (f"{key}\t{index}\t{index}\n" for key, index in enumerate(group_indices))
            directory.joinpath("queries.lookup").write_text("".join(lines))
            for step in steps:
                threads = [] if step[0] in _STEPS_WITHOUT_THREADS else ["--threads", str(self.cpus)]
                is_longer = longest > MAX_RESIDUES and step[0] in _STEPS_WITH_MAX_LENGTH
                self._run(directory, [*step, *threads, *(["--max-seq-len", str(longest)] if is_longer else [])])
            return [self._unpacked(directory, name, len(sequences)) for name in results]

    def _unpacked(self, directory: Path, name: str, count: int) -> list[bytes]:
        """Return the results of the first `count` queries from the database `name`; missing template hits are b""."""
        folder = directory / f"{name}_files"
        self._run(directory, ["unpackdb", name, folder.name, "--unpack-name-mode", "0", "--unpack-suffix", ".txt"])
        files = [folder / f"{key}.txt" for key in range(count)]
        if name == TEMPLATE_HITS:  # a query without hits has no lines
            return [file.read_bytes() if file.is_file() else b"" for file in files]
        return [read_output(self.program, file) for file in files]

    def _run(self, directory: Path, words: Step) -> None:
        run_program([self.program, *words, "-v", "2"], timeout=self.timeout, directory=directory)


@dataclass(frozen=True, kw_only=True)
class ColabfoldSearch:
    """Search of UniRef30, and optionally of environmental sequences, for homologs of many targets at once.

    Results are byte for byte the same as with `colabfold_search` and the same program, except for letters of the target
    that MMseqs2 replaces. Equal sequences are searched once; with `shared`, results are stored for other runs.
    `templates` is the prefix of a database of chains with known structures, which is searched in the same run.
    """

    file_format: ClassVar[FileFormat] = "a3m"
    targets_per_pass: ClassVar[int] = 10_000

    batch: MmseqsBatch
    uniref: ClusterDatabase
    environmental: ClusterDatabase | None = None
    templates: Path | None = None  # database of chains with known structures, searched in the same run
    options: ColabfoldOptions = field(default_factory=ColabfoldOptions)
    shared: SharedResults | None = None

    def __post_init__(self) -> None:
        if self.templates is not None:
            check_sequences(self.templates)

    def identity(self) -> str:
        """Return tool, version, options and databases in one line; equal lines give equal results."""
        databases = [self.uniref] if self.environmental is None else [self.uniref, self.environmental]
        names = " ".join(database.identity() for database in databases)
        search = " ".join(self.options.search())
        filtered = "filtered" if self.options.filtered else "unfiltered"
        return f"mmseqs {self.batch.version()} colabfold {search} {filtered} in {names}"

    def template_identity(self) -> str:
        """Return the identity of the template search, which includes UniRef because it determines the profile."""
        name = "" if self.templates is None else f"{self.templates.name}:{database_size(self.templates)}"
        search = " ".join([*self.options.search(), *self.options.template_search()])
        return f"mmseqs {self.batch.version()} colabfold {search} in {self.uniref.identity()} then {name}"

    def search(self, sequence: str) -> bytes:
        """Return the a3m of all homologs; the first row is the target, named "101" as in ColabFold."""
        (result,) = self.search_many([sequence])
        return result

    def search_many(self, sequences: Sequence[str]) -> list[bytes]:
        """Return the result of `search` for each sequence; raise `SearchError` if MMseqs2 fails."""
        return [alignment for alignment, _ in self._results(sequences)]

    def template_hits(self, sequence: str) -> bytes:
        """Return the table of template hits of a sequence (MMseqs2's m8 with CIGAR strings), best first.

        It runs or reuses the whole search of the sequence. Without a template database, the table is empty.
        """
        ((_, hits),) = self._results([sequence])
        return hits

    def _results(self, sequences: Sequence[str]) -> list[tuple[bytes, bytes]]:
        """Return the alignment and the template hits of each sequence, stored or searched."""
        results: dict[str, tuple[bytes, bytes]] = {}
        for sequence in dict.fromkeys(sequences):
            stored = self._stored(sequence)
            if stored is not None:
                results[sequence] = stored
        missing = [sequence for sequence in dict.fromkeys(sequences) if sequence not in results]
        if missing:
            results |= zip(missing, self._run_search(missing), strict=True)
        return [results[sequence] for sequence in sequences]

    def _stored(self, sequence: str) -> tuple[bytes, bytes] | None:
        """Return the shared alignment and template hits of a sequence; None if one of them is missing."""
        if self.shared is None:
            return None
        alignment = self.shared.find(self.identity(), sequence)
        hits = b"" if self.templates is None else self.shared.find(self.template_identity(), sequence)
        return None if alignment is None or hits is None else (alignment, hits)

    def _run_search(self, sequences: Sequence[str]) -> Iterable[tuple[bytes, bytes]]:
        """Search for the sequences together, store the results, and return alignment and template hits of each."""
        steps = unpaired_steps(self.options, self.uniref, self.environmental, self.templates)
        names = [UNPAIRED] if self.templates is None else [UNPAIRED, TEMPLATE_HITS]
        alignments, *tables = self.batch.run([[sequence] for sequence in sequences], steps, names)
        alignments = list(map(with_own_query, alignments, sequences))
        hits = tables[0] if tables else [b""] * len(sequences)
        for sequence, alignment, table in zip(sequences, alignments, hits, strict=True):
            self._store(self.identity, sequence, alignment)
            if self.templates is not None:
                self._store(self.template_identity, sequence, table)
        return zip(alignments, hits, strict=True)

    def _store(self, identity: Callable[[], str], sequence: str, content: bytes) -> None:
        if self.shared is not None:
            with suppress(OSError):  # with a full disk, other runs search again
                self.shared.save(identity(), sequence, content)


@dataclass(frozen=True, kw_only=True)
class ColabfoldTemplates:
    """Search for chains of known structure with the profile of a `ColabfoldSearch`, in its template database."""

    input_format: ClassVar[FileFormat] = "a3m"
    file_format: ClassVar[FileFormat] = "m8"

    alignments: ColabfoldSearch

    def identity(self) -> str:
        """Return tool, version, options and databases in one line; equal lines give equal results."""
        return self.alignments.template_identity()

    def search(self, alignment: bytes) -> bytes:
        """Return the hits of the target, the first row of an a3m; the other rows are not read.

        The UniRef search provides the profile, so this is fast if its results are stored.
        """
        return self.alignments.template_hits(alignment.split(b"\n", 2)[1].decode())


@dataclass(frozen=True, kw_only=True)
class ColabfoldPairing:
    """Search of UniRef30 for rows of all sequences of a complex, paired by species.

    With `complete`, only species with a hit for every sequence of the complex are paired. With `shared`, results are
    stored for other runs.
    """

    batch: MmseqsBatch
    database: ClusterDatabase
    options: ColabfoldOptions = field(default_factory=ColabfoldOptions)
    complete: bool = False  # only species with a hit for every sequence of the complex
    shared: SharedResults | None = None

    def identity(self) -> str:
        """Return tool, version, options and database in one line; equal lines give equal results."""
        mode = "complete" if self.complete else "greedy"
        search = " ".join(self.options.search())
        return f"mmseqs {self.batch.version()} colabfold pair {mode} {search} in {self.database.identity()}"

    def search(self, sequences: Sequence[str]) -> list[bytes]:
        """Return one a3m per sequence of a complex; the first row is the sequence itself, named "101", "102", ...

        The sequences must differ. All a3ms have the same number of rows. Rows with the same index come from one
        species, and consist of gaps for sequences without a hit. A single sequence has only its own row, or with
        `complete` one row per species. Raise `SearchError` if MMseqs2 fails.
        """
        (results,) = self.search_many([sequences])
        return results

    def search_many(self, complexes: Sequence[Sequence[str]]) -> list[list[bytes]]:
        """Return the result of `search` for each complex; all are searched together, and equal complexes once."""
        for sequences in complexes:
            if len(set(sequences)) < max(1, len(sequences)):
                raise ValueError("the sequences of a complex must differ, because rows are paired between them")
        keys = [":".join(sequences) for sequences in complexes]
        groups = dict(zip(keys, complexes, strict=True))
        by_key = {key: stored for key, group in groups.items() if (stored := self._stored(group)) is not None}
        missing = [group for key, group in groups.items() if key not in by_key]
        if missing:
            steps = paired_steps(self.options, self.database, complete=self.complete)
            (contents,) = self.batch.run(missing, steps, [PAIRED])
            results = iter(contents)
            for group in missing:
                own = [with_own_query(next(results), sequence) for sequence in group]
                by_key[":".join(group)] = own
                self._store(group, own)
        return [by_key[key] for key in keys]

    def _stored(self, sequences: Sequence[str]) -> list[bytes] | None:
        if self.shared is None:
            return None
        contents = [self.shared.find(self.identity(), query) for query in _queries(sequences)]
        return None if None in contents else [content for content in contents if content is not None]

    def _store(self, sequences: Sequence[str], contents: Sequence[bytes]) -> None:
        if self.shared is not None:
            with suppress(OSError):
                for query, content in zip(_queries(sequences), contents, strict=True):
                    self.shared.save(self.identity(), query, content)


def _queries(sequences: Sequence[str]) -> list[str]:
    """Return a unique query text for each sequence of a complex."""
    return [f"{index} of {':'.join(sequences)}" for index in range(len(sequences))]


def with_own_query(content: bytes, sequence: str) -> bytes:
    """Return the a3m `content` with `sequence` as its first row, because MMseqs2 writes D for B, E for Z and L for J.

    Raise `SearchError` if the first row has another length.
    """
    header, _, rest = content.partition(b"\n")
    row, newline, rest = rest.partition(b"\n")
    if not header.startswith(b">") or len(row) != len(sequence):
        raise SearchError("the first row of an alignment of mmseqs is not the target")
    return header + b"\n" + sequence.encode() + newline + rest
