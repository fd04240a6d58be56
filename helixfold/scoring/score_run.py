"""Score a batch of structures, for `helixfold score`: one that cannot be scored never stops the others.

The scores are in a table and on a page, the best first: scores.tsv, scores.json and scores.html.
"""

import hashlib
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tqdm import tqdm

from data_pipeline.errors import InputError, printable
from data_pipeline.extras import require
from data_pipeline.files import remove_partial_files, require_unmoved
from data_pipeline.parse.structures import read_structure
from data_pipeline.structure import Structure
from helixfold import __version__
from helixfold.analysis.correlation import spearman
from helixfold.analysis.intervals import Estimate, mean
from helixfold.analysis.matching import Match, StructureFile, by_name, by_sequence, find_references
from helixfold.analysis.residues import ComparisonError
from helixfold.config import Method
from helixfold.folding.options import FoldingOptions
from helixfold.folding.prediction import Prediction
from helixfold.presets import Preset
from helixfold.report.page import counted, page
from helixfold.report.tables import headed
from helixfold.results.failures import EXPECTED_ERRORS, SOME_FAILED, write_failures
from helixfold.results.journal import Journal
from helixfold.results.lock import locked_directory
from helixfold.results.pdb import to_pdb
from helixfold.results.text_tables import aligned, rounded, tab_separated
from helixfold.results.writing import to_json, write_file
from helixfold.scoring.network import Network, find_preset
from helixfold.scoring.options import ScoreOptions, StructureOptions
from helixfold.scoring.score import (
    BinderChains,
    UsedProtocol,
    compared_with_native,
    require_templates,
    scores_of,
    target_to_fold,
)
from helixfold.scoring.structures import ScoredFile, ScoredStructure, find_structures, read_scored
from helixfold.standard_streams import optional_output, print_note, print_summary

TABLE_FILE, JSON_FILE, PAGE_FILE = "scores.tsv", "scores.json", "scores.html"
# What structures are ranked by, with whether a larger value is better; the first that any structure has is taken.
_RANKED_BY = (("pae_interaction", False), ("composite", True))
# The columns of tables, in their order, with headings and layouts for people; those that no structure has are left out.
COLUMNS: dict[str, tuple[str, str]] = {
    "pae_interaction": ("PAE between binder and target, Å", "%.2f"),
    "composite": ("Composite", "%.3f"),
    "plddt": ("pLDDT", "%.1f"),
    "ptm": ("pTM", "%.3f"),
    "tm_to_structure": ("TM-score to the structure", "%.3f"),
    "iptm": ("ipTM", "%.3f"),
    "ipsae": ("ipSAE", "%.3f"),
    "interface_pae": ("PAE of contacts, Å", "%.2f"),
    "pdockq": ("pDockQ", "%.3f"),
    "pdockq2": ("pDockQ2", "%.3f"),
    "interface_plddt": ("pLDDT of the interface", "%.1f"),
    "binder_plddt": ("pLDDT of the binder", "%.1f"),
    "target_plddt": ("pLDDT of the target", "%.1f"),
    "pae_binder": ("PAE in the binder, Å", "%.2f"),
    "pae_target": ("PAE in the target, Å", "%.2f"),
    "target_aligned_rmsd": ("RMSD of the binder, target superposed, Å", "%.2f"),
    "binder_aligned_rmsd": ("RMSD of the binder alone, Å", "%.2f"),
    "pae": ("Mean PAE, Å", "%.2f"),
    "rmsd_to_structure": ("RMSD to the structure, Å", "%.2f"),
    "own_plddt": ("Its own pLDDT", "%.1f"),
    "tm_to_native": ("TM-score to the native", "%.3f"),
    "lddt_to_native": ("lDDT to the native", "%.3f"),
    "dockq": ("DockQ", "%.3f"),
    "output_tm_to_native": ("TM-score of the output to the native", "%.3f"),
    "output_lddt_to_native": ("lDDT of the output to the native", "%.3f"),
    "output_dockq": ("DockQ of the output", "%.3f"),
    "residues": ("Residues", "%d"),
    "chains": ("Chains", "%d"),
}
# Words in further columns of the table for programs.
_WORDS = ("interface", "binder", "protocol", "model")
_ON_SCREEN = (
    *("pae_interaction", "composite", "plddt", "ptm", "tm_to_structure", "iptm", "ipsae", "own_plddt"),
    "tm_to_native",
)
_MOST_ON_SCREEN, _MOST_ON_PAGE = 20, 2000
_CORRELATED = ("composite", "plddt", "ptm", "tm_to_structure", "own_plddt", "pae_interaction", "iptm", "ipsae")
_TRUTHS = ("tm_to_native", "lddt_to_native", "dockq")


