"""Predict the effects of mutations, for `helixfold scan`, with one search for all mutants of a target.

Only the target's row of the alignment is mutated. If the other rows were mutated as well, all homologs would seem to
have the mutation.

The results of a target are tables and a heat map: mutations.tsv, mutations.json and mutations.html.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from tqdm import tqdm

from data_pipeline.features.complexes.complex_input import AnyTarget, ComplexInput
from data_pipeline.features.complexes.feature_file import features_digest
from data_pipeline.features.complexes.feature_set import TargetFeatures
from data_pipeline.features.complexes.target_files import directory_in
from data_pipeline.features.schema import Features
from data_pipeline.io.errors import InputError
from data_pipeline.io.extras import require
from data_pipeline.io.files import remove_partial_files
from data_pipeline.residues import ATOM_ORDER, MASKED, RESTYPES, RESTYPES_WITH_X, UNKNOWN
from data_pipeline.search.plan import SearchPlan
from helixfold.analysis.metrics import residue_lddt, rmsd
from helixfold.apps.options import PredictOptions
from helixfold.apps.score.mutations import Mutant, TargetChains, mutants_at, mutants_in_table, scanned_positions
from helixfold.apps.score.network import Network, find_preset
from helixfold.apps.score.options import MutationOptions, ScanOptions
from helixfold.apps.search import check_earlier, prepare_in, write_templates, written_directories
from helixfold.apps.search_plan import plan_of, with_site_sources
from helixfold.apps.targets import requested_targets
from helixfold.folding.options import FoldingOptions
from helixfold.folding.prediction import Prediction
from helixfold.folding.recycling import FoldingTarget
from helixfold.folding.templates import templates_read
from helixfold.model.alphafold import AlphaFold
from helixfold.report.page import counted, page
from helixfold.report.tables import headed
from helixfold.results.driver import Run, driven
from helixfold.results.journal import Journal
from helixfold.results.pdb import to_pdb
from helixfold.results.writing import aligned, rounded, tab_separated, to_json, write_file
from helixfold.runtime.options import Item, values_of
from helixfold.runtime.standard_streams import optional_output, print_note, print_summary

TABLE_FILE, JSON_FILE, PAGE_FILE = "mutations.tsv", "mutations.json", "mutations.html"
JOURNAL_FILE, WILD_TYPE_FILE, STRUCTURES_DIRECTORY = "mutants.jsonl", "wild_type.pdb", "structures"
_MAX_MUTANTS_ON_SCREEN, _MAX_MUTANTS_ON_PAGE = 10, 1000
# Rows of the heat map: amino acids ordered by the properties of their side chains.
_AMINO_ACID_ROWS = "GAVLIMCFWYPSTNQHKRDE"


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A measure of a mutation's effect: a column of the table and a heat map.

    `title` is the heading, and `layout` the format of a value, such as %.2f. The colour scale is diverging around
    `neutral` if there is one. It spans at least `floor` (on both sides of `neutral`), so that noise has faint colours.
    The floors are our choice, because no published study gives thresholds.
    """

    title: str
    layout: str
    floor: float
    neutral: float | None = 0.0
    largest: float | None = None  # fixed upper end of the scale
    is_loss: bool = False  # larger values are worse


MEASURES: dict[str, Measure] = {
    "masked_marginal": Measure(title="Masked marginal", layout="%.2f", floor=4.0),
    "wild_type_marginal": Measure(title="Wild-type marginal", layout="%.2f", floor=4.0),
    "plddt_change": Measure(title="Change of pLDDT", layout="%.2f", floor=10.0),
    "site_plddt_change": Measure(title="Change of pLDDT at the site", layout="%.2f", floor=20.0),
    "lddt": Measure(title="lDDT to the wild type", layout="%.3f", floor=0.2, neutral=None, largest=1.0),
    "site_lddt": Measure(
        title="lDDT to the wild type at the site", layout="%.3f", floor=0.4, neutral=None, largest=1.0
    ),
    "pae_change": Measure(title="Change of PAE, Å", layout="%.3f", floor=2.0, is_loss=True),
    "site_pae_change": Measure(title="Change of PAE at the site, Å", layout="%.3f", floor=4.0, is_loss=True),
    "ptm_change": Measure(title="Change of pTM", layout="%.4f", floor=0.1),
    "iptm_change": Measure(title="Change of ipTM", layout="%.4f", floor=0.1),
    "rmsd": Measure(title="RMSD to the wild type, Å", layout="%.2f", floor=4.0, neutral=None, is_loss=True),
    "plddt": Measure(title="pLDDT", layout="%.1f", floor=50.0, neutral=None, largest=100.0),
}
_MEASURES_ON_SCREEN = ("masked_marginal", "plddt_change", "site_plddt_change", "pae_change", "lddt")


