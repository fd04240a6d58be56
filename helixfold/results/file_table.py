"""Table of the files that a run writes: their names and purposes, and the modules that write and read them.

Each constant is the `FileKind` of one kind of file. `FILES` has all of them: for resuming, --slim, archives, the
report's list of files, ColabFold's names and docs/reference/outputs.md.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from string import Formatter
from typing import Final, Literal

PDB, MMCIF = ".pdb", ".cif"
# Directory of a file: the target's directory, the output directory or packed/. `helixfold design` has the last two.
Place = Literal["target", "output", "packed", "design", "designs"]
# These fields of patterns are numbers; other fields may be any text.
_NUMERIC = ("rank", "seed", "part", "parts", "index", "number")


@dataclass(frozen=True, kw_only=True)
class FileKind:
    """A kind of file, whose name is a filled-in pattern and one of `suffixes`; a directory's pattern ends in /."""

    pattern: str  # with fields in braces, such as "confidence_{prediction}"
    suffixes: tuple[str, ...] = ("",)
    purpose: str  # what it is, for the report's list of files and docs/reference/outputs.md
    link: str = ""  # to a section of the documentation, relative to docs/reference/outputs.md
    place: Place = "target"
    writer: str  # module
    readers: tuple[str, ...] = ()  # modules
    is_slim: bool = False  # kept by --slim
    is_input: bool = False  # kept when a target is predicted again from the start
    is_required: bool = False  # a prediction without it is computed again
    option: str = ""  # of FoldingOptions; if it is set, a prediction without the file is computed again
    since: str = "0.3"  # first version that wrote the file

    def name(self, suffix: str | None = None, **fields: str | int) -> str:
        """Return the file's name, by default with the first suffix; `fields` are the values of the pattern's fields."""
        return self.pattern.format(**fields) + (self.suffixes[0] if suffix is None else suffix)

    def path(self, directory: Path, suffix: str | None = None, **fields: str | int) -> Path:
        """Return the file's path in a directory; see `name`."""
        return directory / self.name(suffix, **fields)

    def match(self, name: str) -> dict[str, str] | None:
        """Return the values of a file name's fields, and its `suffix`; None if it is not a name of this kind."""
        match = self._expression.fullmatch(name)
        return None if match is None else match.groupdict()

    def files(self, directory: Path) -> Iterator[tuple[Path, dict[str, str]]]:
        """Yield the paths in a directory that are named like this kind, sorted, with the fields of their names."""
        for path in sorted(directory.iterdir()) if directory.is_dir() else ():
            if (fields := self.match(path.name)) is not None:
                yield path, fields

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        parts = [
            re.escape(text) + ("" if field is None else rf"(?P<{field}>{'[0-9]+' if field in _NUMERIC else '.+'})")
            for text, field, _, _ in Formatter().parse(self.pattern)
        ]
        return re.compile(f"{''.join(parts)}(?P<suffix>{'|'.join(map(re.escape, self.suffixes))})")


