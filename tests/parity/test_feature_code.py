"""What DeepMind's feature code makes of real alignments and template hits, ours makes too."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.features.msa import msa_features
from data_pipeline.parse.a3m import Alignment
from data_pipeline.parse.alignment import read_alignment
from data_pipeline.parse.stockholm import (
    deduplicated,
    parse_stockholm,
    stockholm_to_a3m,
    truncated,
    without_empty_columns,
)
from data_pipeline.parse.template_hit import TemplateHit, parse_hmmsearch
from data_pipeline.parse.text_files import read_text_bytes
from data_pipeline.residues import HHBLITS_TO_OUR_AATYPE
from scripts.parity.make_feature_cases import MERGED, ROW_LIMIT, alignment_digest, digest
from tests.data_pipeline.parse.hhr_files import read_hhr

pytestmark = pytest.mark.parity

ALPHAFOLD: dict[str, dict[str, str]] = json.loads(
    (Path(__file__).parent / "data" / "feature_code.json").read_text(encoding="utf-8")
)
MAX_BYTES = 2**28
SMALL, DEEP = 100_000, 330_000  # bytes, packed: up to about 1,000 and 4,000 rows


def files(ending: str) -> Iterator[str]:
    return (name for name in ALPHAFOLD if name.endswith(ending))


def of(alignment: Alignment) -> str:
    return alignment_digest([row.tobytes().decode() for row in alignment.letters], alignment.deletion_matrix)


def test_stockholm_rows_deletions_and_names_are_alphafolds(real_data: Path) -> None:
    for name in files(".sto.gz"):
        if "hits" in ALPHAFOLD[name]:
            continue
        content = read_text_bytes(real_data / "msa" / name, MAX_BYTES)
        alignment = parse_stockholm(content)
        assert of(alignment) == ALPHAFOLD[name]["rows"], name
        assert digest("\n".join(alignment.names).encode()) == ALPHAFOLD[name]["names"], name
        assert of(parse_stockholm(content, max_rows=ROW_LIMIT)) == ALPHAFOLD[name]["first_rows"], name


def test_stockholm_text_for_the_template_search_is_alphafolds(real_data: Path) -> None:
    for name in files(".sto.gz"):
        if "hits" in ALPHAFOLD[name]:
            continue
        content = read_text_bytes(real_data / "msa" / name, MAX_BYTES)
        unique = deduplicated(content)
        compact = without_empty_columns(unique)
        made = {
            "truncated": truncated(content, ROW_LIMIT),
            "a3m": stockholm_to_a3m(content),
            "short_a3m": stockholm_to_a3m(content, max_rows=ROW_LIMIT),
            "deduplicated": unique,
            "compact": compact,
            "compact_a3m": stockholm_to_a3m(compact),
        }
        for kind, text in made.items():
            assert digest(text) == ALPHAFOLD[name][kind], (name, kind)


def test_a3m_rows_and_deletions_are_alphafolds(real_data: Path) -> None:
    compare_a3m(real_data, 0, SMALL)


@pytest.mark.integration
@pytest.mark.parametrize(("least", "most"), [(SMALL, DEEP), pytest.param(DEEP, MAX_BYTES, marks=pytest.mark.long)])
def test_deep_a3m_rows_and_deletions_are_alphafolds(real_data: Path, least: int, most: int) -> None:
    compare_a3m(real_data, least, most)


def compare_a3m(real_data: Path, least: int, most: int) -> None:
    compared = 0
    for name in files(".a3m.gz"):
        path = real_data / "msa" / name
        if least <= path.stat().st_size < most and not name.startswith("5ius"):  # its first row is no target
            assert of(read_alignment(path)) == ALPHAFOLD[name]["rows"], name
            compared += 1
    assert compared > 12


def hits_digest(hits: tuple[TemplateHit, ...], *, whole_query: bool = False) -> str:
    """As `make_feature_cases.hits_digest`; DeepMind leaves hmmsearch's insertions out of indices and query."""
    fields = []
    for hit in hits:
        column = np.array([not letter.islower() for letter in hit.hit_sequence], bool)
        fields.append(
            (
                *(hit.index, hit.name, hit.aligned_columns, hit.sum_probs),
                *(hit.query.replace("-", "") if whole_query else hit.query, hit.hit_sequence.upper()),
                *(hit.indices_query[column].tolist(), hit.indices_hit[column].tolist()),
            )
        )
    return digest(json.dumps(fields).encode())


def test_hhr_hits_are_alphafolds(real_data: Path) -> None:
    for name in files(".hhr.gz"):
        hits = read_hhr(real_data / "templates" / name)
        assert hits_digest(hits) == ALPHAFOLD[name]["hits"], name


def test_hmmsearch_hits_are_alphafolds(real_data: Path) -> None:
    for name in files(".sto.gz"):
        if "hits" in ALPHAFOLD[name]:
            content = read_text_bytes(real_data / "templates" / name, MAX_BYTES)
            hits = parse_hmmsearch(content, ALPHAFOLD[name]["query"], path=name)
            assert hits_digest(hits, whole_query=True) == ALPHAFOLD[name]["hits"], name


@pytest.mark.parametrize("target", MERGED)
def test_merged_alignments_are_alphafolds(target: str, real_data: Path) -> None:
    alignments = [read_alignment(real_data / "msa" / f"{target}__{file}.gz") for file in MERGED[target]]
    msa, deletions = msa_features(alignments)
    theirs = np.argsort(HHBLITS_TO_OUR_AATYPE)[msa]
    assert len(msa) == int(ALPHAFOLD[target]["depth"])
    found = digest(theirs.astype(np.int32).tobytes() + deletions.astype(np.int32).tobytes())
    assert found == ALPHAFOLD[target]["features"]