@dataclass(frozen=True, kw_only=True)
class ScoredLine:
    """A structure with its scores, or the reason why it has none."""

    target: str
    name: str
    rank: int | None  # that among ranked models of a program, from 0
    problem: str | None
    scores: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RankCorrelation:
    """Spearman's correlation of a score with the closeness to the native, over the structures of each target."""

    score: str
    truth: str
    targets: int
    structures: int
    value: Estimate  # of one target, else the mean over targets


def ranking_of(lines: Sequence[ScoredLine]) -> tuple[str, bool]:
    """Return the score by which lines are ranked, and whether a larger one is better."""
    return next((each for each in _RANKED_BY if _has(lines, each[0])), _RANKED_BY[-1])


def ranked(lines: Sequence[ScoredLine]) -> list[ScoredLine]:
    """Return lines with the best first, and those without scores last."""
    name, larger = ranking_of(lines)

    def order(line: ScoredLine) -> float:
        value = line.scores.get(name)
        if value is None:
            return math.inf
        return -value if larger else value

    return sorted(lines, key=lambda line: (order(line), line.target, line.name))


def correlations(lines: Sequence[ScoredLine]) -> list[RankCorrelation]:
    """Return how scores rank the structures of each target, if their natives are known; the best structure has rank 1.

    Predicted errors count with their sign changed, so that a larger correlation is better for each score.
    """
    found = []
    # In one order, so that intervals are the same wherever they are shown.
    lines = sorted(lines, key=lambda line: (line.target, line.name))
    for truth in _TRUTHS:
        for score in _CORRELATED:
            sign = -1 if score.startswith("pae") else 1
            by_target: dict[str, list[tuple[float, float]]] = {}
            for line in lines:
                pair = line.scores.get(score), line.scores.get(truth)
                if pair[0] is not None and pair[1] is not None:
                    by_target.setdefault(line.target, []).append((sign * pair[0], pair[1]))
            each = {target: spearman(*zip(*pairs, strict=True)) for target, pairs in by_target.items()}
            known = {target: value for target, value in each.items() if value is not None}
            if known:
                value = next(iter(known.values()))
                if len(known) > 1:
                    value = mean([estimate.value for estimate in known.values()])
                count = sum(len(by_target[target]) for target in known)
                found.append(
                    RankCorrelation(score=score, truth=truth, targets=len(known), structures=count, value=value)
                )
    return found


def screen_lines(lines: Sequence[ScoredLine]) -> Iterator[str]:
    """Yield the best structures as a table for the screen, and the correlations with the natives."""
    scored = [line for line in ranked(lines) if line.scores]
    names = [name for name in _ON_SCREEN if _has(lines, name)]
    if scored:
        rows = [["", "target", "structure", "protocol", *names]]
        for place, line in enumerate(scored[:_MOST_ON_SCREEN], start=1):
            values = [(COLUMNS[name][1], line.scores.get(name)) for name in names]
            cells = ["-" if value is None else layout % value for layout, value in values]
            rows.append([str(place), line.target, line.name, line.scores.get("protocol", "-"), *cells])
        yield from aligned(rows, left=4)
        if len(scored) > _MOST_ON_SCREEN:
            yield f"and {len(scored) - _MOST_ON_SCREEN:,} more in {TABLE_FILE}"
    for each in correlations(lines):
        yield f"Spearman of {each.score} with {each.truth}: {_interval(each.value)} ({_sizes(each)})"