REPORT: Final = FileKind(
    pattern="report",
    suffixes=(".html",),
    purpose="everything below on one page that needs no network: structure in 3-D, confidence, MSA, templates, times",
    link="#the-report",
    writer="helixfold.report.target_page",
    since="0.1",
)
RANKED: Final = FileKind(
    pattern="ranked_{rank}",
    suffixes=(PDB, MMCIF),
    purpose="structures, the best is 0, relaxed where relaxation was done; B-factors are pLDDT (0 to 100)",
    writer="helixfold.results.prediction",
    readers=("helixfold.results.find", "helixfold.apps.serve.web.api_nim"),
    is_slim=True,
    since="0.1",
)
RELAXED: Final = FileKind(
    pattern="relaxed_{prediction}",
    suffixes=(PDB, MMCIF),
    purpose="structures after relaxation",
    writer="helixfold.results.relaxed",
    readers=("helixfold.results.prediction", "helixfold.report.files"),
    since="0.1",
)
UNRELAXED: Final = FileKind(
    pattern="unrelaxed_{prediction}",
    suffixes=(PDB, MMCIF),
    purpose="structures as the network predicts them; the mmCIF files follow ModelCIF",
    link="#mmcif-files",
    writer="helixfold.results.prediction",
    readers=("helixfold.results.relaxed", "helixfold.report.files"),
    is_required=True,
    since="0.1",
)
CONFIDENCE: Final = FileKind(
    pattern="confidence_{prediction}",
    suffixes=(".json",),
    purpose="pLDDT of every residue, pTM, summaries by chain, pair of chains and domain, depth of the alignment",
    link="#confidence",
    writer="helixfold.results.prediction",
    readers=("helixfold.results.confidence", "helixfold.report.pulldown", "helixfold.results.tables"),
    is_slim=True,
    is_required=True,
    since="0.1",
)
PAE: Final = FileKind(
    pattern="pae_{prediction}",
    suffixes=(".json",),
    purpose="predicted aligned error, in the format of the AlphaFold DB",
    writer="helixfold.results.prediction",
    readers=("helixfold.report.target_page", "helixfold.report.plot_files", "helixfold.results.tables"),
    is_slim=True,
    is_required=True,
    since="0.1",
)
PAE_PAIRS: Final = FileKind(
    pattern="pae_{prediction}",
    suffixes=(".bcif.gz",),
    purpose="the same in ModelCIF's format, for depositions: a row for each pair of residues, in BinaryCIF",
    writer="helixfold.results.prediction",
    readers=("helixfold.results.relaxed",),
    is_slim=True,
)
DISTANCES: Final = FileKind(
    pattern="distances_{prediction}",
    suffixes=(".npz",),
    purpose="expected distances and contact probabilities of all residue pairs",
    writer="helixfold.results.prediction",
    readers=("helixfold.report.target_page",),
    since="0.1",
)
RECYCLES: Final = FileKind(
    pattern="recycles_{prediction}",
    suffixes=(PDB,),
    purpose="with --save-recycles, if they fit a PDB file: structures of all iterations, superimposed on the last",
    writer="helixfold.results.prediction",
    option="save_passes",
)
LOGITS: Final = FileKind(
    pattern="logits_{prediction}",
    suffixes=(".npz",),
    purpose="logits of all heads, only with --save-logits",
    writer="helixfold.results.prediction",
    is_slim=True,
    option="logits",
    since="0.1",
)
REPRESENTATIONS: Final = FileKind(
    pattern="representations_{prediction}",
    suffixes=(".npz", ".safetensors"),
    purpose="representations of the target inside the network, only with --save-representations",
    link="#representations",
    writer="helixfold.results.prediction",
    is_slim=True,
    option="representations",
)
FEATURES: Final = FileKind(
    pattern="features",
    suffixes=(".npz",),
    purpose="the model's input features: sequence, alignment, templates",
    writer="helixfold.apps.search",
    readers=("helixfold.apps.predict.lot", "helixfold.apps.predict.postprocess", "helixfold.report.files"),
    is_input=True,
    since="0.1",
)
RANKING: Final = FileKind(
    pattern="ranking_debug",
    suffixes=(".json",),
    purpose="order of the predictions; written last, so its presence means that the target is finished",
    writer="helixfold.results.prediction",
    readers=("helixfold.apps.predict.resume", "helixfold.report.files", "helixfold.apps.cluster.batch"),
    is_slim=True,
    since="0.1",
)
TIMINGS: Final = FileKind(
    pattern="timings",
    suffixes=(".json",),
    purpose="time and peak memory of every stage, estimated and measured",
    writer="helixfold.results.prediction",
    readers=("helixfold.apps.predict.resume", "helixfold.report.files"),
    since="0.1",
)
TEMPLATES: Final = FileKind(
    pattern="templates",
    suffixes=(".json",),
    purpose="the templates that the run's models used, and for each other hit the reason why it was not used",
    writer="helixfold.apps.search",
    readers=("helixfold.report.files",),
    since="0.1",
)
RELAXATION: Final = FileKind(
    pattern="relax_metrics",
    suffixes=(".json",),
    purpose="what relaxation changed: energies and violations before and after",
    writer="helixfold.results.relaxed",
    readers=("helixfold.report.files", "helixfold.report.index"),
    is_slim=True,
    since="0.1",
)
SETTINGS: Final = FileKind(
    pattern="settings",
    suffixes=(".json",),
    purpose="how the results were made: checksums of inputs and parameters, options, seeds, programs, device, command",
    link="#what-made-a-result",
    writer="helixfold.apps.predict.record",
    readers=("helixfold.apps.predict.resume", "helixfold.report.files", "helixfold.report.provenance"),
    is_slim=True,
    since="0.1",
)
ENSEMBLE_PAGE: Final = FileKind(
    pattern="ensemble",
    suffixes=(".html",),
    purpose="conformations of more than five predictions, and how they compare",
    link="../how-to/conformations.md#the-ensemble-page",
    writer="helixfold.report.ensemble",
    readers=("helixfold.report.target_page",),
)
ENSEMBLE_TABLE: Final = FileKind(
    pattern="ensemble",
    suffixes=(".tsv",),
    purpose="the same predictions as a table, with their conformations",
    writer="helixfold.report.ensemble",
)
FLUCTUATIONS_TABLE: Final = FileKind(
    pattern="ensemble_rmsf",
    suffixes=(".tsv",),
    purpose="fluctuations of each residue over the same predictions",
    writer="helixfold.report.ensemble",
)
VARIANTS_TABLE: Final = FileKind(
    pattern="alignments",
    suffixes=(".tsv",),
    purpose="variants of the alignment that were used for predictions",
    link="../how-to/conformations.md",
    writer="helixfold.apps.predict.variants",
)
CLUSTERS_TABLE: Final = FileKind(
    pattern="clusters",
    suffixes=(".tsv",),
    purpose="the cluster of each row of the alignment",
    writer="helixfold.apps.predict.variants",
)
PLDDT_PLOT: Final = FileKind(
    pattern="plddt",
    suffixes=(".png",),
    purpose="plot of pLDDT along the chain",
    writer="helixfold.report.plot_files",
    readers=("helixfold.results.colabfold",),
    since="0.1",
)
PAE_PLOT: Final = FileKind(
    pattern="pae",
    suffixes=(".png",),
    purpose="plot of the predicted aligned error",
    writer="helixfold.report.plot_files",
    readers=("helixfold.results.colabfold",),
    since="0.1",
)
COVERAGE_PLOT: Final = FileKind(
    pattern="coverage",
    suffixes=(".png",),
    purpose="plot of the alignment's coverage",
    writer="helixfold.report.plot_files",
    readers=("helixfold.results.colabfold",),
    since="0.1",
)
PLDDT_TABLE: Final = FileKind(
    pattern="{target}_plddt",
    suffixes=(".tsv",),
    purpose="pLDDT as a table of nf-core/proteinfold",
    link="#tables-for-nf-coreproteinfold",
    writer="helixfold.results.tables",
    since="0.1",
)
PTM_TABLE: Final = FileKind(
    pattern="{target}_ptm",
    suffixes=(".tsv",),
    purpose="pTM as a table of nf-core/proteinfold",
    writer="helixfold.results.tables",
    since="0.1",
)
PAE_TABLE: Final = FileKind(
    pattern="{target}_{rank}_pae",
    suffixes=(".tsv",),
    purpose="predicted aligned error of the best prediction (rank 0) as a table of nf-core/proteinfold",
    writer="helixfold.results.tables",
    since="0.1",
)
MSA_TABLE: Final = FileKind(
    pattern="{target}_msa",
    suffixes=(".tsv",),
    purpose="the alignment as a table of nf-core/proteinfold",
    writer="helixfold.report.plot_files",
    since="0.1",
)
SIMILAR: Final = FileKind(
    pattern="similar_structures.tsv",
    purpose="with --foldseek: known structures that resemble the best prediction, by Foldseek",
    writer="helixfold.apps.predict.similar_structures",
    readers=("helixfold.report.tables",),
    is_slim=True,
    since="0.4",
)
INTERFACES_TABLE: Final = FileKind(
    pattern="{target}_interfaces",
    suffixes=(".tsv",),
    purpose="scores of each pair of chains of each prediction of a complex; ipSAE is the larger of both directions",
    writer="helixfold.results.tables",
)
SEARCHES: Final = FileKind(
    pattern="msas/",
    purpose="search results, with a record of the search that made each file",
    writer="data_pipeline.search.result_files",
    readers=("data_pipeline.features.complexes.result_directory",),
    is_slim=True,
    is_input=True,
    since="0.1",
)

