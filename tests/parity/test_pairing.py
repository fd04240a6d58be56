"""What DeepMind's pipeline makes of complexes with real alignments, ours makes too."""

import json
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.features.assembly import Chain, complex_features
from data_pipeline.features.monomer import monomer_features
from data_pipeline.features.pairing import PairingRows
from data_pipeline.parse.alignment import read_alignment
from scripts.parity.make_pairing_cases import ALIGNMENTS, COMPARED, COMPLEXES, array_digest

pytestmark = pytest.mark.parity

ALPHAFOLD: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "pairing.json").read_text(encoding="utf-8")
)


@pytest.fixture(scope="module")
def chains(real_data: Path) -> dict[str, Chain]:
    found = {}
    for name, file in ALIGNMENTS.items():
        alignment = read_alignment(real_data / "msa" / file)
        sequence = alignment.query
        found[name] = Chain(
            name=name,
            features=monomer_features(name, sequence, [alignment]),
            pairing=PairingRows.of(sequence, alignment),
        )
    return found


def test_features_of_complexes_are_alphafolds(chains: dict[str, Chain]) -> None:
    pairs = []
    for words in COMPLEXES:
        features, expected = complex_features([chains[name] for name in words.split()]), ALPHAFOLD[words]
        assert len(features.msa) == expected["rows"], words
        assert {name: array_digest(getattr(features, name)) for name in COMPARED} == {
            name: expected[name] for name in COMPARED
        }, words
        assert features.paired_rows == expected["paired"], words
        pairs.append(features.paired_rows)
    assert sum(count >= 50 for count in pairs) >= 3