def write_scores(output: Path, lines: Sequence[ScoredLine], settings: Mapping[str, Any], notes: Sequence[str]) -> None:
    """Write the table for programs as .tsv and .json, and the page."""
    ordered, found = ranked(lines), correlations(lines)
    names = [name for name in COLUMNS if _has(lines, name)]
    words = [name for name in _WORDS if _has(lines, name)]
    rows = [
        [
            *(place if line.scores else None, line.target, line.name, line.rank),
            *(rounded(line.scores.get(name)) for name in (*names, *words)),
            line.problem,
        ]
        for place, line in enumerate(ordered, start=1)
    ]
    header = ("rank", "target", "structure", "own_rank", *names, *words, "problem")
    write_file(output / TABLE_FILE, tab_separated(header, rows))
    content = {
        "settings": dict(settings),
        "notes": list(notes),
        "ranked_by": ranking_of(lines)[0],
        "correlations": [
            {
                "score": each.score,
                "truth": each.truth,
                "targets": each.targets,
                "structures": each.structures,
                **each.value.to_dict("spearman"),
            }
            for each in found
        ],
        "structures": [
            {
                "target": line.target,
                "structure": line.name,
                "own_rank": line.rank,
                "problem": line.problem,
                **{name: rounded(value) for name, value in line.scores.items()},
            }
            for line in ordered
        ],
    }
    write_file(output / JSON_FILE, to_json(content, indent=1) + "\n")
    write_file(output / PAGE_FILE, _page(output.resolve().name, ordered, settings=settings, notes=notes))


def _page(title: str, lines: Sequence[ScoredLine], *, settings: Mapping[str, Any], notes: Sequence[str]) -> str:
    score, larger = ranking_of(lines)
    failed = sum(line.problem is not None for line in lines)
    return page(
        "scores.html",
        styles=("page.css", "index.css", "scores.css"),
        scripts=("banner.js", "index.js"),
        version=__version__,
        title=title,
        lines=lines[:_MOST_ON_PAGE],
        count=len(lines),
        columns=[(name, *COLUMNS[name]) for name in COLUMNS if _has(lines, name)],
        scored=sum(bool(line.scores) for line in lines),
        failed=failed,
        has_ranks=any(line.rank is not None for line in lines),
        banners=[headed(note) for note in notes],
        ranked_by=COLUMNS[score][0],
        larger=larger,
        settings=settings,
        correlations=[
            (COLUMNS[each.score][0], COLUMNS[each.truth][0], _interval(each.value), _sizes(each))
            for each in correlations(lines)
        ],
        plot=_plot(lines, score),
    )


@dataclass(frozen=True, kw_only=True)
class ScorePlot:
    """The scores of structures over their closeness to the natives, as places in a square of 100 by 100."""

    horizontal: str
    vertical: str
    points: tuple[tuple[float, float, str], ...]
    horizontal_ends: tuple[str, str]
    vertical_ends: tuple[str, str]


def _plot(lines: Sequence[ScoredLine], score: str) -> ScorePlot | None:
    """Return the plot of the score that ranks over the TM-score to the native, or else to the structure itself."""
    truth = "tm_to_native" if _has(lines, "tm_to_native") else "tm_to_structure"
    pairs = [
        (line.scores[truth], line.scores[score], f"{line.target} {line.name}")
        for line in lines
        if line.scores.get(truth) is not None and line.scores.get(score) is not None
    ]
    if len(pairs) < 2:
        return None
    ends = []
    for values in ([pair[0] for pair in pairs], [pair[1] for pair in pairs]):
        low, high = float(np.min(values)), float(np.max(values))
        room = 0.05 * (high - low) or 0.05
        ends.append((low - room, high + room))
    points = tuple(
        (
            round(100 * (across - ends[0][0]) / (ends[0][1] - ends[0][0]), 2),
            round(100 - 100 * (up - ends[1][0]) / (ends[1][1] - ends[1][0]), 2),
            f"{name}: {across:.3f}, {up:.3f}",
        )
        for across, up, name in pairs
    )
    return ScorePlot(
        horizontal=COLUMNS[truth][0],
        vertical=COLUMNS[score][0],
        points=points,
        horizontal_ends=(f"{ends[0][0]:.3g}", f"{ends[0][1]:.3g}"),
        vertical_ends=(f"{ends[1][0]:.3g}", f"{ends[1][1]:.3g}"),
    )