# In the output directory, next to the directories of the targets.
INDEX: Final = FileKind(
    pattern="index",
    suffixes=(".html",),
    purpose="all targets on one page, with links to their reports",
    place="output",
    writer="helixfold.report.index",
    since="0.1",
)
FAILURES: Final = FileKind(
    pattern="failures",
    suffixes=(".json",),
    purpose="targets that failed, and why",
    place="output",
    writer="helixfold.results.failures",
    since="0.1",
)
PART_FAILURES: Final = FileKind(
    pattern="failures-{part:04d}-of-{parts:04d}",
    suffixes=(".json",),
    purpose="the same for one part of the targets, written by features with --shard",
    place="output",
    writer="helixfold.apps.search",
)
ARCHIVE: Final = FileKind(
    pattern="{target}.result",
    suffixes=(".zip",),
    purpose="all files of a finished target, only with --zip",
    place="output",
    writer="helixfold.results.archive",
    since="0.1",
)
PACKED: Final = FileKind(
    pattern="packed/",
    purpose="archives of finished targets, only with --output-format packed",
    link="#packed-results",
    place="output",
    writer="helixfold.results.packed",
)
PACKED_ARCHIVE: Final = FileKind(
    pattern="{number:06d}",
    suffixes=(".zip",),
    purpose="all files of many finished targets, and their index",
    place="packed",
    writer="helixfold.results.packed",
)
PULLDOWN_PAGE: Final = FileKind(
    pattern="pulldown",
    suffixes=(".html",),
    purpose="complexes of a pulldown, the best first",
    link="../how-to/complexes.md#pulldowns",
    place="output",
    writer="helixfold.report.pulldown",
)
PULLDOWN_TABLE: Final = FileKind(
    pattern="pulldown",
    suffixes=(".tsv",),
    purpose="the same as a table",
    place="output",
    writer="helixfold.report.pulldown",
)
PULLDOWN: Final = FileKind(
    pattern="pulldown",
    suffixes=(".json",),
    purpose="names of the baits and preys, for later runs",
    place="output",
    writer="helixfold.report.pulldown",
)
CHAIN_SEARCHES: Final = FileKind(
    pattern="chain_searches/",
    purpose="search results of chains that several complexes share",
    place="output",
    writer="data_pipeline.search.result_files",
    readers=("helixfold.apps.targets",),
)
STATUS_PAGE: Final = FileKind(
    pattern="status",
    suffixes=(".html",),
    purpose="progress of a run on a cluster",
    link="../how-to/cluster.md",
    place="output",
    writer="helixfold.apps.cluster.progress",
)
CLUSTER: Final = FileKind(
    pattern=".cluster/",
    purpose="state of a run on a cluster",
    place="output",
    writer="helixfold.apps.cluster.progress",
)
CLAIMS: Final = FileKind(
    pattern=".claims/",
    purpose="which of several runs predicts each target; removed when the last of them ends",
    place="output",
    writer="data_pipeline.io.claims",
)
LOCK: Final = FileKind(
    pattern=".helixfold",
    suffixes=(".lock",),
    purpose="lock of the run that writes here; may be deleted when no run is writing",
    place="output",
    writer="helixfold.results.lock",
    since="0.1",
)
PART_LOCK: Final = FileKind(
    pattern=".helixfold-{part:04d}-of-{parts:04d}",
    suffixes=(".lock",),
    purpose="lock of features with --shard",
    place="output",
    writer="helixfold.results.lock",
)
CLUSTER_LOCK: Final = FileKind(
    pattern=".helixfold-cluster",
    suffixes=(".lock",),
    purpose="lock of a run with --cluster",
    place="output",
    writer="helixfold.apps.cluster.run",
)

