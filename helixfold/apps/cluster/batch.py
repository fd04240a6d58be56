"""Read and check the targets of a batch that a cluster predicts, and find out which are already finished."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import cast

from data_pipeline.features.complexes.chain_sequences import CHAIN_SEPARATOR
from data_pipeline.features.complexes.complex_input import AnyTarget
from data_pipeline.features.complexes.target_files import directory_in
from data_pipeline.io.errors import InputError, input_problems
from data_pipeline.parse.fasta import directory_name
from data_pipeline.sampling.alignment_variants import VariantSettings
from data_pipeline.search.plan import SearchPlan
from helixfold.apps.cluster.estimate import estimate_pool, estimate_search, memory_for_tensors, properties_of_pool
from helixfold.apps.cluster.schedule import PoolEstimate, Schedule
from helixfold.apps.cluster.site import Pool, Site, read_site
from helixfold.apps.options import ComplexOptions, MemoryLimits, PredictOptions, ScreenOptions, SearchOptions
from helixfold.apps.predict.jobs import Job
from helixfold.apps.predict.record import TargetRecord, read_record, record_of
from helixfold.apps.predict.settings import folding_of
from helixfold.apps.predict.variants import expected_variants, variant_settings
from helixfold.apps.search_plan import plan_of, with_site_sources
from helixfold.apps.targets import advise_skipping, failures_of_skipped, requested_targets, skippable_problems
from helixfold.execution.device import AUTO, DTYPES, common_dtype, settled_dtype
from helixfold.folding.options import FoldingOptions
from helixfold.model.config import Method
from helixfold.model.presets import Preset
from helixfold.planning.memory import MemoryOptions
from helixfold.report.pulldown import PulldownEntry
from helixfold.results.file_table import FEATURES, RANKING
from helixfold.results.packed import PackedResults
from helixfold.runtime.options import DtypeOrAuto, changed_options, values_of
from helixfold.weights.adapters import parse_adapters
from helixfold.weights.find import find_parameters, parameter_notes

# Options for dividing the work of one machine, and options whose files concern all targets.
_EXCLUDED_OPTIONS = (
    *("--features", "--overwrite", "--shared", "--shard", "--output-format", "--sort-queries-by"),
    *("--device", "--devices", "--ranks-per-target"),
)


@dataclass(frozen=True, kw_only=True)
class ClusterBatch:
    """The targets of a batch, the cluster that predicts them, and the options of `helixfold predict`.

    `plan` has the searches, `presets` are the models, and `pulldown` has the entries of the pulldown's table. Indices
    of methods are indices of targets.
    """

    site: Site
    options: PredictOptions
    targets: Sequence[AnyTarget]
    names: Sequence[str]  # of the targets' directories
    plan: SearchPlan
    pulldown: Sequence[PulldownEntry]
    invalid: Mapping[str, str]  # the problems of excluded targets by name, as in failures.json
    presets: Sequence[Preset]
    notes: Sequence[str]  # that the parameters are random, or of the demonstration model
    folding: FoldingOptions
    variants: VariantSettings  # of each target's alignment

    @property
    def output(self) -> Path:
        """Return the output directory."""
        return self.options.output

    @cached_property
    def residues(self) -> list[int]:
        """Return the number of residues of each target."""
        return [len(target.sequence.replace(CHAIN_SEPARATOR, "")) for target in self.targets]

    @property
    def searches(self) -> bool:
        """Return whether the batch searches databases or an MSA server, for alignments or for templates."""
        plan = self.plan
        return bool(plan.alignments) or any(
            step is not None for step in (plan.templates, plan.pairing, plan.uniprot, plan.complex_templates)
        )

    def failures(self, schedule: Schedule) -> dict[str, str]:
        """Return the reasons for which targets failed or are excluded, by name."""
        return {self.names[index]: reason for index, reason in sorted(schedule.failures.items())} | dict(self.invalid)

    def is_finished(self, index: int) -> bool:
        """Return whether a target has all requested predictions, possibly with other settings."""
        if not self.is_marked(index) or (record := self._record(self.names[index])) is None:
            return False
        expected = expected_variants(self.variants, Job(target=self.targets[index]), record.clusters)
        if expected.clusters is not None and expected.clusters.count is None:
            return False
        predictions = {origin.key for origin in record.predictions.values()}
        seeds = range(self.folding.seed, self.folding.seed + self.options.num_seeds)
        return all(
            (preset.name, seed, variant.description) in predictions
            for variant in expected.variants
            for preset in self.presets
            for seed in seeds
        )

    def is_marked(self, index: int) -> bool:
        """Return whether an earlier run marked a target as finished, possibly with other settings."""
        return RANKING.path(self.output / self.names[index]).is_file() or self.names[index] in self._packed

    def has_features(self, index: int) -> bool:
        """Return whether a target has features, possibly with other settings, which the folding worker checks again."""
        return (FEATURES.path(self.output / self.names[index])).is_file()

    @cached_property
    def dtype(self) -> DtypeOrAuto:
        """Return the precision of all pools: the option, else as in an earlier run, else one for all devices."""
        if self.folding.dtype != AUTO:
            return cast(DtypeOrAuto, self.folding.dtype)
        for name in self.names if self.output.is_dir() else ():
            record = self._record(name)
            if record is not None and record.options.get("dtype") in DTYPES:
                return cast(DtypeOrAuto, record.options["dtype"])
        return cast(
            DtypeOrAuto, common_dtype([settled_dtype(AUTO, properties_of_pool(pool)) for pool in self.site.folding])
        )

    @cached_property
    def _packed(self) -> PackedResults:
        """The packed results in the output directory."""
        return PackedResults(self.output)

    def _record(self, name: str) -> TargetRecord | None:
        """Return the record of a target from an earlier run, including packed results; None without one."""
        entry = self._packed.entry(name) if name in self._packed else None
        return read_record(self.output / name) if entry is None else record_of(entry.content.get("settings"))

    def schedule(self) -> Schedule:
        """Return the schedule of the unfinished targets. Targets that fit into no pool are failures.

        Raise `InputError` if the cluster has no pool for searches or folding, or if a target fits into no pool and no
        pool has a GPU.
        """
        search = self.site.search if self.searches else None
        if self.searches and search is None:
            raise InputError.at(
                self.site.path, "has no table [search], which is required because databases are searched"
            )
        if not self.site.folding:
            raise InputError.at(self.site.path, "has no pool of folding nodes; add a table such as [fold.gpu]")
        indices = range(len(self.targets))
        schedule = Schedule(
            residues=self.residues,
            sequences=[target.sequence for target in self.targets],
            search=None if search is None else self._limit_searches(estimate_search(search)),
            folding=[self._estimate(pool) for pool in self.site.folding],
            searched={index for index in indices if search is not None and self.has_features(index)},
            already_finished={index for index in indices if self.is_finished(index)},
        )
        if schedule.unfit and not any(pool.gpus for pool in self.site.folding):
            longest = max(schedule.unfit, key=self.residues.__getitem__)
            raise InputError.at(
                self.site.path,
                f"no pool has a GPU, and none of their nodes has the memory for {self.residues[longest]:,} residues "
                f"(the maximum is {schedule.longest:,}); add a pool with a GPU or more memory, or remove the target",
                record=self.names[longest],
            )
        for index in schedule.unfit:
            reason = f"{self.residues[index]:,} residues exceed the memory of every pool; the maximum is"
            schedule.failures[index] = f"NotEnoughMemoryError: {reason} {schedule.longest:,}"
        return schedule

    def fold_options(self, pool: Pool) -> PredictOptions:
        """Return the options with which a worker of a pool folds targets."""
        options = self.options
        models, memory = options.models, options.memory
        if options.weights is None or options.weights.is_dir():
            # The default models depend on all targets of the batch, not on the targets of one task.
            models = tuple(preset.name for preset in self.presets)
        if memory is None and pool.memory is not None and not pool.gpus:
            memory = memory_for_tensors(pool)
        defaults = PredictOptions()
        return replace(
            options,
            **values_of(defaults, ComplexOptions),
            **values_of(defaults, ScreenOptions),
            **values_of(self.search_options(pool), SearchOptions),
            inputs=(),
            pulldown=None,
            pulldown_table=None,
            example=False,
            shared=True,
            sort_queries_by="none",
            keep_existing=True,
            skip_invalid=False,
            models=models,
            dtype=self.dtype,
            device=pool.device,
            cluster=None,
            memory=memory,
        )

    def search_options(self, pool: Pool) -> SearchOptions:
        """Return the options with which a worker of a pool searches, without files, which the targets already have."""
        options = SearchOptions(**values_of(self.options, SearchOptions))
        return replace(options, msa=(), templates=None, threads=options.threads or pool.threads)

    def _limit_searches(self, pool: PoolEstimate) -> PoolEstimate:
        """Allow one task at a time if a public MSA server is used."""
        return replace(pool, slots=1) if self.options.msa_server else pool

    def _estimate(self, pool: Pool) -> PoolEstimate:
        """Return the estimate of a pool for the models and options of the batch."""
        recycles = self.folding.recycles
        return estimate_pool(
            pool,
            self.presets,
            dtype=self.dtype,
            iterations=[self.options.num_seeds * (recycles(preset) + 1) for preset in self.presets],
            ensemble=self.folding.num_ensemble,
            templates=self.plan.templates is not None or any(target.templates for target in self.targets),
        )


def read_batch(options: PredictOptions, targets: Sequence[AnyTarget] | None = None) -> ClusterBatch:
    """Read the cluster of the options, and the targets of their files unless `targets` are passed.

    Raise `InputError` for invalid options, files or targets.
    """
    for name in changed_options(options):
        if name in _EXCLUDED_OPTIONS:
            raise InputError(f"{name} and --cluster cannot be combined; leave one of them out")
    assert options.cluster is not None
    site = read_site(options.cluster)
    models, folding = folding_of(options)
    with input_problems(skippable_problems(options.skip_invalid)) as problems:
        all_targets, pulldown = requested_targets(options, targets, announce=True, problems=problems)
        advise_skipping(problems, all_targets, options.inputs)
    if targets is None:
        options = with_site_sources(options, all_targets)  # nodes may have other configuration files
    plan = plan_of(options, dry_run=options.dry_run)
    if not all_targets and not problems:
        raise InputError("there is nothing to fold; pass a FASTA file or an alignment")
    method: Method = "multimer" if all(CHAIN_SEPARATOR in target.sequence for target in all_targets) else "monomer"
    parameters = find_parameters(models, options.weights, method=method)
    adapters = parse_adapters(options.adapter)
    notes = [parameter_notes(preset, path, seed=folding.seed, adapters=adapters) for preset, path in parameters]
    limits = MemoryOptions(**values_of(options, MemoryLimits))
    output = options.output
    exists = output.is_dir()
    names = [directory_in(output, each.name).name if exists else directory_name(each.name) for each in all_targets]
    return ClusterBatch(
        site=site,
        options=options,
        targets=all_targets,
        names=names,
        plan=plan,
        pulldown=pulldown,
        invalid=failures_of_skipped(problems, names, announce=True),
        presets=[limits.limited_preset(preset) for preset, _ in parameters],
        notes=list(dict.fromkeys(note for each in notes for note in each)),
        folding=folding,
        variants=variant_settings(options),
    )
