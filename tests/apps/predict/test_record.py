"""Every option that changes results is in the record of a target, so that none of another setting stands for them."""

from dataclasses import fields, is_dataclass, replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from data_pipeline.pipeline import Target, prepare
from helixfold.apps.predict.options import PredictOptions
from helixfold.apps.predict.record import TargetRecord, record_for
from helixfold.apps.predict.settings import RunSettings, folding_of
from helixfold.apps.predict.targets import read_jobs
from helixfold.apps.predict.variants import expected_variants, variant_settings
from helixfold.planning.memory import MemoryOptions
from helixfold.presets import tiny
from helixfold.weights.checkpoint import save_checkpoint
from helixfold.weights.find import ReadyModel, find_models

SEQUENCE = "MKTAYIAKQR"
STRUCTURES = Path(__file__).parents[3] / "examples" / "structures"
# What is done with results, where and how fast they are made, and what is shown meanwhile.
FREE = {
    "targets.output", "targets.overwrite", "targets.slim", "targets.zip", "targets.output_format",
    "targets.sort_queries_by", "targets.dry_run", "targets.as_protein", "targets.keep_existing",
    "targets.shared", "targets.shard", "targets.command", "targets.failures_file",
    "devices.cluster", "search.msa_server_timeout", "search.msa_server_wait",
    "search.pair_strategy", "complexes.records_as_chains", "complexes.pair_mode",
    "search.threads", "search.search_cache", "compute.models_to_relax", "compute.save_logits",
    "compute.save_recycles", "compute.save_representations", "compute.representations_format",
    "conformations.reference", "devices.device", "devices.devices",
    "devices.ranks_per_target", "devices.targets_at_once", "devices.cuda_graphs", "memory.executor", "memory.memory",
    "memory.spill_directory", "screen.log_file", "screen.progress",
}  # fmt: skip


def changed_options(folder: Path) -> dict[str, Any]:
    """Another value of each option than the first run has."""
    (folder / "other.fasta").write_text(f">one\n{SEQUENCE}A\n")
    (folder / "one.a3m").write_text(f">one\n{SEQUENCE}\n>row\n{SEQUENCE[::-1]}\n")
    (folder / "database.fasta").write_text(f">row\n{SEQUENCE * 3}\n")
    (folder / "profile.toml").write_text('[[alignments]]\nname = "mine"\ntool = "jackhmmer"\npath = "database.fasta"\n')
    prepare(Target(name="two", sequence=SEQUENCE)).features.save(folder / "features.npz")
    network = find_models(["tiny"], None, seed=5)[0].network
    save_checkpoint(folder / "params_tiny.safetensors", network.state_dict(), tiny().model.to_dict())
    return {
        "inputs": (folder / "other.fasta",),
        "targets.features": (folder / "features.npz",),
        "targets.pulldown": (folder / "other.fasta", folder / "one.fasta"),
        "targets.shared": True,
        "targets.shard": (0, 1),
        "targets.example": True,
        "targets.output": folder / "elsewhere",
        "targets.overwrite": True,
        "targets.slim": True,
        "targets.zip": True,
        "targets.output_format": "colabfold",
        "targets.sort_queries_by": "random",
        "targets.dry_run": True,
        "targets.as_protein": True,
        "targets.keep_existing": True,
        "targets.command": ("helixfold", "predict"),
        "targets.failures_file": folder / "failed.json",
        "search.msa": (folder / "one.a3m",),
        "search.templates": (STRUCTURES / "helix_short.pdb",),
        "search.databases": folder / "profile.toml",
        "search.database": (folder / "database.fasta",),
        "search.msa_server": "https://localhost",
        "search.msa_server_timeout": 7.0,
        "search.msa_server_wait": 7.0,
        "search.msa_mode": "mmseqs2_uniref",
        "search.max_template_date": date(2020, 1, 1),
        "search.threads": 7,
        "search.search_cache": folder / "searches",
        "search.pair_strategy": "complete",
        "complexes.records_as_chains": True,
        "complexes.chain_ids": ("H",),
        "complexes.pair_mode": "paired",
        "models.preset": "quick",
        "models.models": ("small",),
        "models.weights": folder / "params_tiny.safetensors",
        "models.seed": 7,
        "models.num_seeds": 2,
        "models.stop_at_score": 70.0,
        "conformations.cluster_msa": True,
        "conformations.cluster_eps": 7.0,
        "conformations.cluster_min_samples": 7,
        "conformations.cluster_max_gaps": 0.7,
        "conformations.mask_columns": ("2-3",),
        "conformations.mask_window": "5",
        "conformations.mask_with": "unknown",
        "conformations.subsample_msa": ("1:2",),
        "conformations.reference": (STRUCTURES / "helix_short.pdb",),
        "compute.num_recycles": 7,
        "compute.recycle_tolerance": 0.7,
        "compute.num_ensemble": 7,
        "compute.models_to_relax": "all",
        "compute.save_logits": True,
        "compute.save_recycles": True,
        "compute.dropout": True,
        "complexes.cyclic": ("A",),
        "compute.save_representations": ("single",),
        "compute.representations_format": "safetensors",
        "compute.initial_guess": STRUCTURES / "helix_short.pdb",
        "compute.dtype": "bfloat16",
        "devices.device": "cpu",
        "devices.devices": "0,1",
        "devices.cluster": folder / "site.toml",
        "devices.ranks_per_target": 2,
        "devices.targets_at_once": 2,
        "devices.cuda_graphs": "off",
        "memory.executor": "slabs",
        "memory.memory": 2**30,
        "memory.spill_directory": folder,
        "memory.max_msa_rows": 7,
        "memory.max_extra_rows": 7,
        "screen.log_file": folder / "log",
        "screen.progress": "json",
    }


