"""The targets of a batch that a cluster predicts: read, checked, and compared with what is done already."""

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
from helixfold.apps.cluster.forecast import forecast_of_pool, forecast_of_search, memory_for_tensors, properties_of_pool
from helixfold.apps.cluster.schedule import PoolForecast, Schedule
from helixfold.apps.cluster.site import Pool, Site, read_site
from helixfold.apps.options import ComplexOptions, MemoryLimits, PredictOptions, ScreenOptions, SearchOptions
from helixfold.apps.predict.jobs import Job
from helixfold.apps.predict.record import TargetRecord, read_record, record_of
from helixfold.apps.predict.settings import folding_of
from helixfold.apps.predict.variants import expected_variants, variant_settings
from helixfold.apps.search_plan import plan_of, with_site_sources
from helixfold.apps.targets import failures_of_skipped, requested_targets, skippable_problems
from helixfold.execution.device import AUTO, DTYPES, common_dtype, settled_dtype
from helixfold.folding.options import FoldingOptions
from helixfold.model.config import Method
from helixfold.model.presets import Preset
from helixfold.planning.memory import MemoryOptions
from helixfold.report.pulldown import PulldownEntry
from helixfold.results.file_table import FEATURES, RANKING
from helixfold.results.packed import PackedResults
from helixfold.runtime.options import DtypeOrAuto, changed_options, values_of
from helixfold.weights.find import find_parameters

# Options that say how one machine divides its work, or whose files concern all targets.
_EXCLUDED = (
    *("--features", "--overwrite", "--shared", "--shard", "--output-format", "--sort-queries-by"),
    *("--device", "--devices", "--ranks-per-target"),
)