@dataclass(frozen=True, kw_only=True)
class ScannedTarget:
    """Results of a scan of one target.

    `results` has the measures by name of the mutant. `log_likelihoods` has the log-likelihoods of the 20 amino acids by
    index of a masked position; None if they were not computed. `settings` are written to mutations.json.
    """

    chains: TargetChains
    mutants: tuple[Mutant, ...]
    results: Mapping[str, Mapping[str, Any]]
    log_likelihoods: Mapping[int, np.ndarray] | None
    wild_type: Prediction
    settings: Mapping[str, Any]

    @property
    def measures(self) -> list[str]:
        """Return the names of the measures with values."""
        return [name for name in MEASURES if any(each.get(name) is not None for each in self.results.values())]


def screen_lines(scanned: ScannedTarget) -> Iterator[str]:
    """Yield a table for the screen with the ten mutants whose structures differ most from the wild type, by lDDT."""
    names = [name for name in _MEASURES_ON_SCREEN if name in scanned.measures]
    most_different = sorted(scanned.mutants, key=lambda mutant: scanned.results[mutant.name]["lddt"])[
        :_MAX_MUTANTS_ON_SCREEN
    ]
    rows = [["furthest from the wild type", *names]]
    for mutant in most_different:
        result = scanned.results[mutant.name]
        cells = ["-" if result.get(name) is None else MEASURES[name].layout % result[name] for name in names]
        rows.append([mutant.name, *cells])
    yield from aligned(rows, left=1)


def write_scan(directory: Path, scanned: ScannedTarget) -> None:
    """Write mutations.tsv, mutations.json and mutations.html into the target's directory."""
    names = scanned.measures
    rows = [
        [
            mutant.name,
            ":".join(scanned.chains.label(each.position) for each in mutant.substitutions),
            *(rounded(scanned.results[mutant.name].get(name)) for name in names),
        ]
        for mutant in scanned.mutants
    ]
    write_file(directory / TABLE_FILE, tab_separated(("mutation", "position", *names), rows))
    write_file(directory / JSON_FILE, to_json(_content(scanned), indent=1) + "\n")
    write_file(directory / PAGE_FILE, _page(directory, scanned))


def _content(scanned: ScannedTarget) -> dict[str, Any]:
    """Return the content of mutations.json."""
    positions = scanned_positions(scanned.mutants)
    likelihoods = scanned.log_likelihoods or {}
    return {
        "target": scanned.chains.target,
        "settings": dict(scanned.settings),
        "notes": list(scanned.wild_type.notes),
        "wild_type": {
            "plddt": round(float(scanned.wild_type.plddt.mean(dtype=np.float64)), 2),
            "ptm": rounded(scanned.wild_type.ptm),
            "iptm": rounded(scanned.wild_type.iptm),
        },
        "amino_acids": RESTYPES,
        "masked_log_likelihoods": {
            scanned.chains.label(positions[index]): [round(float(value), 4) for value in values]
            for index, values in likelihoods.items()
        },
        "mutations": [
            {"mutation": mutant.name, **{name: rounded(value) for name, value in scanned.results[mutant.name].items()}}
            for mutant in scanned.mutants
        ],
    }


def structure_file(mutant: Mutant) -> str:
    """Return the path of a mutant's structure for --save-structures, relative to the target's directory."""
    return f"{STRUCTURES_DIRECTORY}/{mutant.name.replace(':', '_')}.pdb"


