"""Finish a target after all its predictions are written: relax, rank, plot, tabulate, report, and mark it as finished.

Every step reads and writes files, so that a run can repeat missing steps of an interrupted target.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from data_pipeline.features.complexes.feature_file import load_features
from helixfold.apps.predict import relaxation
from helixfold.apps.predict.jobs import Job
from helixfold.apps.predict.record import model_origin, read_record
from helixfold.apps.predict.settings import RunSettings
from helixfold.apps.predict.similar_structures import is_searched, write_similar_structures
from helixfold.execution.stages import Stages
from helixfold.folding.prediction import Prediction
from helixfold.report.ensemble import remove_ensemble, write_ensemble
from helixfold.report.plot_files import write_plots
from helixfold.report.target_page import write_report
from helixfold.results.colabfold import done_file, model_type, write_colabfold
from helixfold.results.file_table import FEATURES, RANKED, slim_down
from helixfold.results.mmcif import ModelOrigin
from helixfold.results.prediction import all_notes, ranked, write_ranked, write_ranking, write_timings
from helixfold.results.tables import write_tables


class TargetOutput:
    """The output of a target: its directory, lines about it on the screen, and its times.

    `stages` and `facts` are the content of timings.json.
    """

    def __init__(self, job: Job, settings: RunSettings, stages: Stages) -> None:
        self.job, self.settings, self.stages = job, settings, stages
        self.directory = settings.options.output / job.name
        self.facts: dict[str, Any] = {}

    def say(self, line: str) -> None:
        """Print a line about the target."""
        self.settings.say(f"{self.job.name}: {line}")

    def write_timings(self, notes: Sequence[str], *, running: bool = False) -> None:
        """Write timings.json; `running` means that more stages follow."""
        timings = {**self.facts, "stages": self.stages.table(running=running)}
        write_timings(self.directory, timings, notes=notes)


def _relax(target: TargetOutput, order: list[Prediction]) -> None:
    """Relax the selected predictions, and then write timings.json."""
    settings = target.settings
    relaxation.relax_predictions(
        target.directory,
        order,
        settings.to_relax,
        settings.device,
        target.say,
        name=target.job.title,
        origin_of=lambda name: _origin(target.directory, name),
    )
    if settings.to_relax != "none" and not settings.options.slim:
        # A resumed run does not repeat the relaxation, which takes long.
        target.write_timings(all_notes(order), running=True)


def _origin(directory: Path, name: str) -> ModelOrigin | None:
    """Return the origin of a prediction from its target's files, or None if the record is damaged."""
    record = read_record(directory)
    return None if record is None else model_origin(record, name, load_features(FEATURES.path(directory)))


def _write_ensemble(target: TargetOutput, order: list[Prediction]) -> None:
    """Write the ensemble page, or remove an earlier one if there are too few predictions."""
    names = [prediction.name for prediction in order]
    if not write_ensemble(target.directory, names, target.settings.options.reference):
        remove_ensemble(target.directory)


def _search_similar_structures(target: TargetOutput, order: list[Prediction]) -> None:
    """Search with Foldseek if the options ask for it and it has not been done."""
    options = target.settings.options
    if options.foldseek is None or is_searched(target.directory, options.foldseek):
        return
    if "pdb" in order[0].kinds:
        write_similar_structures(target.directory, options.foldseek, options.threads)
    else:
        target.say("not searched with Foldseek, because it has no PDB file")


def _write_colabfold(target: TargetOutput, order: list[Prediction]) -> None:
    """Write files with ColabFold's names if the output format is ColabFold's."""
    record = read_record(target.directory)
    if target.settings.options.output_format == "colabfold" and record is not None:
        origins = {name: (origin.model, origin.seed) for name, origin in record.predictions.items()}
        write_colabfold(target.directory.resolve(), load_features(FEATURES.path(target.directory)), order, origins)


