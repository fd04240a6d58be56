"""Every option that changes results is in the record of a target, so that none of another setting stands for them."""

from dataclasses import replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from data_pipeline.pipeline import Target, prepare
from helixfold.apps.options import ConformationOptions, MemoryLimits, PredictOptions
from helixfold.apps.predict.jobs import read_jobs
from helixfold.apps.predict.record import TargetRecord, record_for
from helixfold.apps.predict.settings import RunSettings, folding_of
from helixfold.apps.predict.variants import expected_variants, variant_settings
from helixfold.model.presets import tiny
from helixfold.planning.memory import MemoryOptions
from helixfold.runtime.options import traits_of, values_of
from helixfold.weights.checkpoint import save_checkpoint
from helixfold.weights.find import ReadyModel, find_models
from tests.data_pipeline.templates.structures import QUERY, make_chain, make_structure, write

SEQUENCE = "MKTAYIAKQR"
STRUCTURES = Path(__file__).parents[3] / "examples" / "structures"
# Options that change nothing for a single chain without a server.
OF_COMPLEXES = {"pair_strategy", "records_as_chains", "pair_mode"}


def changed_options(folder: Path) -> dict[str, Any]:
    """Another value of each option than the first run has."""
    (folder / "other.fasta").write_text(f">one\n{SEQUENCE}A\n")
    (folder / "one.a3m").write_text(f">one\n{SEQUENCE}\n>row\n{SEQUENCE[::-1]}\n")
    (folder / "database.fasta").write_text(f">row\n{SEQUENCE * 3}\n")
    (folder / "profile.toml").write_text('[[alignments]]\nname = "mine"\ntool = "jackhmmer"\npath = "database.fasta"\n')
    prepare(Target(name="two", sequence=SEQUENCE)).features.save(folder / "features.npz")
    (folder / "restraints.csv").write_text("2 5\n")
    network = find_models(["tiny"], None, seed=5)[0].network
    save_checkpoint(folder / "params_tiny.safetensors", network.state_dict(), tiny().model.to_dict())
    return {
        "inputs": (folder / "other.fasta",),
        "features": (folder / "features.npz",),
        "pulldown": (folder / "other.fasta", folder / "one.fasta"),
        "shared": True,
        "shard": (0, 1),
        "example": True,
        "output": folder / "elsewhere",
        "overwrite": True,
        "slim": True,
        "zip": True,
        "output_format": "colabfold",
        "sort_queries_by": "random",
        "dry_run": True,
        "as_protein": True,
        "skip_invalid": True,
        "keep_existing": True,
        "command": ("helixfold", "predict"),
        "failures_file": folder / "failed.json",
        "msa": (folder / "one.a3m",),
        "templates": (STRUCTURES / "helix_short.pdb",),
        "databases": folder / "profile.toml",
        "database": (folder / "database.fasta",),
        "msa_server": "https://localhost",
        "fetch_inputs": True,
        "msa_server_timeout": 7.0,
        "msa_server_wait": 7.0,
        "msa_mode": "mmseqs2_uniref",
        "max_template_date": date(2020, 1, 1),
        "threads": 7,
        "search_cache": folder / "searches",
        "pair_strategy": "complete",
        "records_as_chains": True,
        "chain_ids": ("H",),
        "pair_mode": "paired",
        "cross_chain_templates": (write(folder, make_structure(*(make_chain(name, QUERY) for name in "AB"))),),
        "preset": "quick",
        "models": ("small",),
        "weights": folder / "params_tiny.safetensors",
        "seed": 7,
        "num_seeds": 2,
        "stop_at_score": 70.0,
        "cluster_msa": True,
        "cluster_eps": 7.0,
        "cluster_min_samples": 7,
        "cluster_max_gaps": 0.7,
        "mask_columns": ("2-3",),
        "mask_window": "5",
        "mask_with": "unknown",
        "subsample_msa": ("1:2",),
        "reference": (STRUCTURES / "helix_short.pdb",),
        "num_recycles": 7,
        "recycle_tolerance": 0.7,
        "num_ensemble": 7,
        "models_to_relax": "all",
        "foldseek": folder / "foldseek",
        "save_logits": True,
        "save_recycles": True,
        "dropout": True,
        "cyclic": ("A",),
        "save_representations": ("single",),
        "representations_format": "safetensors",
        "initial_guess": STRUCTURES / "helix_short.pdb",
        "restraints": folder / "restraints.csv",
        "dtype": "bfloat16",
        "device": "cpu",
        "devices": "0,1",
        "cluster": folder / "site.toml",
        "ranks_per_target": 2,
        "targets_at_once": 2,
        "cuda_graphs": "off",
        "executor": "slabs",
        "memory": 2**30,
        "spill_directory": folder,
        "max_msa_rows": 7,
        "max_extra_rows": 7,
        "log_file": folder / "log",
        "progress": "json",
    }


@cache
def models_of(names: tuple[str, ...], weights: Path | None, seed: int) -> tuple[ReadyModel, ...]:
    return tuple(find_models(names, weights, seed=seed))


def record_of(options: PredictOptions) -> TargetRecord:
    batch = read_jobs(options, announce=False)
    names, folding = folding_of(options)
    settings = RunSettings(
        options=options,
        folding=folding,
        searches=batch.searches,
        models=models_of(tuple(names), options.weights, folding.seed),
        memory=MemoryOptions(**values_of(options, MemoryLimits)),
        variants=variant_settings(options),
        to_relax="none",
        workers=None,  # type: ignore[arg-type]
    )
    found = expected_variants(settings.variants, batch.jobs[-1], None)
    return record_for(batch.jobs[-1], settings, settings.predictions(found.variants), found.clusters)


def test_every_option_that_changes_results_makes_another_record(tmp_path: Path) -> None:
    (tmp_path / "one.fasta").write_text(f">one\n{SEQUENCE}\n")
    first = PredictOptions(inputs=(tmp_path / "one.fasta",))
    first = replace(first, models=("tiny",), templates=(STRUCTURES / "helix_long.pdb",))
    record, others, traits = record_of(first), changed_options(tmp_path), traits_of(PredictOptions)
    # For AlphaFold's directory of databases, whose files are in the record, for a pulldown, and for trained parameters.
    missing = vars(first).keys() - {*others, "db_preset", "pulldown_table", "adapter"}
    assert not missing, f"add another value of {sorted(missing)} to changed_options"
    for name, value in others.items():
        base = replace(first, inputs=()) if name in ("example", "pulldown") else first
        # What these are about has to be asked for, too.
        if name.startswith("cluster_"):
            base = replace(base, cluster_msa=True)
        if name == "mask_with":
            base = replace(base, mask_window="5")
        if name == "cross_chain_templates":
            (tmp_path / "two.fasta").write_text(f">two\n{QUERY}:{QUERY}\n")
            base = replace(base, inputs=(tmp_path / "two.fasta",), templates=None)
        other = record_of(replace(base, **{name: value}))
        of_variants = name in vars(ConformationOptions()) and base is not first
        of_variants |= name == "cross_chain_templates"
        before = record_of(base) if of_variants and name != "cluster_msa" else record
        differs = bool(before.differences(other)) or bool(other.predictions.keys() - before.predictions.keys())
        differs |= before.clusters is None and other.clusters is not None
        recorded = traits[name].recorded
        assert differs == (recorded is not None and name not in OF_COMPLEXES), name
        assert recorded != "options" or before.options != other.options, name
