"""Score a batch of structures, for `helixfold score`; a failed structure does not stop the others.

The results are tables and a page, with the best structures first: scores.tsv, scores.json and scores.html.
"""

import hashlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from data_pipeline.io.errors import InputError
from data_pipeline.io.extras import require
from data_pipeline.io.files import remove_partial_files
from data_pipeline.parse.structures import read_structure
from data_pipeline.structure import Structure
from helixfold.analysis.intervals import Estimate, mean
from helixfold.analysis.matching import StructureFile, by_name, by_sequence, find_references
from helixfold.analysis.rank_scores import spearman, with_interval
from helixfold.apps.score.network import Network, find_preset
from helixfold.apps.score.options import ScoreOptions, StructureOptions
from helixfold.apps.score.score import (
    BinderChains,
    UsedProtocol,
    compared_with_native,
    require_templates,
    scores_of,
    target_to_fold,
)
from helixfold.apps.score.structures import ScoredFile, ScoredStructure, find_structures, read_scored
from helixfold.folding.options import FoldingOptions
from helixfold.folding.recycling import FoldingTarget
from helixfold.model.config import Method
from helixfold.model.presets import Preset
from helixfold.report.page import counted, page
from helixfold.report.tables import headed
from helixfold.results.driver import Run, driven
from helixfold.results.journal import Journal
from helixfold.results.pdb import to_pdb
from helixfold.results.writing import aligned, rounded, tab_separated, to_json, write_file
from helixfold.runtime.standard_streams import optional_output, print_note, print_summary

TABLE_FILE, JSON_FILE, PAGE_FILE = "scores.tsv", "scores.json", "scores.html"
# Scores to rank by, and whether larger is better. The first score that any structure has is used.
_RANKING_SCORES = (("pae_interaction", False), ("composite", True))
# Columns of tables in order, with heading and number format on pages. Columns without values are omitted.
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
# Further columns of scores.tsv, with text.
_TEXT_COLUMNS = ("interface", "binder", "protocol", "model")
_COLUMNS_ON_SCREEN = (
    *("pae_interaction", "composite", "plddt", "ptm", "tm_to_structure", "iptm", "ipsae", "own_plddt"),
    "tm_to_native",
)
_MAX_STRUCTURES_ON_SCREEN, _MAX_STRUCTURES_ON_PAGE = 20, 2000
_CORRELATED_SCORES = ("composite", "plddt", "ptm", "tm_to_structure", "own_plddt", "pae_interaction", "iptm", "ipsae")
_NATIVE_SIMILARITIES = ("tm_to_native", "lddt_to_native", "dockq")
_MIN_CORRELATED_STRUCTURES = 3  # min number of structures for a correlation


@dataclass(frozen=True, kw_only=True)
class ScoredLine:
    """Row of the results: a structure with its scores, or the problem if it could not be scored.

    `target` and `name` identify the structure. `path` and `predicted` are files relative to the output directory.
    """

    target: str
    name: str
    rank: int | None  # rank in a prediction program's output, from 0
    problem: str | None
    scores: Mapping[str, Any] = field(default_factory=dict)
    # Paths of the scored file and of the predicted structure, if it was written, relative to the output directory.
    path: str = ""
    predicted: str = ""


@dataclass(frozen=True, kw_only=True)
class RankCorrelation:
    """Spearman's correlation of a score with the similarity to the native, over the structures of each target.

    `truth` is the name of the similarity. `targets` and `structures` are numbers.
    """

    score: str
    truth: str
    targets: int
    structures: int
    value: Estimate  # for one target, or the mean over several


def ranking_of(lines: Sequence[ScoredLine]) -> tuple[str, bool]:
    """Return the name of the score by which lines are ranked, and whether larger is better."""
    return next((each for each in _RANKING_SCORES if _has(lines, each[0])), _RANKING_SCORES[-1])


def ranked(lines: Sequence[ScoredLine]) -> list[ScoredLine]:
    """Return the lines, best first; lines without scores come last."""
    name, is_larger_better = ranking_of(lines)

    def order(line: ScoredLine) -> float:
        """Return the sort key of a line by its score."""
        value = line.scores.get(name)
        if value is None:
            return math.inf
        return -value if is_larger_better else value

    return sorted(lines, key=lambda line: (order(line), line.target, line.name))