def _page(directory: Path, scanned: ScannedTarget) -> str:
    """Return the text of mutations.html."""
    measures = scanned.measures
    mutants = scanned.mutants[:_MAX_MUTANTS_ON_PAGE]
    data = map_data(scanned)
    return page(
        "mutations.html",
        styles=("page.css", "index.css", "mutations.css"),
        scripts=("banner.js", "mutation_map.js", "index.js"),
        title=scanned.chains.target,
        banners=[headed(note) for note in scanned.wild_type.notes],
        mutants=len(scanned.mutants),
        positions=len(scanned_positions(scanned.mutants)),
        plddt=float(scanned.wild_type.plddt.mean(dtype=np.float64)),
        ptm=scanned.wild_type.ptm,
        settings=scanned.settings,
        has_likelihoods="wild_type_marginal" in measures,
        columns=[(name, MEASURES[name].title, MEASURES[name].layout) for name in measures],
        lines=[(mutant.name, structure_file(mutant), scanned.results[mutant.name]) for mutant in mutants],
        has_structures=all((directory / structure_file(mutant)).is_file() for mutant in mutants),
        wild_type=WILD_TYPE_FILE,
        hidden_lines=len(scanned.mutants) - len(mutants),
        data=data if data["positions"] else None,
    )


def map_data(scanned: ScannedTarget) -> dict[str, Any]:
    """Return the data of the heat maps of single mutants, with positions as columns and amino acids as rows.

    There is a map for each measure with values.
    """
    singles = [mutant for mutant in scanned.mutants if len(mutant.substitutions) == 1]
    positions = scanned_positions(singles)
    column_of = {position: index for index, position in enumerate(positions)}
    letters = {each.letter for mutant in singles for each in mutant.substitutions}
    letters |= {position.letter for position in positions.values()}
    rows = "".join(letter for letter in _AMINO_ACID_ROWS if letter in letters)
    measures = []
    for name in scanned.measures:
        cells: list[list[float | None]] = [[None] * len(column_of) for _ in rows]
        for mutant in singles:
            (each,) = mutant.substitutions
            value = rounded(scanned.results[mutant.name].get(name))
            cells[rows.index(each.letter)][column_of[each.position.index]] = value
        measure = MEASURES[name]
        values = [value for row in cells for value in row if value is not None]
        measures.append(
            {
                "title": measure.title,
                "digits": int(measure.layout[2:-1]),
                "neutral": measure.neutral,
                "range": _range(values, measure),
                "flatBelow": measure.floor / 4 if _is_flat(values, measure) else None,
                "isLoss": measure.is_loss,
                "cells": cells,
            }
        )
    return {
        "rows": rows,
        "positions": [[scanned.chains.label(position), position.letter] for position in positions.values()],
        "measures": [measure for measure in measures if measure["range"] is not None],
    }


def _range(values: Sequence[float], measure: Measure) -> list[float] | None:
    """Return the ends of a measure's colour scale, which is symmetric for differences; None without values."""
    if not values:
        return None
    if measure.neutral is not None:
        largest_deviation = max(measure.floor, *map(abs, values))
        return [-largest_deviation, largest_deviation]
    if measure.largest is None:  # a distance
        return [0.0, max(measure.floor, *values)]
    return [min(measure.largest - measure.floor, *values), measure.largest]


def _is_flat(values: Sequence[float], measure: Measure) -> bool:
    """Return whether all mutants differ from the wild type by less than a quarter of the measure's floor."""
    unchanged_value = measure.neutral or measure.largest or 0.0
    return measure is not MEASURES["plddt"] and all(
        abs(value - unchanged_value) < measure.floor / 4 for value in values
    )


def mutated(features: TargetFeatures, mutant: Mutant) -> TargetFeatures:
    """Return the features of a mutant, with the other MSA rows and the templates of its target."""
    types = {each.position.index: RESTYPES_WITH_X.index(each.letter) for each in mutant.substitutions}
    return _with_residues(features, types, types)


def hidden(features: TargetFeatures, index: int) -> TargetFeatures:
    """Return features in which the target's residue with an `index`, from 0 among all residues, is hidden.

    It is masked in the target's MSA row, and unknown (X) in the sequence, which the network reads as well.
    """
    return _with_residues(features, {index: UNKNOWN}, {index: MASKED})