def _has(lines: Sequence[ScoredLine], name: str) -> bool:
    return any(line.scores.get(name) is not None for line in lines)


def _interval(value: Estimate) -> str:
    return f"{value.value:.2f} [{value.low:.2f}, {value.high:.2f}]"


def _sizes(each: RankCorrelation) -> str:
    targets = f"mean over {each.targets} targets, " if each.targets > 1 else ""
    return f"{targets}{each.structures:,} structures"


JOURNAL_FILE, STRUCTURES_DIRECTORY = "results.jsonl", "structures"
_CHOICES = ("protocol", "model")  # how a structure was scored; shown next to its scores
Kind = Literal["chain", "complex"]
_METHODS: dict[Kind, Method] = {"chain": "monomer", "complex": "multimer"}
_PLURALS: dict[Kind, str] = {"chain": "single chains", "complex": "complexes"}
_RECYCLES, _RECYCLES_OF_BINDERS = 1, 3


@dataclass(frozen=True, kw_only=True)
class _Native:
    """The native structure that a structure is compared with."""

    name: str
    structure: Structure
    digest: str


@dataclass(frozen=True, kw_only=True)
class _Judge:
    """The protocol and the network for all structures of one kind: single chains or complexes."""

    protocol: UsedProtocol
    network: Network


@dataclass(frozen=True, kw_only=True)
class _Pending:
    """A structure that was read and is to be scored."""

    file: ScoredFile
    structure: ScoredStructure
    native: _Native | None
    judge: _Judge


@optional_output()
def score(options: ScoreOptions) -> int:
    """Score all structures into the output directory; return 0, or 1 if one could not be scored.

    Finished structures are not scored again, as long as neither they nor the settings have changed. Raise `InputError`
    for wrong input, before anything is written.
    """
    require("evaluate", "biotite", action="helixfold score")
    output = options.output
    if output.exists() and not output.is_dir():
        raise InputError.at(output, "is a file; give --output a directory")
    if options.binder_chains and not options.binders:
        raise InputError("--binder-chains is for --binders, which screens complexes of a binder and its target")
    if options.binders and options.protocol != "auto":
        raise InputError("--binders has a protocol of its own; leave out --protocol")
    files = find_structures(options.inputs, rescore=options.rescore)
    natives = _Natives(options.reference)
    presets = {kind: find_preset(options, _METHODS[kind]) for kind in _kinds(files, options)}
    protocols = {kind: _protocol(options, preset, kind) for kind, preset in presets.items()}
    recycles = options.num_recycles
    if recycles is None:
        recycles = _RECYCLES_OF_BINDERS if options.binders else _RECYCLES
    folding = FoldingOptions(num_recycles=recycles, seed=options.seed, dtype=options.dtype)
    with locked_directory(output):
        structures = {output / STRUCTURES_DIRECTORY / file.target for file in files}
        remove_partial_files([output, *structures])
        # One model may score both kinds.
        networks = {
            preset.name: Network(options, preset, folding, spill=output, say=print_note)
            for preset in {preset.name: preset for preset in presets.values()}.values()
        }
        judges = {
            kind: _Judge(protocol=protocols[kind], network=networks[preset.name]) for kind, preset in presets.items()
        }
        for kind, judge in judges.items():
            described = f"protocol {judge.protocol}, model {presets[kind].name}, {counted(recycles, 'recycle')}"
            print_summary(f"helixfold: {_PLURALS[kind]}: {described}")
        notes = tuple(dict.fromkeys(note for network in networks.values() for note in network.model.notes))
        if len({(judge.protocol, id(judge.network)) for judge in judges.values()}) > 1:
            notes = (
                *notes,
                "scores of single chains and of complexes differ in protocol or model: do not compare them",
            )
        for note in notes:
            print_note(note)
        settings = {
            "command": "score",
            "binder_chains": list(options.binder_chains),
            "num_recycles": recycles,
            "seed": folding.seed,
            "dtype": next(iter(networks.values())).folding.dtype,
        }
        for kind, judge in judges.items():
            model = judge.network.model
            settings |= {f"{kind}_protocol": judge.protocol, f"{kind}_model": model.preset.name}
            settings |= {f"{kind}_weights": model.digest}
        texts, tables = ("digest", "native_digest", "native", *_CHOICES), ("scores",)
        with Journal(
            output / JOURNAL_FILE, settings, texts=texts, tables=tables, overwrite=options.overwrite
        ) as journal:
            batch = _Batch(files, natives, judges, journal, options=options)
            problems = batch.run()
            if batch.skipped:
                print_summary(
                    f"{batch.skipped} of {len(files)} structures: scored before (--overwrite scores them again)"
                )
            lines = [_line(file, journal.results, problems.get(file.key)) for file in files]
        write_failures(output, problems)
        write_scores(output, lines, settings, notes)
    print_summary("\n".join(screen_lines(lines)))
    for name, why in problems.items():
        print(f"{printable(name)}: not scored: {printable(why, 1000)}", file=sys.stderr)
    print_summary(f"-> {output}")
    return SOME_FAILED if problems else 0