def correlations(lines: Sequence[ScoredLine]) -> list[RankCorrelation]:
    """Return the rank correlations of scores with the similarity to native structures, if these are known.

    Predicted errors are negated, so that a larger correlation is better for every score. Targets with fewer than three
    structures are left out.
    """
    results = []
    # Intervals are computed by resampling, so a fixed order makes them reproducible.
    lines = sorted(lines, key=lambda line: (line.target, line.name))
    for truth in _NATIVE_SIMILARITIES:
        for score in _CORRELATED_SCORES:
            sign = -1 if score.startswith("pae") else 1
            by_target: dict[str, list[tuple[float, float]]] = {}
            for line in lines:
                pair = line.scores.get(score), line.scores.get(truth)
                if pair[0] is not None and pair[1] is not None:
                    by_target.setdefault(line.target, []).append((sign * pair[0], pair[1]))
            by_target_value = {
                target: with_interval(spearman, *zip(*pairs, strict=True))
                for target, pairs in by_target.items()
                if len(pairs) >= _MIN_CORRELATED_STRUCTURES
            }
            defined_values = {target: value for target, value in by_target_value.items() if value is not None}
            if defined_values:
                value = next(iter(defined_values.values()))
                if len(defined_values) > 1:
                    value = mean([estimate.value for estimate in defined_values.values()])
                count = sum(len(by_target[target]) for target in defined_values)
                results.append(
                    RankCorrelation(
                        score=score, truth=truth, targets=len(defined_values), structures=count, value=value
                    )
                )
    return results


def screen_lines(lines: Sequence[ScoredLine]) -> Iterator[str]:
    """Yield a table of the best structures for the screen, and the correlations with the natives."""
    scored = [line for line in ranked(lines) if line.scores]
    names = [name for name in _COLUMNS_ON_SCREEN if _has(lines, name)]
    if scored:
        rows = [["", "target", "structure", "protocol", *names]]
        for rank, line in enumerate(scored[:_MAX_STRUCTURES_ON_SCREEN], start=1):
            values = [(COLUMNS[name][1], line.scores.get(name)) for name in names]
            cells = ["-" if value is None else layout % value for layout, value in values]
            rows.append([str(rank), line.target, line.name, line.scores.get("protocol", "-"), *cells])
        yield from aligned(rows, left=4)
        if len(scored) > _MAX_STRUCTURES_ON_SCREEN:
            yield f"and {len(scored) - _MAX_STRUCTURES_ON_SCREEN:,} more in {TABLE_FILE}"
    for each in correlations(lines):
        yield f"Spearman of {each.score} with {each.truth}: {_interval(each.value)} ({_sizes(each)})"


