"""A builder that fails at some files: in a module of its own, which is all that its processes import."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.structure import Structure
from data_pipeline.training_sets.record_builder import RecordBuilder, StructureSummary


@dataclass(frozen=True, kw_only=True)
class FaultyRecipe(RecordBuilder):
    """A builder that ends its process, or has an error of its own, at some files."""

    def summary(self, structure: Structure, path: Path) -> StructureSummary:
        if structure.name == "2abc":
            os.kill(os.getpid(), signal.SIGKILL)
        if structure.name == "1abc":
            raise ZeroDivisionError("a mistake of ours")
        return super().summary(structure, path)
