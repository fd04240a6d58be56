"""The proteins and complexes that a run folds."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from data_pipeline.features.complexes.chain_ids import ONLY_CHAIN
from data_pipeline.features.complexes.chain_sequences import CHAIN_SEPARATOR
from data_pipeline.features.complexes.complex_input import AnyTarget, ComplexInput
from data_pipeline.features.complexes.feature_file import save_features
from data_pipeline.features.complexes.feature_set import ComplexFeatureSet, TargetFeatures
from data_pipeline.parse.fasta import directory_name
from helixfold.apps.predict.settings import RunSettings
from helixfold.apps.search import prepare_in, write_templates
from helixfold.folding.initial_guess import guessed_positions
from helixfold.folding.model_input import input_notes
from helixfold.folding.templates import templates_read as templates_read_by
from helixfold.report.searches import summary
from helixfold.results.file_table import FEATURES
from helixfold.weights.find import ReadyModel


@dataclass(frozen=True, kw_only=True)
class Job:
    """A protein or complex to fold: a target whose features are still to be made, or features that were made before."""

    target: AnyTarget | None = None
    features: TargetFeatures | None = None
    directory: str | None = None  # its name, where an earlier version made it; None: `directory_name` gives it
    initial_guess: Path | None = None  # a structure file, whose atoms the first pass recycles

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
        own = (note for model in models for note in (*model.notes, *input_notes(model.preset, self.chains)))
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

    @property
    def given_features(self) -> TargetFeatures:
        """Return the features that were made before, of a job that has them."""
        assert self.features is not None
        return self.features