def write_scores(output: Path, lines: Sequence[ScoredLine], settings: Mapping[str, Any], notes: Sequence[str]) -> None:
    """Write scores.tsv, scores.json and scores.html into the directory `output`, with the lines ranked."""
    ordered, all_correlations = ranked(lines), correlations(lines)
    names = [name for name in COLUMNS if _has(lines, name)]
    words = [name for name in _TEXT_COLUMNS if _has(lines, name)]
    rows = [
        [
            *(rank if line.scores else None, line.target, line.name, line.rank),
            *(rounded(line.scores.get(name)) for name in (*names, *words)),
            line.problem,
        ]
        for rank, line in enumerate(ordered, start=1)
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
            for each in all_correlations
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
    """Return the text of scores.html with the ranked lines."""
    score, is_larger_better = ranking_of(lines)
    failed = sum(line.problem is not None for line in lines)
    shared = _shared(lines)
    return page(
        "scores.html",
        styles=("page.css", "index.css", "scores.css"),
        scripts=("banner.js", "index.js"),
        title=title,
        lines=lines[:_MAX_STRUCTURES_ON_PAGE],
        count=len(lines),
        shared=shared,
        words=[name for name in _PROTOCOL_AND_MODEL if name not in shared],
        columns=[(name, *COLUMNS[name]) for name in COLUMNS if _has(lines, name) and name not in shared],
        scored=sum(bool(line.scores) for line in lines),
        failed=failed,
        has_ranks=any(line.rank is not None for line in lines),
        banners=[headed(note) for note in notes],
        ranked_by=COLUMNS[score][0],
        larger=is_larger_better,
        settings=settings,
        correlations=[
            (COLUMNS[each.score][0], COLUMNS[each.truth][0], _interval(each.value), _sizes(each))
            for each in correlations(lines)
        ],
        plot=_plot(lines, score),
    )


def _plot(lines: Sequence[ScoredLine], score: str) -> dict[str, Any] | None:
    """Return the plot of the ranking score against the TM-score to the native, or else to the scored structure.

    Points have coordinates in a square of 100 by 100, and names.
    """
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
        axis_margin = 0.05 * (high - low) or 0.05
        ends.append((low - axis_margin, high + axis_margin))
    points = [
        (
            round(100 * (horizontal - ends[0][0]) / (ends[0][1] - ends[0][0]), 2),
            round(100 - 100 * (vertical - ends[1][0]) / (ends[1][1] - ends[1][0]), 2),
            f"{name}: {horizontal:.3f}, {vertical:.3f}",
        )
        for horizontal, vertical, name in pairs
    ]
    return {
        "horizontal": COLUMNS[truth][0],
        "vertical": COLUMNS[score][0],
        "points": points,
        "horizontal_ends": [f"{end:.3g}" for end in ends[0]],
        "vertical_ends": [f"{end:.3g}" for end in ends[1]],
    }


def _shared(lines: Sequence[ScoredLine]) -> dict[str, Any]:
    """Return the values that all structures have in common, by name; the page has no columns for them."""
    scores = [line.scores for line in lines if line.scores]
    values = {name: {each.get(name) for each in scores} for name in (*_PROTOCOL_AND_MODEL, "residues", "chains")}
    values = {"target": {line.target for line in lines}, **values}
    return {name: each.pop() for name, each in values.items() if len(each) == 1 and None not in each}


def _has(lines: Sequence[ScoredLine], name: str) -> bool:
    """Return whether any line has a score of this name."""
    return any(line.scores.get(name) is not None for line in lines)


def _interval(value: Estimate) -> str:
    """Return a value with its confidence interval as text."""
    return f"{value.value:.2f} [{value.low:.2f}, {value.high:.2f}]"


def _sizes(each: RankCorrelation) -> str:
    """Return the numbers of targets and structures of a correlation as text."""
    targets = f"mean over {each.targets} targets, " if each.targets > 1 else ""
    return f"{targets}{each.structures:,} structures"


JOURNAL_FILE, STRUCTURES_DIRECTORY = "results.jsonl", "structures"
_PROTOCOL_AND_MODEL = ("protocol", "model")  # with which a structure was scored; shown next to its scores
Kind = Literal["chain", "complex"]
_METHOD_BY_KIND: dict[Kind, Method] = {"chain": "monomer", "complex": "multimer"}
_PLURAL_BY_KIND: dict[Kind, str] = {"chain": "single chains", "complex": "complexes"}
_DEFAULT_RECYCLES, _DEFAULT_BINDER_RECYCLES = 1, 3


@optional_output()
def score(options: ScoreOptions) -> int:
    """Score all structures, and write the results into the output directory; return 0, or 1 if a structure failed.

    Finished structures are not scored again unless the file or the settings have changed. Raise `InputError` for wrong
    input, before anything is written.
    """
    require("evaluate", "biotite", action="helixfold score")
    output = options.output
    if output.exists() and not output.is_dir():
        raise InputError.at(output, "is a file; pass --output a directory")
    if options.binder_chains and not options.binders:
        raise InputError("--binder-chains needs --binders; pass both")
    if options.binders and options.protocol != "auto":
        raise InputError("--binders cannot be combined with --protocol; leave out --protocol")
    files = find_structures(options.inputs, rescore=options.rescore)
    natives = [] if options.reference is None else find_references(options.reference)
    presets = {kind: find_preset(options, _METHOD_BY_KIND[kind]) for kind in _kinds(files, options)}
    protocols = {kind: _protocol(options, preset, kind) for kind, preset in presets.items()}
    recycles = options.num_recycles
    if recycles is None:
        recycles = _DEFAULT_BINDER_RECYCLES if options.binders else _DEFAULT_RECYCLES
    folding = FoldingOptions(num_recycles=recycles, seed=options.seed, dtype=options.dtype)
    with driven(output, "structure", len(files), options.progress) as run:
        remove_partial_files([output, *{output / STRUCTURES_DIRECTORY / file.target for file in files}])
        # One model may score both single chains and complexes.
        by_name = {preset.name: preset for preset in presets.values()}
        loaded = {name: Network(options, preset, folding, spill=output) for name, preset in by_name.items()}
        for kind, protocol in protocols.items():
            summary = f"protocol {protocol}, model {presets[kind].name}, {counted(recycles, 'recycle')}"
            print_summary(f"helixfold: {_PLURAL_BY_KIND[kind]}: {summary}")
        notes = [*dict.fromkeys(note for network in loaded.values() for note in network.model.notes)]
        if len({(protocols[kind], preset.name) for kind, preset in presets.items()}) > 1:
            notes.append("scores of single chains and of complexes differ in protocol or model: do not compare them")
        for note in notes:
            print_note(note)
        settings = {
            "command": "score",
            "binder_chains": list(options.binder_chains),
            "num_recycles": recycles,
            "seed": folding.seed,
            "dtype": next(iter(loaded.values())).folding.dtype,
        }
        networks = {kind: loaded[preset.name] for kind, preset in presets.items()}
        for kind, network in networks.items():
            settings |= {f"{kind}_protocol": protocols[kind], f"{kind}_model": network.model.preset.name}
            settings |= {f"{kind}_weights": network.model.digest}
        path, text_keys = output / JOURNAL_FILE, ("digest", "native_digest", "native", *_PROTOCOL_AND_MODEL)
        with Journal(path, settings, texts=text_keys, tables=("scores",), overwrite=options.overwrite) as journal:
            pending = _pending(files, natives, protocols, networks, options=options, run=run, journal=journal)
            for (is_chain, residues), same_size in groupby(pending, key=_size):
                while lot := [*islice(same_size, networks["chain"].at_once(residues) if is_chain else 1)]:
                    _score(lot, options, run, journal)
        if run.skipped:
            print_summary(f"{run.skipped} of {len(files)} structures: scored before (--overwrite scores them again)")
        lines = [_line(file, journal.results, run.failures.get(file.key), options) for file in files]
        write_scores(output, lines, settings, notes)
        print_summary("\n".join(screen_lines(lines)))
    print_summary(f"-> {output}")
    return run.exit_code


def _kind(structure: ScoredStructure, options: StructureOptions) -> Kind:
    """Return whether a structure is scored as a single chain or as a complex."""
    return "complex" if options.binders or len(structure.chains) > 1 else "chain"


def _kinds(files: Sequence[ScoredFile], options: StructureOptions) -> list[Kind]:
    """Return the kinds of structures in these files, single chains first; unreadable files are skipped."""
    kinds: set[Kind] = {"complex"} if options.binders else set()
    for file in files:
        if len(kinds) == (1 if options.binders else len(_METHOD_BY_KIND)):
            break
        with suppress(InputError):
            kinds.add(_kind(read_scored(file.path), options))
    return sorted(kinds) or ["chain"]


def _protocol(options: ScoreOptions, preset: Preset, kind: Kind) -> UsedProtocol:
    """Return the protocol for a kind of structures; print a note if the default protocol is not possible."""
    requested = options.protocol
    if options.binders:
        if preset.model.template is None:
            print_note(f"{preset.name} reads no templates, so the target is only in the initial guess")
        return "binder"
    if requested == "template":
        require_templates(preset)
    if requested != "auto":
        return requested
    if kind == "complex":
        return "initial_guess"
    if preset.model.template is None:
        print_note(f"{preset.name} reads no templates, so structures are scored as initial guesses")
        return "initial_guess"
    return "template"


@dataclass(frozen=True, kw_only=True)
class _Pending:
    """A structure to be scored; `entry` is its entry in the journal, without the scores."""

    file: ScoredFile
    structure: ScoredStructure
    native: Structure | None
    network: Network
    target: FoldingTarget
    entry: Mapping[str, str | None]


def _size(each: _Pending) -> tuple[bool, int]:
    """Return a key that is equal for structures of one batch: single chains of equal length."""
    return len(each.structure.chains) == 1, each.structure.residues


def _pending(
    files: Sequence[ScoredFile],
    natives: Sequence[StructureFile],
    protocols: Mapping[Kind, UsedProtocol],
    networks: Mapping[Kind, Network],
    *,
    options: ScoreOptions,
    run: Run,
    journal: Journal,
) -> Iterator[_Pending]:
    """Read structures one by one, and yield those without a current entry in the journal."""
    read = cache(read_structure)
    for file in files:
        pending = None
        with run.item(file.key, continues=True):
            structure = read_scored(file.path)
            kind = _kind(structure, options)
            model = networks[kind].model
            native = _native(file, structure, natives, read)
            entry = {
                "digest": structure.digest,
                "native_digest": None if native is None else hashlib.sha256(native.path.read_bytes()).hexdigest(),
                "native": None if native is None else native.name,
                "protocol": protocols[kind],
                "model": model.preset.name,
            }
            earlier = journal.results.get(file.key, {})
            is_current = all(earlier.get(name) == entry[name] for name in ("digest", "native_digest", "protocol"))
            if is_current and earlier.get("scores") and (not options.save_structures or _path(file, options).is_file()):
                run.skip()
                continue
            pending = _Pending(
                file=file,
                structure=structure,
                native=None if native is None else read(native.path),
                network=networks[kind],
                target=target_to_fold(structure, protocols[kind], model.preset, _binder(options)),
                entry=entry,
            )
        if pending is not None:
            yield pending


def _score(lot: Sequence[_Pending], options: ScoreOptions, run: Run, journal: Journal) -> None:
    """Score the structures of one batch, and add the scores to the journal."""
    for each, outcome in zip(lot, lot[0].network.outcomes([each.target for each in lot]), strict=True):
        with run.item(each.file.key):
            if isinstance(outcome, Exception):
                raise outcome
            scores: dict[str, Any] = dict(scores_of(each.structure, outcome, _binder(options)))
            if each.native is not None:
                scores |= compared_with_native(each.structure, outcome, each.native)
            if options.save_structures:
                text = to_pdb(outcome.protein, outcome.notes, chain_ids=outcome.chain_ids)
                write_file(_path(each.file, options), text)
            journal.add(each.file.key, {**each.entry, "scores": scores})


def _binder(options: ScoreOptions) -> BinderChains | None:
    """Return the chains of the binder for --binders; None without it."""
    return BinderChains(names=options.binder_chains) if options.binders else None


def _path(file: ScoredFile, options: ScoreOptions) -> Path:
    """Return the path at which the predicted structure of a file is written."""
    return options.output / STRUCTURES_DIRECTORY / file.target / f"{file.name}.pdb"


def _line(
    file: ScoredFile, results: Mapping[str, Mapping[str, Any]], problem: str | None, options: ScoreOptions
) -> ScoredLine:
    """Return the row of a structure from its entry in the journal, or with its problem."""
    entry = {} if problem is not None else results.get(file.key, {})
    predicted = _path(file, options)
    return ScoredLine(
        target=entry.get("native") or file.target,
        name=file.name,
        rank=file.rank,
        problem=problem,
        scores={name: entry[name] for name in _PROTOCOL_AND_MODEL if name in entry} | entry.get("scores", {}),
        path=os.path.relpath(file.path, options.output),
        predicted=os.path.relpath(predicted, options.output) if predicted.is_file() else "",
    )


def _native(
    file: ScoredFile,
    structure: ScoredStructure,
    natives: Sequence[StructureFile],
    read: Callable[[Path], Structure],
) -> StructureFile | None:
    """Return the native structure of a structure, or None.

    It is the only native, or the one with the name of the target or the structure, or the one with the same sequence.
    """
    if len(natives) < 2:
        return natives[0] if natives else None
    if named := by_name(file.target, natives) or by_name(file.name, natives):
        return named[0].reference
    readable = [(each, read(each.path)) for each in natives]
    own = Structure(name=file.name, release_date=None, resolution=None, method="", chains=structure.chains, skipped={})
    return by_sequence(own, readable)[0].reference