def _kind(structure: ScoredStructure, options: StructureOptions) -> Kind:
    return "complex" if options.binders or len(structure.chains) > 1 else "chain"


def _kinds(files: Sequence[ScoredFile], options: StructureOptions) -> list[Kind]:
    """Return the kinds of structures in these files, single chains first; unreadable files are skipped."""
    found: set[Kind] = {"complex"} if options.binders else set()
    for file in files:
        if len(found) == (1 if options.binders else len(_METHODS)):
            break
        with suppress(InputError):
            found.add(_kind(read_scored(file.path), options))
    return sorted(found) or ["chain"]


def _protocol(options: ScoreOptions, preset: Preset, kind: Kind) -> UsedProtocol:
    """Return how the model sees structures of a kind; print a note if the usual protocol is not possible."""
    wanted = options.protocol
    if options.binders:
        if preset.model.template is None:
            print_note(f"{preset.name} reads no templates, so that it knows the target by the initial guess alone")
        return "binder"
    if wanted == "template":
        require_templates(preset)
    if wanted != "auto":
        return wanted
    if kind == "complex":
        return "initial_guess"
    if preset.model.template is None:
        print_note(f"{preset.name} reads no templates, so that structures are scored from an initial guess")
        return "initial_guess"
    return "template"


class _Batch:
    """The structures of a run, which are read when it is their turn, and folded in lots."""

    def __init__(
        self,
        files: Sequence[ScoredFile],
        natives: "_Natives",
        judges: Mapping[Kind, _Judge],
        journal: Journal,
        *,
        options: StructureOptions,
    ) -> None:
        self._files, self._natives, self._judges = files, natives, judges
        self._journal, self._options = journal, options
        self._binder = BinderChains(names=options.binder_chains) if options.binders else None
        self.skipped = 0  # structures that were scored before
        self._problems: dict[str, str] = {}

    def run(self) -> dict[str, str]:
        """Score what is not scored yet; return why which structures could not be, by their keys."""
        with tqdm(total=len(self._files), desc="structures", unit="structure", disable=None) as bar:
            for lot in self._lots():
                for each, prediction in self._folded(lot):
                    try:
                        self._journal.add(each.file.key, self._result(each, prediction))
                    except EXPECTED_ERRORS as error:
                        require_unmoved(self._options.output)
                        self._problems[each.file.key] = f"{type(error).__name__}: {error}"
                bar.update(len(lot))
        return self._problems

    def _lots(self) -> Iterator[list[_Pending]]:
        """Yield structures that are folded together: neighbours of one length, as structures of a target are."""
        lot: list[_Pending] = []
        for each in self._pending():
            residues = each.structure.residues
            are_chains = lot and len(lot[0].structure.chains) == len(each.structure.chains) == 1
            is_alike = are_chains and lot[0].structure.residues == residues
            if lot and not (is_alike and len(lot) < each.judge.network.at_once(residues)):
                yield lot
                lot = []
            lot.append(each)
        if lot:
            yield lot

    def _pending(self) -> Iterator[_Pending]:
        """Yield the structures that are not in the journal as they are now; those that cannot be get a problem."""
        for file in self._files:
            try:
                structure = read_scored(file.path)
                native = self._natives.of(file, structure)
            except (InputError, ComparisonError) as error:
                self._problems[file.key] = str(error)
                continue
            judge = self._judges[_kind(structure, self._options)]
            earlier = self._journal.results.get(file.key, {})
            known = tuple(map(earlier.get, ("digest", "native_digest", "protocol")))
            digests = structure.digest, None if native is None else native.digest
            is_known = known == (*digests, judge.protocol) and bool(earlier.get("scores"))
            if is_known and (not self._options.save_structures or self._path(file).is_file()):
                self.skipped += 1
            else:
                yield _Pending(file=file, structure=structure, native=native, judge=judge)

    def _folded(self, lot: Sequence[_Pending]) -> Iterator[tuple[_Pending, Prediction]]:
        """Yield what the network makes of each structure; if a lot fails, its structures are tried one by one."""
        judge = lot[0].judge
        preset = judge.network.model.preset
        try:
            targets = [target_to_fold(each.structure, judge.protocol, preset, self._binder) for each in lot]
            predictions = judge.network.fold(targets)
        except EXPECTED_ERRORS as error:
            if len(lot) == 1:
                self._problems[lot[0].file.key] = f"{type(error).__name__}: {error}"
                return
            for each in lot:
                yield from self._folded([each])
        else:
            yield from zip(lot, predictions, strict=True)

    def _result(self, each: _Pending, prediction: Prediction) -> dict[str, Any]:
        native = each.native
        scores: dict[str, Any] = dict(scores_of(each.structure, prediction, self._binder))
        if native is not None:
            scores |= compared_with_native(each.structure, prediction, native.structure)
        if self._options.save_structures:
            text = to_pdb(prediction.protein, prediction.notes, chain_ids=prediction.chain_ids)
            write_file(self._path(each.file), text)
        return {
            "digest": each.structure.digest,
            "native_digest": None if native is None else native.digest,
            "native": None if native is None else native.name,
            "protocol": each.judge.protocol,
            "model": each.judge.network.model.preset.name,
            "scores": scores,
        }

    def _path(self, file: ScoredFile) -> Path:
        return self._options.output / STRUCTURES_DIRECTORY / file.target / f"{file.name}.pdb"


