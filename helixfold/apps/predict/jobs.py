"""Read the input of a prediction run as jobs: targets whose features will be computed, and finished features."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Float

from data_pipeline.features.complexes.chain_ids import ONLY_CHAIN
from data_pipeline.features.complexes.chain_sequences import CHAIN_SEPARATOR
from data_pipeline.features.complexes.complex_input import AnyTarget, ComplexInput
from data_pipeline.features.complexes.feature_file import save_features
from data_pipeline.features.complexes.feature_set import ComplexFeatureSet, TargetFeatures
from data_pipeline.features.complexes.target_files import TargetNames, directory_in
from data_pipeline.io.errors import InputError, InputProblems, did_you_mean, input_problems, printable
from data_pipeline.parse.fasta import directory_name, file_names
from data_pipeline.parse.restraints import DistanceRestraints, read_restraints
from data_pipeline.parse.structures import read_structure
from data_pipeline.search.plan import SearchPlan
from helixfold.apps.options import PredictOptions, SearchOptions
from helixfold.apps.predict.settings import RunSettings
from helixfold.apps.search import (
    prepare_in,
    pulldown_of_features,
    read_features,
    unfinished_features,
    write_templates,
)
from helixfold.apps.search_plan import plan_of, with_site_sources
from helixfold.apps.targets import advise_skipping, failures_of_skipped, requested_targets, skippable_problems
from helixfold.folding.initial_guess import guessed_positions
from helixfold.folding.model_input import input_notes
from helixfold.folding.recycling import FoldingTarget
from helixfold.folding.templates import templates_read as templates_read_by
from helixfold.report.page import counted
from helixfold.report.pulldown import PulldownEntry
from helixfold.report.searches import summary
from helixfold.results.file_table import FEATURES
from helixfold.runtime.options import changed_options, part_of
from helixfold.runtime.standard_streams import print_note
from helixfold.weights.find import ReadyModel

# Suffixes of the files of targets.
STRUCTURE_SUFFIXES = (".cif", ".mmcif", ".pdb", ".cif.gz", ".pdb.gz")
_RESTRAINT_SUFFIXES = (".csv", ".tsv", ".txt")


@dataclass(frozen=True, kw_only=True)
class Job:
    """A protein or complex to fold: a target whose features will be computed, or features from a file."""

    target: AnyTarget | None = None
    features: TargetFeatures | None = None
    directory: str | None = None  # name of the output directory if an earlier version named it differently
    initial_guess: Path | None = None  # structure file whose atom positions the first iteration recycles
    restraints: Path | None = None  # file of distance restraints

    @property
    def name(self) -> str:
        """Return the name of the target's directory, which is also its name on the screen and in lists."""
        return self.directory or directory_name(self.title)

    @property
    def title(self) -> str:
        """Return the name of the target in its file."""
        return self.target.name if self.target is not None else self.ready_features.domain_name

    @property
    def sequence(self) -> str:
        """Return the amino acids as one-letter codes, with colons between the chains of a complex."""
        return self.target.sequence if self.target is not None else self.ready_features.sequence

    @property
    def residues(self) -> int:
        """Return the number of residues of all chains."""
        return len(self.sequence.replace(CHAIN_SEPARATOR, ""))

    @property
    def chains(self) -> int:
        """Return the number of chains."""
        return self.sequence.count(CHAIN_SEPARATOR) + 1

    @property
    def chain_ids(self) -> tuple[str, ...]:
        """Return the names of the chains in the order of the sequence."""
        if isinstance(self.target, ComplexInput):
            return tuple(name for entity in self.target.target.entities for name in entity.chain_ids)
        if isinstance(self.features, ComplexFeatureSet):
            return self.features.multimer.chain_names
        return (ONLY_CHAIN,)

    @property
    def is_complex(self) -> bool:
        """Return whether the target is a complex, which may have a single chain."""
        return isinstance(self.target, ComplexInput) or isinstance(self.features, ComplexFeatureSet)

    @property
    def has_cross_chain_templates(self) -> bool:
        """Return whether a template shows how its chains are arranged."""
        if isinstance(self.target, ComplexInput):
            return bool(self.target.cross_chain_templates)
        return isinstance(self.features, ComplexFeatureSet) and any(self.features.multimer.template_spans_chains)

    def notes(self, models: Sequence[ReadyModel]) -> tuple[str, ...]:
        """Return the notes for all readers of the target's results: of each model, and of the model for this target.

        Each note is returned once.
        """
        notes: list[str] = []
        for model in models:
            notes += model.notes
            notes += input_notes(model.preset, self.chains, restrained=self.restraints is not None)
        return tuple(dict.fromkeys(notes))

    def prepare(self, directory: Path, settings: RunSettings, templates_read: Collection[str] = ()) -> TargetFeatures:
        """Compute the features, after the searches, or take the finished ones; write them into the directory.

        If they are computed, also write templates.json and print a summary. `templates_read` are the labels of the
        templates that earlier predictions in the directory used; they count as used in templates.json, too.
        """
        if self.target is not None:
            prepared = prepare_in(directory, self.target, settings.searches)
            labels_read = set(templates_read)
            for model in settings.models:
                labels_read |= {template.label for template in templates_read_by(prepared.features, model.preset)}
            write_templates(directory, prepared, labels_read)
            settings.say(f"{self.name}: {summary(prepared, labels_read)}")
            return prepared.features
        save_features(FEATURES.path(directory), self.ready_features)
        return self.ready_features

    def guessed_positions(self, features: TargetFeatures) -> Float[np.ndarray, "r 37 3"] | None:
        """Return the atom positions (Å) that the first iteration recycles, in the order of the features, or None."""
        return None if self.initial_guess is None else guessed_positions(self.initial_guess, features)

    def folding_target(
        self, features: TargetFeatures, name: str, guess: Float[np.ndarray, "r 37 3"] | None
    ) -> FoldingTarget:
        """Return the input of the prediction `name`: features, restraints of this job, and the initial guess.

        `guess` is the result of `guessed_positions`.
        """
        return FoldingTarget(features=features, name=name, initial_guess=guess, restraints=self.distance_restraints)

    @cached_property
    def distance_restraints(self) -> DistanceRestraints | None:
        """Return the restraints of the target; raise `InputError` for a file that cannot be read."""
        return None if self.restraints is None else read_restraints(self.restraints, self.sequence)

    @property
    def ready_features(self) -> TargetFeatures:
        """Return the features of a job that has them from a file."""
        assert self.features is not None
        return self.features


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The jobs and the searches of a run. With --shard, the jobs are only this run's part of the targets."""

    jobs: Sequence[Job]
    searches: SearchPlan
    pulldown: Sequence[PulldownEntry]  # entries of the pulldown table
    invalid: Mapping[str, str]  # targets that are skipped, with the error for failures.json