# Files under ColabFold's names, in the output directory.
COLABFOLD_RELAXED: Final = FileKind(
    pattern="{target}_relaxed_rank_{rank:03d}_{tag}",
    suffixes=(PDB,),
    purpose="relaxed structures, the best is rank_001",
    place="output",
    writer="helixfold.results.colabfold",
    readers=("helixfold.results.find",),
    since="0.2",
)
COLABFOLD_UNRELAXED: Final = FileKind(
    pattern="{target}_unrelaxed_rank_{rank:03d}_{tag}",
    suffixes=(PDB,),
    purpose="structures as the network predicts them",
    place="output",
    writer="helixfold.results.colabfold",
    readers=("helixfold.results.find",),
    since="0.2",
)
COLABFOLD_SCORES: Final = FileKind(
    pattern="{target}_scores_rank_{rank:03d}_{tag}",
    suffixes=(".json",),
    purpose="plddt, ptm, pae, max_pae; notes if the prediction has any",
    place="output",
    writer="helixfold.results.colabfold",
    since="0.2",
)
COLABFOLD_PAE: Final = FileKind(
    pattern="{target}_predicted_aligned_error_v1",
    suffixes=(".json",),
    purpose="PAE of the best prediction",
    place="output",
    writer="helixfold.results.colabfold",
    since="0.2",
)
COLABFOLD_PLDDT_PLOT: Final = FileKind(
    pattern="{target}_plddt",
    suffixes=(".png",),
    purpose="our plot of pLDDT",
    place="output",
    writer="helixfold.results.colabfold",
    since="0.2",
)
COLABFOLD_PAE_PLOT: Final = FileKind(
    pattern="{target}_pae",
    suffixes=(".png",),
    purpose="our plot of the PAE",
    place="output",
    writer="helixfold.results.colabfold",
    since="0.2",
)
COLABFOLD_COVERAGE_PLOT: Final = FileKind(
    pattern="{target}_coverage",
    suffixes=(".png",),
    purpose="our plot of the alignment's coverage",
    place="output",
    writer="helixfold.results.colabfold",
    since="0.2",
)
COLABFOLD_ALIGNMENT: Final = FileKind(
    pattern="{target}",
    suffixes=(".a3m",),
    purpose="the alignment's columns; names and insertions of its rows are not in our features",
    place="output",
    writer="helixfold.results.colabfold",
    since="0.2",
)
COLABFOLD_DONE: Final = FileKind(
    pattern="{target}.done",
    suffixes=(".txt",),
    purpose="written last, so its presence means that the target is finished",
    place="output",
    writer="helixfold.results.colabfold",
    since="0.2",
)
COLABFOLD_CONFIG: Final = FileKind(
    pattern="config",
    suffixes=(".json",),
    purpose="settings of the run",
    place="output",
    writer="helixfold.results.colabfold",
    since="0.2",
)
COLABFOLD_LOG: Final = FileKind(
    pattern="log",
    suffixes=(".txt",),
    purpose="lines with times",
    place="output",
    writer="helixfold.results.colabfold",
    since="0.2",
)
COLABFOLD_WORKS: Final = FileKind(
    pattern="cite",
    suffixes=(".bibtex",),
    purpose="works to cite",
    place="output",
    writer="helixfold.results.colabfold",
    since="0.2",
)
# Files for results of other programs.
OTHERS_REPORT: Final = FileKind(
    pattern="{target}_report",
    suffixes=(".html",),
    purpose="report on one of several targets of ColabFold or AlphaFold DB, written by `helixfold report`",
    place="output",
    writer="helixfold.report.load",
    since="0.3",
)