@dataclass(frozen=True, kw_only=True)
class ClusterBatch:
    """The targets of a batch, and the cluster that predicts them."""

    site: Site
    options: PredictOptions
    targets: Sequence[AnyTarget]
    names: Sequence[str]  # of the targets' directories
    plan: SearchPlan
    pulldown: Sequence[PulldownEntry]
    invalid: Mapping[str, str]  # what is wrong with targets that are left out, as failures.json has it
    presets: Sequence[Preset]
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
        """Return whether targets are searched for."""
        plan = self.plan
        return bool(plan.alignments) or any(
            step is not None for step in (plan.templates, plan.pairing, plan.uniprot, plan.complex_templates)
        )

    def failures(self, schedule: Schedule) -> dict[str, str]:
        """Return why targets failed so far, or are left out, by name."""
        return {self.names[number]: why for number, why in sorted(schedule.failures.items())} | dict(self.invalid)

    def is_finished(self, number: int) -> bool:
        """Return whether a target has all predictions that are wanted, made with whatever settings."""
        if not self.is_marked(number) or (record := self._record(self.names[number])) is None:
            return False
        found = expected_variants(self.variants, Job(target=self.targets[number]), record.clusters)
        if found.clusters is not None and found.clusters.count is None:
            return False
        made = {origin.key for origin in record.predictions.values()}
        seeds = range(self.folding.seed, self.folding.seed + self.options.num_seeds)
        return all(
            (preset.name, seed, variant.description) in made
            for variant in found.variants
            for preset in self.presets
            for seed in seeds
        )

    def is_marked(self, number: int) -> bool:
        """Return whether a target is finished, perhaps with other settings."""
        return RANKING.path(self.output / self.names[number]).is_file() or self.names[number] in self._packed

    def has_features(self, number: int) -> bool:
        """Return whether a target was searched for, perhaps otherwise; whoever folds it looks at the results again."""
        return (FEATURES.path(self.output / self.names[number])).is_file()

    @cached_property
    def dtype(self) -> DtypeOrAuto:
        """Return the precision in which all pools compute: as targets were begun, else as suits all of their cards."""
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
        return PackedResults(self.output)

    def _record(self, name: str) -> TargetRecord | None:
        """Return the record of a target that an earlier run began, also of a packed one."""
        entry = self._packed.entry(name) if name in self._packed else None
        return read_record(self.output / name) if entry is None else record_of(entry.content.get("settings"))

    def schedule(self) -> Schedule:
        """Return the schedule of what is not finished yet. Raise `InputError` if the cluster has no pool for it."""
        search = self.site.search if self.searches else None
        if self.searches and search is None:
            raise InputError.at(self.site.path, "these options search databases, and there is no table [search]")
        if not self.site.folding:
            raise InputError.at(self.site.path, "there is no pool of folding nodes, such as [fold.gpu]")
        numbers = range(len(self.targets))
        found = Schedule(
            residues=self.residues,
            sequences=[target.sequence for target in self.targets],
            search=None if search is None else self._one_at_a_time(forecast_of_search(search)),
            folding=[self._forecast(pool) for pool in self.site.folding],
            searched={number for number in numbers if search is not None and self.has_features(number)},
            left_out={number for number in numbers if self.is_finished(number)},
        )
        if found.unfit and not any(pool.gpus for pool in self.site.folding):
            longest = max(found.unfit, key=self.residues.__getitem__)
            raise InputError.at(
                self.site.path,
                f"no pool has a GPU, and none of their nodes has the memory for {self.residues[longest]:,} residues "
                f"(there is room for {found.longest:,}): add a pool with a GPU or more memory, or leave it out",
                record=self.names[longest],
            )
        for number in found.unfit:
            reason = f"{self.residues[number]:,} residues fit into the memory of no pool; {found.longest:,} would"
            found.failures[number] = f"NotEnoughMemoryError: {reason}"
        return found

    def fold_options(self, pool: Pool) -> PredictOptions:
        """Return the options with which a worker of a pool folds some of the targets."""
        options = self.options
        models, memory = options.models, options.memory
        if options.weights is None or options.weights.is_dir():
            # Which models there are depends on all targets, not on those of a task.
            models = tuple(preset.name for preset in self.presets)
        if memory is None and pool.memory is not None and not pool.gpus:
            memory = memory_for_tensors(pool)
        without = PredictOptions()
        return replace(
            options,
            **values_of(without, ComplexOptions),
            **values_of(without, ScreenOptions),
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
        """Return the options with which a worker of a pool searches; the targets have their own files already."""
        options = SearchOptions(**values_of(self.options, SearchOptions))
        return replace(options, msa=(), templates=None, threads=options.threads or pool.threads)

    def _one_at_a_time(self, pool: PoolForecast) -> PoolForecast:
        """Let one task at a time ask a public server."""
        return replace(pool, slots=1) if self.options.msa_server else pool

    def _forecast(self, pool: Pool) -> PoolForecast:
        recycles = self.folding.recycles
        return forecast_of_pool(
            pool,
            self.presets,
            dtype=self.dtype,
            passes=[self.options.num_seeds * (recycles(preset) + 1) for preset in self.presets],
            ensemble=self.folding.num_ensemble,
            templates=self.plan.templates is not None or any(target.templates for target in self.targets),
        )


def read_batch(options: PredictOptions, given_targets: Sequence[AnyTarget] | None = None) -> ClusterBatch:
    """Return the targets of the options' files, or those given, and their cluster.

    Raise `InputError` for what cannot be used.
    """
    for name in changed_options(options):
        if name in _EXCLUDED:
            raise InputError(f"{name} and --cluster cannot be combined; leave one of them out")
    assert options.cluster is not None
    site = read_site(options.cluster)
    models, folding = folding_of(options)
    with input_problems(skippable_problems(options.skip_invalid)) as problems:
        targets, pulldown = requested_targets(options, given_targets, announce=True, problems=problems)
    if given_targets is None:
        options = with_site_sources(options, targets)  # nodes may have other files
    plan = plan_of(options, dry_run=options.dry_run)
    if not targets and not problems:
        raise InputError("there is nothing to fold; name a FASTA file or an alignment")
    method: Method = "multimer" if all(CHAIN_SEPARATOR in target.sequence for target in targets) else "monomer"
    found = find_parameters(models, options.weights, method=method)
    limits = MemoryOptions(**values_of(options, MemoryLimits))
    output = options.output
    there = output.is_dir()
    names = [directory_in(output, each.name).name if there else directory_name(each.name) for each in targets]
    return ClusterBatch(
        site=site,
        options=options,
        targets=targets,
        names=names,
        plan=plan,
        pulldown=pulldown,
        invalid=failures_of_skipped(problems, names, announce=True),
        presets=[limits.limited_preset(preset) for preset, _ in found],
        folding=folding,
        variants=variant_settings(options),
    )