def _line(file: ScoredFile, results: Mapping[str, Mapping[str, Any]], problem: str | None) -> ScoredLine:
    found = {} if problem is not None else results.get(file.key, {})
    return ScoredLine(
        target=found.get("native") or file.target,
        name=file.name,
        rank=file.rank,
        problem=problem,
        scores={name: found[name] for name in _CHOICES if name in found} | found.get("scores", {}),
    )


class _Natives:
    """The native structures of --reference, of which each structure is compared with its own."""

    def __init__(self, path: Path | None) -> None:
        self._files = [] if path is None else find_references(path)
        self._read = cache(read_structure)

    def of(self, file: ScoredFile, structure: ScoredStructure) -> _Native | None:
        """Return the native of a structure: the only one, else that of its target's or its own name, else the one with
        its sequence; None without any.
        """
        if not self._files:
            return None
        found = self._match(file, structure).reference
        digest = hashlib.sha256(found.path.read_bytes()).hexdigest()
        return _Native(name=found.name, structure=self._read(found.path), digest=digest)

    def _match(self, file: ScoredFile, structure: ScoredStructure) -> Match:
        if len(self._files) == 1:
            return Match(reference=self._files[0])
        named = by_name(file.target, self._files) or by_name(file.name, self._files)
        if named:
            return named[0]
        readable: list[tuple[StructureFile, Structure]] = [(each, self._read(each.path)) for each in self._files]
        own = Structure(
            name=file.name,
            release_date=None,
            resolution=None,
            method="",
            chains=structure.chains,
            skipped={},
        )
        return by_sequence(own, readable)[0]