# Files of `helixfold design`.
DESIGN: Final = FileKind(
    pattern="design_{index}",
    suffixes=(PDB, MMCIF),
    purpose="structure of a design; B-factors are pLDDT (0 to 100)",
    place="design",
    writer="helixfold.apps.design.files",
)
DESIGN_SCORES: Final = FileKind(
    pattern="design_{index}",
    suffixes=(".json",),
    purpose="sequences, losses and confidence of a finished design; written last",
    place="design",
    writer="helixfold.apps.design.files",
)
DESIGN_CHECK: Final = FileKind(
    pattern="check_{index}",
    suffixes=(".json",),
    purpose="predictions of other models for a design and its controls",
    place="design",
    writer="helixfold.apps.design.files",
)
DESIGN_CHECK_STRUCTURE: Final = FileKind(
    pattern="check_{index}_{model}",
    suffixes=(PDB,),
    purpose="structure of a design predicted by another model",
    place="design",
    writer="helixfold.apps.design.run",
)
DESIGN_STATE: Final = FileKind(
    pattern="trajectory_{index}",
    suffixes=(".npz",),
    purpose="state of an unfinished design",
    place="design",
    writer="helixfold.apps.design.run",
)
DESIGN_SETTINGS: Final = FileKind(
    pattern="settings",
    suffixes=(".json",),
    purpose="settings of the designs",
    place="design",
    writer="helixfold.apps.design.run",
)
TRAJECTORY: Final = FileKind(
    pattern="trajectory_{index}",
    suffixes=(".json",),
    purpose="length of a binder's trajectory, why it ended, and the number of accepted sequences; written last",
    place="design",
    writer="helixfold.apps.design.binders",
)
REDRAW: Final = FileKind(
    pattern="redraw_{index}",
    suffixes=(".json",),
    purpose="sequences that ProteinMPNN draws for a designed binder, with their scores",
    place="design",
    writer="helixfold.apps.design.binders",
)
CANDIDATE: Final = FileKind(
    pattern="candidate_{index}_{number}",
    suffixes=(".json",),
    purpose="predictions of other models for a sequence of a binder, its measurements, and the thresholds it misses",
    place="design",
    writer="helixfold.apps.design.binders",
)
CANDIDATE_STRUCTURE: Final = FileKind(
    pattern="candidate_{index}_{number}_{model}",
    suffixes=(PDB,),
    purpose="complex of a target and a binder's sequence predicted by another model, relaxed if relaxation was done",
    place="design",
    writer="helixfold.apps.design.binders",
)
TRAJECTORIES_TABLE: Final = FileKind(
    pattern="trajectories",
    suffixes=(".tsv",),
    purpose="all trajectories of binders, and why they ended",
    place="designs",
    writer="helixfold.report.binders",
)
REDESIGNED: Final = FileKind(
    pattern="redesigned",
    suffixes=(".fasta",),
    purpose="sequences that `helixfold design redesign` draws for a backbone",
    place="designs",
    writer="helixfold.apps.design.start",
)
DESIGNS_PAGE: Final = FileKind(
    pattern="designs",
    suffixes=(".html",),
    purpose="all designs on one page, the best first",
    place="designs",
    writer="helixfold.report.designs",
)
DESIGNS_TABLE: Final = FileKind(
    pattern="designs",
    suffixes=(".tsv",),
    purpose="the same as a table",
    place="designs",
    writer="helixfold.report.designs",
)
DESIGNS_SEQUENCES: Final = FileKind(
    pattern="designs",
    suffixes=(".fasta",),
    purpose="sequences of the designs",
    place="designs",
    writer="helixfold.report.designs",
)

