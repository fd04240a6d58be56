"""What a run folds: targets whose features are still to be made, and features that were made before."""

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
from data_pipeline.parse.fasta import directory_name
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
from helixfold.apps.targets import left_out_failures, requested_targets, skippable_problems
from helixfold.folding.initial_guess import guessed_positions
from helixfold.folding.model_input import input_notes
from helixfold.folding.recycling import FoldingTarget
from helixfold.folding.target_files import RESTRAINTS, STRUCTURES, file_of_target
from helixfold.folding.templates import templates_read as templates_read_by
from helixfold.report.page import counted
from helixfold.report.pulldown import PulldownEntry
from helixfold.report.searches import summary
from helixfold.results.file_table import FEATURES
from helixfold.runtime.options import changed_options, part_of
from helixfold.runtime.standard_streams import print_note
from helixfold.weights.find import ReadyModel


@dataclass(frozen=True, kw_only=True)
class Job:
    """A protein or complex to fold: a target whose features are still to be made, or features that were made before."""

    target: AnyTarget | None = None
    features: TargetFeatures | None = None
    directory: str | None = None  # its name, where an earlier version made it; None: `directory_name` gives it
    initial_guess: Path | None = None  # a structure file, whose atoms the first pass recycles
    restraints: Path | None = None  # a file of distance restraints

    @property
    def name(self) -> str:
        """Return the name of the target's directory, by which the screen and lists call the target, too."""
        return self.directory or directory_name(self.title)

    @property
    def title(self) -> str:
        """Return the name of the target as its file has it."""
        return self.target.name if self.target is not None else self.given_features.domain_name

    @property
    def sequence(self) -> str:
        """Return the amino acids as one-letter codes, with colons between the chains of a complex."""
        return self.target.sequence if self.target is not None else self.given_features.sequence

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
        """Return whether the target is a complex, be it of a single chain."""
        return isinstance(self.target, ComplexInput) or isinstance(self.features, ComplexFeatureSet)

    def notes(self, models: Sequence[ReadyModel]) -> tuple[str, ...]:
        """Return what every reader of its results by these models must know."""
        restrained = self.restraints is not None
        of_input = (input_notes(model.preset, self.chains, restrained=restrained) for model in models)
        own = (note for model, notes in zip(models, of_input, strict=True) for note in (*model.notes, *notes))
        return tuple(dict.fromkeys(own))

    def prepare(self, directory: Path, settings: RunSettings, templates_read: Collection[str] = ()) -> TargetFeatures:
        """Return the features, and write them into the target's directory.

        `templates_read` are the labels of the templates that earlier predictions in the directory used.
        """
        if self.target is not None:
            prepared = prepare_in(directory, self.target, settings.searches)
            of_run = (templates_read_by(prepared.features, model.preset) for model in settings.models)
            read = {*templates_read, *(template.label for templates in of_run for template in templates)}
            write_templates(directory, prepared, read)
            settings.say(f"{self.name}: {summary(prepared, read)}")
            return prepared.features
        save_features(FEATURES.path(directory), self.given_features)
        return self.given_features

    def guessed_positions(self, features: TargetFeatures) -> Float[np.ndarray, "r 37 3"] | None:
        """Return the atoms that the first pass recycles, in the order of the features; None for nothing."""
        return None if self.initial_guess is None else guessed_positions(self.initial_guess, features)

    def folding_target(
        self, features: TargetFeatures, name: str, guess: Float[np.ndarray, "r 37 3"] | None
    ) -> FoldingTarget:
        """Return what the prediction of this name is made from."""
        return FoldingTarget(features=features, name=name, initial_guess=guess, restraints=self.distance_restraints)

    @cached_property
    def distance_restraints(self) -> DistanceRestraints | None:
        """Return the restraints of the target; raise `InputError` for a file that cannot be read."""
        return None if self.restraints is None else read_restraints(self.restraints, self.sequence)

    @property
    def given_features(self) -> TargetFeatures:
        """Return the features that were made before, of a job that has them."""
        assert self.features is not None
        return self.features


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What a run folds, and the searches for it."""

    jobs: Sequence[Job]
    searches: SearchPlan
    pulldown: Sequence[PulldownEntry]  # the entries of its table
    invalid: Mapping[str, str]  # what is wrong with targets that are left out, as failures.json has it


def read_jobs(options: PredictOptions, given_targets: Sequence[AnyTarget] | None = None, *, announce: bool) -> Batch:
    """Return what a run with these options folds; see `requested_targets`.

    Raise `InputError` for wrong input: all errors together or, with --skip-invalid, none of those that concern single
    targets, unless no target is valid.
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
        ready = read_features(options.features, problems)
        jobs = [*(Job(target=target) for target in targets), *(Job(features=features) for _, features in ready)]
        if not jobs and not problems:
            raise InputError("there is nothing to fold; name a FASTA file, an alignment, or --features")
        _check_references(options.reference)
        files = [Path("the targets")] * len(targets) + [path for path, _ in ready]
        jobs = _checked(jobs, files, options, problems)
        chains = {chain for job in jobs for chain in job.chain_ids}
        for name in options.cyclic or ():
            if name not in chains and not problems:  # a target that is left out may have it
                hint = did_you_mean(name, sorted(chains))
                raise InputError(f"--cyclic {printable(name)}: no target has a chain of this name{hint}")
    # Whoever gives targets has decided what is searched.
    search = with_site_sources(options, targets, announce=announce) if given_targets is None else options
    searches = plan_of(search, announce=announce, dry_run=options.dry_run)
    if announce and (unfinished := unfinished_features(options.features)):
        text = f"left out, as they have no {FEATURES.name()}: {', '.join(map(str, unfinished))}"
        print_note(f"{printable(text, 1000)}; helixfold features makes the rest")
    jobs = [replace(job, directory=directory_in(options.output, job.title).name) for job in jobs]
    invalid = left_out_failures(problems, {job.name for job in jobs}, announce=announce)
    pulldown += pulldown_of_features(options.features, {directory_name(each.domain_name) for _, each in ready})
    if (shard := options.shard) is not None:
        count, jobs = len(jobs), part_of(jobs, shard)
        if not jobs:
            raise InputError(f"there is no target in shard {shard[0]}/{shard[1]} of {counted(count, 'target')}")
    return Batch(jobs=jobs, searches=searches, pulldown=pulldown, invalid=invalid)


def _checked(jobs: Sequence[Job], files: Sequence[Path], options: PredictOptions, problems: InputProblems) -> list[Job]:
    """Return the jobs that have a name of their own and, if there are any, an initial guess; `files` have the jobs."""
    names, found = TargetNames(), list[Job]()
    only = len(jobs) + len(problems) == 1
    for job, file in zip(jobs, files, strict=True):
        with problems.collected(job.title):
            names.add(job.title, file)
            guess = restraints = None
            if options.initial_guess is not None:
                guess = file_of_target(options.initial_guess, job.title, STRUCTURES, only=only)
            if options.restraints is not None:
                restraints = file_of_target(options.restraints, job.title, RESTRAINTS, only=only)
            found.append(replace(job, initial_guess=guess, restraints=restraints))
            _ = found[-1].distance_restraints  # so that errors in the files of all targets are listed together
    return found


def _check_references(paths: Sequence[Path]) -> None:
    """Read structures that samples will be compared to; raise `InputError` for what is wrong with one."""
    if not paths:
        return
    # Takes long to import.
    from helixfold.analysis.matching import structure_files  # noqa: PLC0415

    for file in (each for path in paths for each in structure_files(path)):
        read_structure(file.path)