# Steps in order; each is called with the predictions, best first. Steps before "timings" have a line in timings.json.
# Steps that change structures must come before "ranking", and the mark must be last.
STEPS: tuple[tuple[str, Callable[[TargetOutput, list[Prediction]], None]], ...] = (
    ("relaxation", _relax),
    ("ranking", lambda target, order: write_ranked(target.directory, order)),
    ("similar structures", _search_similar_structures),
    ("plots", lambda target, order: write_plots(target.directory, order)),
    ("tables", lambda target, order: write_tables(target.directory, order)),
    ("timings", lambda target, order: target.write_timings(all_notes(order))),
    ("ensemble", _write_ensemble),
    ("report", lambda target, order: write_report(target.directory, [each.name for each in order])),
    ("ColabFold's files", _write_colabfold),
    ("mark", lambda target, order: write_ranking(target.directory, order)),
)


# Steps whose files a slim target does not have.
_STEPS_NOT_IN_SLIM = ("plots", "tables", "timings", "ensemble", "report")


def is_postprocessed(directory: Path, predictions: Sequence[Prediction], settings: RunSettings) -> bool:
    """Return whether a target that is marked as finished needs no more postprocessing with these settings.

    It has the ranked structures, and, if the settings request them, ColabFold's files, Foldseek's hits and the tried
    relaxations. Plots, tables and reports are not checked.
    """
    is_ranked = all(
        RANKED.path(directory, f".{kind}", rank=rank).is_file()
        for rank, prediction in enumerate(ranked(predictions))
        for kind in prediction.kinds
    )
    has_format = settings.options.output_format != "colabfold" or done_file(directory.resolve()).is_file()
    foldseek = settings.options.foldseek
    has_hits = foldseek is None or is_searched(directory, foldseek)
    return is_ranked and has_format and has_hits and relaxation.is_done(directory, predictions, settings.to_relax)


def postprocess(target: TargetOutput, predictions: Sequence[Prediction]) -> list[Prediction]:
    """Run all steps on a target's finished predictions, and return them, best first.

    With --slim, steps for plots, tables and reports are left out, and other files are removed.
    """
    order = ranked(predictions)
    is_slim = target.settings.options.slim
    for name, step in STEPS:
        if not (is_slim and name in _STEPS_NOT_IN_SLIM):
            with target.stages.stage(name):
                step(target, order)
    if is_slim:
        slim_down(target.directory)
    return order


def colabfold_run(jobs: Sequence[Job], settings: RunSettings) -> tuple[dict[str, object], list[str]]:
    """Return the settings for ColabFold's config.json that have the same meaning here, and the works to cite.

    The works are keys such as "alphafold" and "openmm".
    """
    targets = [job.target for job in jobs if job.target is not None]
    has_templates = settings.searches.templates is not None or any(target.templates for target in targets)
    has_alignments = (
        settings.searches.alignments or len(targets) < len(jobs) or any(each.alignments for each in targets)
    )
    models, options = settings.models, settings.folding
    names = [model.preset.name for model in models]
    sampling = models[0].preset.sampling
    config: dict[str, object] = {
        "num_queries": len(jobs),
        "use_templates": has_templates,
        "num_relax": {"none": 0, "best": 1, "all": len(settings.predictions())}[settings.to_relax],
        "msa_mode": "custom" if has_alignments else "single_sequence",
        "model_type": model_type(names[0]),
        "num_models": len(models),
        "model_order": [int(name[6]) for name in names if model_type(name) != "helixfold"],
        "num_recycles": settings.num_recycles,
        "recycle_early_stop_tolerance": settings.recycle_tolerance,
        "num_ensemble": options.num_ensemble,
        "rank_by": "multimer" if any(job.chains > 1 for job in jobs) else "plddt",
        "max_seq": sampling.max_msa_clusters,
        "max_extra_seq": sampling.max_extra_msa,
        "stop_at_score": 100 if options.stop_at_score is None else options.stop_at_score,
        "random_seed": options.seed,
        "num_seeds": settings.options.num_seeds,
    }
    uses_colabfold = any(
        "server" in identity or "colabfold" in identity.lower() for identity in settings.search_identities
    )
    works_to_cite = [
        "alphafold",
        *(["colabfold"] if uses_colabfold else []),
        *([] if settings.to_relax == "none" else ["openmm"]),
    ]
    return config, works_to_cite