def option_names(options: Any, before: str = "") -> list[str]:
    names = []
    for each in fields(options):
        value = getattr(options, each.name)
        names += option_names(value, f"{each.name}.") if is_dataclass(value) else [f"{before}{each.name}"]
    return names


def with_option(options: Any, name: str, value: Any) -> Any:
    group, _, rest = name.partition(".")
    return replace(options, **{group: with_option(getattr(options, group), rest, value) if rest else value})


@cache
def models_of(names: tuple[str, ...], weights: Path | None, seed: int) -> tuple[ReadyModel, ...]:
    return tuple(find_models(names, weights, seed=seed))


def record_of(options: PredictOptions) -> TargetRecord:
    jobs, searches, _ = read_jobs(options, announce=False)
    names, folding = folding_of(options)
    settings = RunSettings(
        options=options,
        folding=folding,
        searches=searches,
        models=models_of(tuple(names), options.models.weights, folding.seed),
        memory=MemoryOptions(**vars(options.memory)),
        variants=variant_settings(options.conformations),
        to_relax="none",
        workers=None,  # type: ignore[arg-type]
    )
    found = expected_variants(settings.variants, jobs[-1], None)
    return record_for(jobs[-1], settings, settings.predictions(found.variants), found.clusters)


def test_every_option_that_changes_results_makes_another_record(tmp_path: Path) -> None:
    (tmp_path / "one.fasta").write_text(f">one\n{SEQUENCE}\n")
    first = PredictOptions(inputs=(tmp_path / "one.fasta",))
    first = with_option(first, "models.models", ("tiny",))
    first = with_option(first, "search.templates", (STRUCTURES / "helix_long.pdb",))
    record, others = record_of(first), changed_options(tmp_path)
    # For AlphaFold's directory of databases, whose files are in the record, for a pulldown, and for trained parameters.
    assert sorted([*others, "search.db_preset", "targets.pulldown_table", "models.adapter"]) == sorted(
        option_names(first)
    )
    for name, value in others.items():
        base = with_option(first, "inputs", ()) if name in ("targets.example", "targets.pulldown") else first
        # What these are about has to be asked for, too.
        if name.startswith("conformations.cluster_"):
            base = with_option(base, "conformations.cluster_msa", True)
        if name == "conformations.mask_with":
            base = with_option(base, "conformations.mask_window", "5")
        other = record_of(with_option(base, name, value))
        of_variants = name.startswith("conformations.") and base is not first
        before = record_of(base) if of_variants and name != "conformations.cluster_msa" else record
        differs = bool(before.differences(other)) or bool(other.predictions.keys() - before.predictions.keys())
        differs |= before.clusters is None and other.clusters is not None
        assert differs == (name not in FREE), name