def read_jobs(options: PredictOptions, given_targets: Sequence[AnyTarget] | None = None, *, announce: bool) -> Batch:
    """Read all input of a run: targets, features, and the plan of searches.

    `given_targets` replaces the targets in the files of `options`. With `announce`, notes and skipped targets are
    printed. Raise `InputError` for wrong input, with all errors together. With --skip-invalid, errors of single targets
    are returned instead, unless no target is valid.
    """
    if (
        options.features
        and not options.inputs
        and (names := changed_options(options, SearchOptions))
        and names != ["--threads"]
    ):
        raise InputError(f"{names[0]} would do nothing: features are ready; pass it the sequences instead")
    plan_of(with_site_sources(options, announce=False), announce=False)  # wrong options are reported before wrong files
    with input_problems(skippable_problems(options.skip_invalid)) as problems:
        targets, pulldown = requested_targets(options, given_targets, announce=announce, problems=problems)
        loaded_features = read_features(options.features, problems)
        sources = [
            *((Job(target=target), Path("the input files, besides --features,")) for target in targets),
            *((Job(features=features), path) for path, features in loaded_features),
        ]
        if not sources and not problems:
            raise InputError("no input; pass a FASTA file, an alignment, or --features")
        _check_references(options.reference)
        jobs = _checked(sources, options, problems)
        chains = {chain for job in jobs for chain in job.chain_ids}
        for name in options.cyclic or ():
            if name not in chains and not problems:  # a skipped target may have the chain
                hint = did_you_mean(name, sorted(chains))
                raise InputError(f"--cyclic {printable(name)}: no target has a chain with this name{hint}")
        advise_skipping(problems, jobs, options.inputs)
    # A caller that passes targets has already chosen the searches.
    search = with_site_sources(options, targets, announce=announce) if given_targets is None else options
    searches = plan_of(search, announce=announce, dry_run=options.dry_run)
    if announce and (unfinished := unfinished_features(options.features)):
        text = f"skipped because {FEATURES.name()} is missing: {', '.join(map(str, unfinished))}"
        print_note(f"{printable(text, 1000)}; run helixfold features to make it")
    invalid = failures_of_skipped(problems, {job.name for job in jobs}, announce=announce)
    pulldown += pulldown_of_features(
        options.features, {directory_name(each.domain_name) for _, each in loaded_features}
    )
    if (shard := options.shard) is not None:
        count, jobs = len(jobs), part_of(jobs, shard)
        if not jobs:
            raise InputError(f"shard {shard[0]}/{shard[1]} of {counted(count, 'target')} is empty; use fewer shards")
    return Batch(jobs=jobs, searches=searches, pulldown=pulldown, invalid=invalid)


