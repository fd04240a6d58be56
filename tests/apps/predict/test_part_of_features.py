"""Features of a part of a batch are made in a directory that others share, and equal sequences are searched once."""

import json
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from data_pipeline.io.claims import Claims
from data_pipeline.pipeline import Target
from data_pipeline.search.plan import AlignmentStep, SearchPlan
from data_pipeline.search.tool import FileFormat
from helixfold.apps.search import make_part_of_features

CHAINS = {"a": "MKTAYIAKQR", "b": "GGSTPLVWAA", "c": "MKTAYIAKQR", "long": "W" * 30}


@dataclass
class Search:
    """A search that finds nothing but the sequence itself, and counts."""

    searched: list[str] = field(default_factory=list)

    @property
    def file_format(self) -> FileFormat:
        return "a3m"

    def identity(self) -> str:
        return "a search for tests"

    def search(self, sequence: str) -> bytes:
        self.searched.append(sequence)
        if sequence == CHAINS["long"]:
            raise RuntimeError("the search is broken")
        return f">query\n{sequence}\n".encode()


def test_equal_sequences_are_searched_once_and_a_failure_is_told_alone(tmp_path: Path) -> None:
    tool, output = Search(), tmp_path / "out"
    plan = SearchPlan(alignments=(AlignmentStep(result_file="hits.a3m", tool=tool, max_rows=None),))
    targets = [Target(name=name, sequence=sequence) for name, sequence in CHAINS.items()]
    with closing(Claims.in_directory(output)) as claims:
        failures = make_part_of_features(targets, output=output, plan=plan, claims=claims)
    assert failures == {"long": "RuntimeError: the search is broken"}
    assert tool.searched == [CHAINS["a"], CHAINS["b"], CHAINS["long"]]
    assert sorted(path.parent.name for path in output.glob("*/features.npz")) == ["a", "b", "c"]
    first, copy = (json.loads((output / name / "msas/searches.json").read_text()) for name in "ac")
    assert first == copy
    assert not (output / "failures.json").exists()
    # What is there is used again.
    with closing(Claims.in_directory(output)) as claims:
        make_part_of_features(targets[:3], output=output, plan=plan, claims=claims)
    assert len(tool.searched) == 3
