"""`helixfold predict`: from sequences and alignments to structures, one directory per target."""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from tqdm import tqdm

from data_pipeline.errors import InputError
from data_pipeline.features.schema import Features
from helixfold.cli.targets import Target, read_targets
from helixfold.device import pick_device
from helixfold.execution.slabs import Slabs
from helixfold.inference import DTYPES, FoldingOptions, fold
from helixfold.presets import PRESETS
from helixfold.stages import Stages
from helixfold.weights.find import ReadyModel, find_models
from helixfold.write.results import (
    Prediction,
    is_complete,
    write_failures,
    write_prediction,
    write_ranking,
    write_timings,
)

SOME_FAILED = 1
FEATURES_FILE = "features.npz"


def predict(
    inputs: Sequence[Path],
    *,
    output: Path,
    msa: Sequence[Path] = (),
    models: Sequence[str] = (),
    weights: Path | None = None,
    options: FoldingOptions | None = None,
    device: str = "auto",
    overwrite: bool = False,
) -> int:
    """Fold every target with every model, into `output/<target>/`; 0, or 1 if some target failed.

    All input is read and checked before anything is written: wrong input is an `InputError`. Finished targets are
    skipped unless `overwrite`; a target that fails is recorded in `failures.json` and never stops the others.
    """
    options = options or FoldingOptions()
    targets = sorted(read_targets(inputs, msa), key=lambda target: len(target.sequence))
    where = pick_device(device)
    loading = Stages(where)
    with loading.stage("load parameters"):
        ready = find_models(models, weights, seed=options.seed)
        for model in ready:
            model.network.to(where)
    _check_output(output, targets)
    for model in ready:
        for note in model.notes:
            print(f"helixfold: {note}", file=sys.stderr)

    failures: dict[str, str] = {}
    bar = tqdm(targets, desc="targets", unit="target", disable=None)
    for target in bar:
        bar.set_postfix_str(f"{target.name}, {len(target.sequence)} residues")
        directory = output / target.name
        if not overwrite and is_complete(directory, [model.preset.name for model in ready]):
            tqdm.write(f"{target.name}: finished before, skipped (--overwrite folds it again)")
            continue
        try:
            tqdm.write(
                _summary(directory, _fold_target(target, ready, options, directory, Stages(where, loading.finished)))
            )
        except (RuntimeError, MemoryError, OSError, ValueError) as error:
            failures[target.name] = f"{type(error).__name__}: {error}"
            tqdm.write(f"{target.name}: failed: {failures[target.name]}", file=sys.stderr)
    write_failures(output, failures)
    if failures:
        print(f"helixfold: {len(failures)} of {len(targets)} targets failed, see {output}", file=sys.stderr)
    return SOME_FAILED if failures else 0


def _check_output(output: Path, targets: Sequence[Target]) -> None:
    """Make the output directory, and refuse one that cannot be written or holds other proteins of these names."""
    for target in targets:
        earlier = output / target.name / FEATURES_FILE
        if earlier.is_file() and Features.load(earlier).sequence != target.sequence:
            raise InputError(
                f"{earlier.parent} holds another protein of the name '{target.name}'; choose another --output directory"
            )
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{output}: cannot be used as output directory: {error.strerror}") from error
    if not os.access(output, os.W_OK):
        raise InputError(f"{output}: cannot be written; choose another --output directory")


def _fold_target(
    target: Target, models: Sequence[ReadyModel], options: FoldingOptions, directory: Path, stages: Stages
) -> list[Prediction]:
    """Everything for one target: features, structures, confidences, and at the end the ranking that marks it done."""
    with stages.stage("features"):
        features = target.features()
        directory.mkdir(exist_ok=True)
        features.save(directory / FEATURES_FILE)
    predictions = []
    for model in tqdm(models, desc="models", unit="model", leave=False, disable=None):
        name = model.preset.name
        with _progress(model, options):
            prediction = fold(model.network, Slabs(), features, model.preset, options, stages=stages, notes=model.notes)
        with stages.stage(f"{name}: writing"):
            write_prediction(directory, prediction)
        predictions.append(prediction)
    facts = {
        "residues": len(target.sequence),
        "msa_rows": len(features.msa),
        "device": str(stages.device),
        "threads": torch.get_num_threads(),
        "dtype": options.dtype,
        "torch": torch.__version__,
    }
    # Timings come before the ranking, whose file marks the target as finished.
    write_timings(directory, {**facts, "stages": stages.table()}, notes=predictions[0].notes)
    write_ranking(directory, predictions)
    return predictions


