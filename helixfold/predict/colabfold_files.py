"""Describe a run as ColabFold does, for `--output-format colabfold`."""

from collections.abc import Sequence

from helixfold.predict.jobs import Job, RunSettings
from helixfold.write.colabfold import model_type


def colabfold_run(jobs: Sequence[Job], settings: RunSettings) -> tuple[dict[str, object], list[str]]:
    """Return the settings for config.json, as far as they mean the same here, and the works to cite."""
    targets = [job.target for job in jobs if job.target is not None]
    templates = settings.searches.templates is not None or any(target.templates for target in targets)
    aligned = settings.searches.alignments or len(targets) < len(jobs) or any(each.alignments for each in targets)
    models, options = settings.models, settings.options
    names = [model.preset.name for model in models]
    sampling = models[0].preset.sampling
    config: dict[str, object] = {
        "num_queries": len(jobs),
        "use_templates": templates,
        "num_relax": {"none": 0, "best": 1, "all": len(settings.predictions)}[settings.to_relax],
        "msa_mode": "custom" if aligned else "single_sequence",
        "model_type": model_type(names[0]),
        "num_models": len(models),
        "model_order": [int(name[6]) for name in names if model_type(name) != "helixfold"],
        "num_recycles": settings.num_recycles,
        "recycle_early_stop_tolerance": settings.recycle_tolerance,
        "num_ensemble": options.num_ensemble,
        "rank_by": "plddt",
        "max_seq": sampling.max_msa_clusters,
        "max_extra_seq": sampling.max_extra_msa,
        "stop_at_score": 100 if options.stop_at_score is None else options.stop_at_score,
        "random_seed": options.seed,
        "num_seeds": settings.num_seeds,
    }
    searched = any("server" in identity or "colabfold" in identity.lower() for identity in settings.search_identities)
    works = ["alphafold", *(["colabfold"] if searched else []), *([] if settings.to_relax == "none" else ["openmm"])]
    return config, works