def _with_residues(features: TargetFeatures, types: Mapping[int, int], row: Mapping[int, int]) -> TargetFeatures:
    """Return features with new types of the target's residues, by index, in the sequence and in the first MSA row."""
    if isinstance(features, Features):
        return _with_single(features, types, row)
    complex_ = features.multimer
    return replace(
        features,
        multimer=replace(complex_, aatype=_changed(complex_.aatype, types), msa=_with_first_row(complex_.msa, row)),
        residue_gap=_with_single(features.residue_gap, types, row),
    )


def _with_single(features: Features, types: Mapping[int, int], row: Mapping[int, int]) -> Features:
    """Return the features of a chain with new residue types in the sequence and in the first MSA row."""
    letters = list(features.sequence)
    for index, residue in types.items():
        letters[index] = RESTYPES_WITH_X[residue]
    return replace(
        features,
        sequence="".join(letters),
        aatype=_changed(features.aatype, types),
        msa=_with_first_row(features.msa, row),
    )


def _with_first_row(msa: Int[np.ndarray, "n r"], row: Mapping[int, int]) -> Int[np.ndarray, "n r"]:
    """Return a copy of an MSA with new residues, by index, in the target's row."""
    changed = msa.copy()
    changed[0] = _changed(msa[0], row)
    return changed


def _changed(residues: Int[np.ndarray, "r"], types: Mapping[int, int]) -> Int[np.ndarray, "r"]:
    """Return a copy of residue types, with new types at some indices."""
    changed = residues.copy()
    for index, residue in types.items():
        changed[index] = residue
    return changed


@torch.no_grad()
def residue_log_likelihoods(model: AlphaFold, prediction: Prediction) -> Float[np.ndarray, "r 20"]:
    """Return the log-likelihoods (natural logarithm) of the 20 amino acids at each position of a target.

    They are computed by the masked-MSA head for the target's MSA row, and normalised over the 20 amino acids. The
    prediction must have the representation `msa_first_row`.
    """
    assert prediction.representations is not None
    head = model.heads.masked_msa
    row = torch.from_numpy(prediction.representations["msa_first_row"]).to(head.linear.weight.device)
    logits = head(row)[:, : len(RESTYPES)].float()
    likelihoods: np.ndarray = torch.log_softmax(logits, -1).cpu().numpy().astype(np.float64)
    return likelihoods


def marginal(mutant: Mutant, log_likelihoods: Sequence[Float[np.ndarray, " 20"]]) -> float | None:
    """Return the log-likelihood ratio of the substituted residues to the target's residues (Meier et al. 2021).

    `log_likelihoods` has the log-likelihoods at the position of each substitution; several substitutions are summed.
    Return None if the target's residue is unknown.
    """
    total = 0.0
    for each, likelihoods in zip(mutant.substitutions, log_likelihoods, strict=True):
        own_index = RESTYPES.find(each.position.letter)
        if own_index < 0:
            return None
        total += float(likelihoods[RESTYPES.index(each.letter)] - likelihoods[own_index])
    return total


_CA_INDEX = ATOM_ORDER["CA"]


def changes_of(mutant: Mutant, prediction: Prediction, wild_type: Prediction) -> Mapping[str, float | None]:
    """Return the measures of a mutant: confidences, their differences from the wild type, and structural similarity.

    pLDDT (0 to 100) and PAE (Å) are means over all residues or pairs; `site_` values are means over the substituted
    residues. lDDT (C-alpha, 0 to 1) and RMSD (Å) compare the structures of mutant and wild type.
    """
    sites = [each.position.index for each in mutant.substitutions]
    mutant_alpha, wild_type_alpha = (each.protein.atom_positions[:, _CA_INDEX] for each in (prediction, wild_type))
    by_residue, lddt = residue_lddt(mutant_alpha, wild_type_alpha, np.arange(len(mutant_alpha)))
    lddt_of_sites = by_residue[sites]
    return {
        "plddt": _mean(prediction.plddt),
        "plddt_change": _mean(prediction.plddt) - _mean(wild_type.plddt),
        "site_plddt_change": _mean(prediction.plddt[sites]) - _mean(wild_type.plddt[sites]),
        "pae_change": _difference(_mean_pae(prediction), _mean_pae(wild_type)),
        "site_pae_change": _difference(_mean_pae(prediction, sites), _mean_pae(wild_type, sites)),
        "ptm_change": _difference(prediction.ptm, wild_type.ptm),
        "iptm_change": _difference(prediction.iptm, wild_type.iptm),
        "lddt": lddt,
        "site_lddt": float(lddt_of_sites[np.isfinite(lddt_of_sites)].mean())
        if np.isfinite(lddt_of_sites).any()
        else None,
        "rmsd": rmsd(mutant_alpha, wild_type_alpha),
    }