FILES: Final = tuple(value for value in [*globals().values()] if isinstance(value, FileKind))  # in the order above


def kind_of(name: str, place: Place = "target") -> FileKind | None:
    """Return the kind of a file name (of a directory: with /), the most specific if several match, or None."""
    kinds = [kind for kind in FILES if kind.place == place and kind.match(name) is not None]
    return max(kinds, key=lambda kind: sum(len(text) for text, *_ in Formatter().parse(kind.pattern)), default=None)


def remove_results(directory: Path) -> None:
    """Remove the results of an earlier run from a target's directory, except features, directories and unknown files.

    ranking_debug.json, which marks the target as finished, is removed first.
    """
    if not directory.is_dir():
        return
    RANKING.path(directory).unlink(missing_ok=True)
    for path in directory.iterdir():
        kind = kind_of(path.name)
        if kind is not None and not kind.is_input and not path.is_dir():
            path.unlink()


def slim_down(directory: Path) -> None:
    """Remove the files of a finished target that --slim does not keep, and unknown files, but no directories."""
    for path in directory.iterdir():
        kind = kind_of(path.name)
        if not path.is_dir() and (kind is None or not kind.is_slim):
            path.unlink()


def is_slim(directory: Path) -> bool:
    """Return whether a target is finished but has no features file, as after --slim."""
    return RANKING.path(directory).is_file() and not FEATURES.path(directory).is_file()