def _checked(sources: Sequence[tuple[Job, Path]], options: PredictOptions, problems: InputProblems) -> list[Job]:
    """Return the valid jobs, with their files; add an error for each that has no unique name or lacks a file.

    `sources` has each job with the file that it comes from.
    """
    names, valid = TargetNames(), list[Job]()
    is_only = len(sources) + len(problems) == 1
    for job, file in sources:
        with problems.collected(job.title):
            names.add(job.title, file)
            complete_job = replace(
                job,
                directory=directory_in(options.output, job.title).name,
                initial_guess=file_of_target(options.initial_guess, job.title, STRUCTURE_SUFFIXES, only=is_only),
                restraints=file_of_target(options.restraints, job.title, _RESTRAINT_SUFFIXES, only=is_only),
            )
            _ = complete_job.distance_restraints  # so that errors in the files of all targets are listed together
            valid.append(complete_job)
    return valid


def file_of_target(path: Path | None, target: str, suffixes: tuple[str, ...], *, only: bool) -> Path | None:
    """Return the file of the target with the name `target`: `path` itself, or a file in the directory `path`.

    A `path` that is a file must be for the `only` target. In a directory, the file has the target's name and one of the
    `suffixes`. A `path` of None has no file. Raise `InputError` if no such file exists, or if one file is passed for
    several targets.
    """
    if path is None:
        return None
    example = f"{printable(target)}{suffixes[0]}"
    if path.is_file():
        if only:
            return path
        raise InputError.at(path, f"is one file for several targets; pass a directory with {example} and so on")
    if not path.is_dir():
        raise InputError.at(path, "no such file or directory")
    files = (path / f"{name}{suffix}" for name in file_names(target) for suffix in suffixes)
    target_file = next((file for file in files if file.is_file()), None)
    if target_file is None:
        raise InputError.at(path, f"has no file of this target, such as {example}", record=target)
    return target_file


def _check_references(paths: Sequence[Path]) -> None:
    """Read the reference structures; raise `InputError` if one cannot be read."""
    if not paths:
        return
    # This module takes long to import.
    from helixfold.analysis.matching import structure_files  # noqa: PLC0415

    for file in (each for path in paths for each in structure_files(path)):
        read_structure(file.path)