def _mean(values: np.ndarray) -> float:
    """Return the mean in double precision."""
    return float(values.mean(dtype=np.float64))


def _mean_pae(prediction: Prediction, sites: list[int] | None = None) -> float | None:
    """Return the mean PAE (Å) of all pairs, or of the pairs with one of the `sites`, in both directions."""
    if prediction.pae is None:
        return None
    if sites is None:
        return _mean(prediction.pae)
    return (_mean(prediction.pae[sites]) + _mean(prediction.pae[:, sites])) / 2


def _difference(one: float | None, other: float | None) -> float | None:
    """Return `one - other`; None if either is None."""
    return None if one is None or other is None else one - other


_HIDDEN_KEY_PREFIX = "hidden "  # prefix of the journal's keys for likelihoods, before the index of the position


@optional_output()
def scan(options: ScanOptions) -> int:
    """Scan all targets, and write their results into subdirectories of the output; return 0, or 1 if one failed.

    Finished mutants are not predicted again. Raise `InputError` for wrong input, before anything is written.
    """
    require("evaluate", "biotite", action="helixfold scan")
    output = options.output
    targets, _ = requested_targets(PredictOptions(**values_of(options, PredictOptions)), announce=True)
    plan = plan_of(with_site_sources(options, targets))
    mutants = _mutants([TargetChains.of(target) for target in targets], options)
    targets = [target for target in targets if mutants[target.name]]
    are_complexes = all(isinstance(target, ComplexInput) for target in targets)
    preset = find_preset(options, "multimer" if are_complexes else "monomer")
    folding = FoldingOptions(
        num_recycles=options.num_recycles,
        seed=options.seed,
        dtype=options.dtype,
        representations=("msa_first_row",),
    )
    directories = {target.name: directory_in(output, target.name) for target in targets}
    check_earlier(output, {directories[target.name].name: target.sequence for target in targets})
    count = sum(len(mutants[target.name]) for target in targets)
    with driven(output, "mutant", count, options.progress) as run:
        structures = [each / STRUCTURES_DIRECTORY for each in directories.values()]
        remove_partial_files([*written_directories(output, [each.name for each in directories.values()]), *structures])
        # Random masks are off, so that predictions differ only by the mutation.
        network = Network(options, preset, folding, spill=output, masks=False)
        for note in network.model.notes:
            print_note(note)
        if options.likelihoods and not network.has_likelihoods:
            print_note(f"{preset.name} was trained without masked residues, so it has no amino-acid likelihoods")
        for target in targets:
            directory = directories[target.name]
            with run.item(target.name, len(mutants[target.name])):
                scanned = _scan(target, mutants[target.name], directory, network, plan=plan, options=options, run=run)
                write_scan(directory, scanned)
                print_summary("\n".join(screen_lines(scanned)))
                print_summary(f"{target.name}: {counted(len(scanned.mutants), 'mutant')} -> {directory}")
    return run.exit_code


def _mutants(targets: Sequence[TargetChains], options: MutationOptions) -> dict[str, list[Mutant]]:
    """Return the mutants by name of the target."""
    if options.table is None:
        return {chains.target: mutants_at(chains, options.positions, options.to) for chains in targets}
    if options.positions:
        raise InputError("--positions and --table cannot be combined; put all mutations into the table")
    return mutants_in_table(options.table, targets)


