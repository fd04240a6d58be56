"""Measure how much alignments improve predictions over a training: with the MSA, without it, and with shuffled columns.

    python examples/small/alignment_gain.py training_set runs/stage_1 runs/stage_2 --output trial/gains.tsv

The targets are the held-out chains with alignments (split.tsv). The networks have the final parameters of each run of
`helixfold train`. Each run continues the previous one, unless they are independent (`--apart`). Targets are folded like
evaluations in training, with the run's own settings; longer ones are cropped to 256 residues. The table has a line for
each run, target and kind of alignment, with CA-lDDT and the distogram loss, which shows contacts before folds improve.
"""

import argparse
import csv
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from intervals import Estimate, mean
from manifest import rows
from shuffled_columns import shuffled_letters
from split import ALIGNMENT, SET_ASIDE, read_split
from stages import Stage, read_stages

from data_pipeline.features.labels import ChainLabels
from data_pipeline.features.schema import Features
from data_pipeline.io.errors import InputError
from data_pipeline.io.files import atomic_write
from data_pipeline.training_sets.store import FeatureStore
from helixfold.model.alphafold import AlphaFold
from helixfold.training.evaluate import HeldOutScores, evaluate
from helixfold.training.recipes import last_weights
from helixfold.weights.load import load_weights

WHOLE, ALONE, SHUFFLED = "whole", "alone", "shuffled"
MAX_RESIDUES = 256
MEASURES = ("lddt_ca", "distogram")
COLUMNS = ("run", "examples", "target", "alignment", *MEASURES)


@dataclass(frozen=True, kw_only=True)
class AlignmentGain:
    """Gain by alignments with the final network of a run; differences are paired by target."""

    run: str
    examples: int  # trained on so far
    alone: Estimate  # CA-lDDT
    gain: Estimate  # of CA-lDDT by the alignment
    shuffled_gain: Estimate  # of CA-lDDT by the alignment with shuffled columns
    distogram_gain: Estimate  # by how much the alignment lowers the distogram's loss, nats


@dataclass(frozen=True)
class ChangedAlignments:
    """A feature store whose alignments only have the target's row, or have shuffled columns without covariation."""

    store: FeatureStore
    kind: str

    @property
    def entries(self) -> tuple:
        """Return the index of the store."""
        return self.store.entries

    @property
    def assemblies(self) -> tuple:
        """Return the assemblies of the store."""
        return self.store.assemblies

    def load_complex(self, name: str) -> object:
        """Raise `InputError`, because only single chains are measured."""
        raise InputError(f"'{name}' is not a single chain")

    def load(self, name: str) -> tuple[Features, ChainLabels]:
        """Return the features and labels of one chain."""
        features, labels = self.store.load(name)
        if self.kind == ALONE:
            features = replace(features, msa=features.msa[:1], deletion_matrix=features.deletion_matrix[:1])
        elif self.kind == SHUFFLED:
            rng = np.random.default_rng(zlib.crc32(name.encode()))
            features = replace(features, msa=shuffled_letters(features.msa, rng))
        return features, labels


def measured(
    stage: Stage, directory: Path, store: FeatureStore, targets: Sequence[str]
) -> Iterator[tuple[str, HeldOutScores]]:
    """Yield the kind of alignment and the scores of each target, with the final parameters of a run."""
    model = AlphaFold(stage.config.model)
    model.load_state_dict(load_weights(last_weights(directory), stage.config.model))
    for kind in (WHOLE, ALONE, SHUFFLED):
        for scores in evaluate(
            model,
            ChangedAlignments(store, kind),
            targets,
            example=stage.config.example,
            loss=stage.config.loss,
            config=replace(stage.config.evaluation, max_residues=MAX_RESIDUES),
            dtype=torch.float32,
            device=torch.device("cpu"),
            structures=None,
        ):
            yield kind, scores


def read_gains(path: Path) -> list[AlignmentGain]:
    """Read the table that `main` writes; return the gains by run."""
    scores: dict[tuple[str, int], dict[tuple[str, str], list[float]]] = {}
    for row in rows(path):
        targets = scores.setdefault((row["run"], int(row["examples"])), {})
        for measure in MEASURES:
            targets.setdefault((measure, row["alignment"]), []).append(float(row[measure]))
    families = {chain.name: chain.family for chain in read_split()}
    target_families = [families.get(name, name) for name in dict.fromkeys(row["target"] for row in rows(path))]

    def gain(values: Mapping[tuple[str, str], Sequence[float]], measure: str, kind: str, other: str) -> Estimate:
        pairs = zip(values[measure, kind], values[measure, other], strict=True)
        return mean([one - two for one, two in pairs], target_families)

    return [
        AlignmentGain(
            run=run,
            examples=examples,
            alone=mean(values["lddt_ca", ALONE], target_families),
            gain=gain(values, "lddt_ca", WHOLE, ALONE),
            shuffled_gain=gain(values, "lddt_ca", SHUFFLED, ALONE),
            distogram_gain=gain(values, "distogram", ALONE, WHOLE),
        )
        for (run, examples), values in scores.items()
    ]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("training_set", type=Path)
    parser.add_argument("runs", type=Path, nargs="+", metavar="run", help="directories of runs, in order")
    parser.add_argument("--apart", action="store_true", help="the runs are independent: none continues another")
    parser.add_argument("--output", type=Path, default=Path("gains.tsv"))
    options = parser.parse_args()
    targets = [chain.name for chain in read_split() if chain.set == SET_ASIDE and chain.target == ALIGNMENT]
    store, examples, lines = FeatureStore.open(options.training_set), 0, []
    for stage, directory in zip(read_stages(options.runs), options.runs, strict=True):
        examples = stage.examples + (0 if options.apart else examples)
        for kind, scores in measured(stage, directory, store, targets):
            distogram = scores.losses["distogram"]
            lines.append((stage.name, examples, scores.name, kind, f"{scores.lddt_ca:.4f}", f"{distogram:.4f}"))
        with atomic_write(options.output) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, delimiter="\t", lineterminator="\n")
            writer.writerows([COLUMNS, *lines])


if __name__ == "__main__":
    try:
        main()
    except (InputError, OSError) as error:
        sys.exit(f"alignment_gain.py: {error}")