@contextmanager
def _progress(model: ReadyModel, options: FoldingOptions) -> Iterator[None]:
    """A bar of passes that moves with every block: on a CPU, one pass of a large model takes minutes."""
    blocks = [*model.network.extra_msa_stack.blocks, *model.network.evoformer.blocks]
    share = 1 / (len(blocks) * options.num_ensemble)
    layout = "{desc}: {percentage:3.0f}%|{bar}| {n:.2f}/{total} [{elapsed}<{remaining}]"
    passes = options.num_recycles + 1
    with ExitStack() as stack:
        bar = stack.enter_context(
            tqdm(total=passes, desc=f"{model.preset.name} passes", bar_format=layout, leave=False, disable=None)
        )

        def block_done(*_: object) -> None:
            bar.update(share)

        for block in blocks:
            stack.enter_context(block.register_forward_hook(block_done))
        yield


def _summary(directory: Path, predictions: Sequence[Prediction]) -> str:
    best = max(predictions, key=lambda prediction: prediction.ranking_confidence)
    ptm = "" if best.ptm is None else f", pTM {best.ptm:.2f}"
    plural = "" if best.num_recycles == 1 else "s"
    recycles = f"{best.num_recycles} recycle{plural}{' (settled)' if best.converged else ''}"
    return f"{directory.name}: mean pLDDT {best.ranking_confidence:.1f}{ptm}, {best.model}, {recycles} -> {directory}"


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Describe `helixfold predict` to the command line."""
    defaults = FoldingOptions()
    parser = commands.add_parser(
        "predict",
        help="from FASTA or a3m to PDB, mmCIF and confidences",
        description="Predict protein structures; every target gets a directory with PDB, mmCIF, confidences and plots.",
    )
    parser.set_defaults(run=_run)
    what = parser.add_argument_group("what to fold")
    what.add_argument(
        "inputs", nargs="+", type=Path, metavar="FILE", help="FASTA files (all records) or a3m alignments (.gz too)"
    )
    what.add_argument(
        "--msa",
        nargs="+",
        type=Path,
        default=[],
        metavar="PATH",
        help="a3m alignments of the one target, or a directory with <name>.a3m for each (none: the sequence alone)",
    )
    what.add_argument(
        "-o", "--output", type=Path, default=Path("predictions"), metavar="DIR", help="where to write (%(default)s)"
    )
    what.add_argument("--overwrite", action="store_true", help="fold finished targets again")

    model = parser.add_argument_group("with which model")
    model.add_argument(
        "--models",
        nargs="+",
        default=[],
        choices=list(PRESETS),
        metavar="MODEL",
        help=f"one or several of {', '.join(PRESETS)}",
    )
    model.add_argument(
        "--weights",
        type=Path,
        metavar="PATH",
        help="parameter file (.npz, .pt, .safetensors) or a directory with params_<model>.npz; "
        "without it, downloaded ones are used, or else the small untrained model",
    )
    how = parser.add_argument_group("how")
    how.add_argument(
        "--num-recycles",
        type=int,
        default=defaults.num_recycles,
        metavar="N",
        help="passes after the first (%(default)s)",
    )
    how.add_argument(
        "--recycle-tolerance",
        type=float,
        default=defaults.recycle_tolerance,
        metavar="ANGSTROM",
        help="stop recycling when distances change by less; 0 never stops early (%(default)s)",
    )
    how.add_argument(
        "--num-ensemble",
        type=int,
        default=defaults.num_ensemble,
        metavar="N",
        help="draws of the alignment per pass (%(default)s)",
    )
    how.add_argument("--seed", type=int, default=defaults.seed, metavar="N", help="of everything random (%(default)s)")
    how.add_argument(
        "--dtype", choices=list(DTYPES), default=defaults.dtype, help="of the trunk's arithmetic (%(default)s)"
    )
    how.add_argument("--device", default="auto", metavar="NAME", help="auto, cpu, cuda, cuda:N or mps (%(default)s)")


def _run(options: argparse.Namespace) -> int:
    folding = FoldingOptions(
        num_recycles=options.num_recycles,
        recycle_tolerance=options.recycle_tolerance,
        num_ensemble=options.num_ensemble,
        seed=options.seed,
        dtype=options.dtype,
    )
    return predict(
        options.inputs,
        output=options.output,
        msa=options.msa,
        models=options.models,
        weights=options.weights,
        options=folding,
        device=options.device,
        overwrite=options.overwrite,
    )