def _scan(
    target: AnyTarget,
    mutants: Sequence[Mutant],
    directory: Path,
    network: Network,
    *,
    plan: SearchPlan,
    options: MutationOptions,
    run: Run,
) -> ScannedTarget:
    """Run the searches of a target, predict the wild type and all missing mutants, and return all results."""
    prepared, model = prepare_in(directory, target, plan), network.model
    features = prepared.features
    for note in prepared.notes:
        print_note(f"{target.name}: {note}")
    write_templates(directory, prepared, {each.label for each in templates_read(features, model.preset)})
    settings = {
        "command": "scan",
        "features": features_digest(features),
        "model": model.preset.name,
        "weights": model.digest,
        "num_recycles": network.folding.recycles(model.preset),
        "seed": network.folding.seed,
        "dtype": network.folding.dtype,
    }
    chains = TargetChains.of(target)
    batch_size = network.at_once(sum(map(len, chains.sequences)))
    with Journal(directory / JOURNAL_FILE, settings, overwrite=options.overwrite) as journal:
        (wild_type,) = network.fold([FoldingTarget(features=features)])
        _save(directory / WILD_TYPE_FILE, wild_type)
        paths = {mutant: directory / structure_file(mutant) for mutant in mutants}
        missing = [
            mutant
            for mutant, path in paths.items()
            if journal.results.get(mutant.name, {}).get("lddt") is None
            or (options.save_structures and not path.is_file())
        ]
        if earlier_count := len(mutants) - len(missing):
            print_summary(
                f"{target.name}: {counted(earlier_count, 'mutant')} of an earlier run (--overwrite predicts them again)"
            )
            run.skip(earlier_count)
        likelihoods = None
        if options.likelihoods and network.has_likelihoods:
            likelihoods = _masked_likelihoods(features, list(scanned_positions(mutants)), network, batch_size, journal)
        for lot in _lots(missing, batch_size):
            requests = [FoldingTarget(features=mutated(features, mutant)) for mutant in lot]
            for mutant, prediction in zip(lot, network.fold(requests), strict=True):
                if options.save_structures:
                    _save(paths[mutant], prediction)
                journal.add(mutant.name, changes_of(mutant, prediction, wild_type))
                run.report(target.name, mutant.name)
        results = {mutant.name: dict(journal.results[mutant.name]) for mutant in mutants}
    if network.has_likelihoods:
        unmasked_likelihoods = residue_log_likelihoods(model.network, wild_type)
        for mutant in mutants:
            indices = [each.position.index for each in mutant.substitutions]
            results[mutant.name]["wild_type_marginal"] = marginal(
                mutant, [unmasked_likelihoods[index] for index in indices]
            )
            if likelihoods is not None:
                masked_likelihoods = [likelihoods[index] for index in indices]
                results[mutant.name]["masked_marginal"] = marginal(mutant, masked_likelihoods)
    return ScannedTarget(
        chains=chains,
        mutants=tuple(mutants),
        results=results,
        log_likelihoods=likelihoods,
        wild_type=wild_type,
        settings=settings,
    )


def _masked_likelihoods(
    features: TargetFeatures, positions: Sequence[int], network: Network, size: int, journal: Journal
) -> Mapping[int, np.ndarray]:
    """Return the log-likelihoods of the amino acids at each position with the position hidden, by its index."""
    keys = {index: f"{_HIDDEN_KEY_PREFIX}{index}" for index in positions}
    missing = [index for index, key in keys.items() if None in map(journal.results.get(key, {}).get, RESTYPES)]
    with tqdm(total=len(missing), desc="hidden positions", leave=False, disable=None) as bar:
        for lot in _lots(missing, size):
            requests = [FoldingTarget(features=hidden(features, index)) for index in lot]
            for index, prediction in zip(lot, network.fold(requests), strict=True):
                likelihoods = residue_log_likelihoods(network.model.network, prediction)[index]
                journal.add(keys[index], dict(zip(RESTYPES, likelihoods.tolist(), strict=True)))
            bar.update(len(lot))
    return {index: np.array([journal.results[key][letter] for letter in RESTYPES]) for index, key in keys.items()}


def _lots(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """Yield the batches of items; all mutants of a target have the same length."""
    yield from (items[start : start + size] for start in range(0, len(items), size))


def _save(path: Path, prediction: Prediction) -> None:
    """Write a predicted structure as a PDB file, if the format can hold it."""
    with suppress(ValueError):  # a PDB file cannot hold every structure, for example not one with 63 chains
        write_file(path, to_pdb(prediction.protein, prediction.notes, chain_ids=prediction.chain_ids))
