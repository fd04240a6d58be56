"""Store digests of the features that ColabFold's own input code makes from input files of complexes.

    python -m scripts.parity.make_colabfold_cases --output tests/parity/data/colabfold.json

Needs `pip install -c constraints.txt -e '.[parity]'` and, without its requirements, `colabfold==1.6.3`.
"""

import argparse
import importlib
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.residues import HHBLITS_TO_OUR_AATYPE
from scripts.parity.make_pairing_cases import array_digest
from tests.parity.colabfold_inputs import ALIGNMENTS, SEQUENCE_FILES, alignment_text

MULTIMER = ("aatype", "residue_index", "asym_id", "sym_id", "entity_id", "msa", "deletion_matrix", "bert_mask")
MODES = ("unpaired_paired", "paired", "unpaired")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    output = parser.parse_args().output
    read = importlib.import_module("colabfold.input").get_queries
    digests: dict[str, Any] = {"queries": {}, "features": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name, text in SEQUENCE_FILES.items():
            path = Path(folder) / name
            path.write_text(text)
            queries, _ = read(path, sort_queries_by="none")
            digests["queries"][name] = [
                [title, [chains] if isinstance(chains, str) else chains] for title, chains, *_ in queries
            ]
        for name in ALIGNMENTS:
            path = Path(folder) / name
            path.write_text(alignment_text(name))
            ((_, query, lines, _),), is_complex = read(path)
            digests["features"][name] = {"is_complex": is_complex, **_features(lines, query, is_complex=is_complex)}
    output.write_text(json.dumps(digests, indent=1, sort_keys=True) + "\n")


def _features(lines: list[str], query: str, *, is_complex: bool) -> dict[str, Any]:
    batch = importlib.import_module("colabfold.batch")
    unpaired, paired, sequences, copies, templates = batch.unserialize_msa(lines, query)
    digests: dict[str, Any] = {"sequences": sequences, "copies": copies}
    for mode in MODES if is_complex else ():
        rows = (None if mode == "paired" else unpaired, None if mode == "unpaired" else paired)
        if mode != "paired" and not all(unpaired):
            continue  # in these modes ColabFold does not read an alignment that has only pairs
        features, _ = batch.generate_input_feature(
            sequences, copies, *rows, templates, True, "alphafold2_multimer_v3", max_seq=-4
        )
        digests[f"multimer {mode}"] = {name: array_digest(features[name]) for name in MULTIMER}
        features, _ = batch.generate_input_feature(
            sequences, copies, *rows, templates, True, "alphafold2_ptm", max_seq=0
        )
        digests[f"residue gap {mode}"] = gap_digests(
            HHBLITS_TO_OUR_AATYPE[features["msa"]],
            features["deletion_matrix_int"],
            features["residue_index"],
            features["asym_id"] + 1,
        )
    return digests


def gap_digests(
    msa: np.ndarray, deletions: np.ndarray, residue_index: np.ndarray, asym_id: np.ndarray
) -> dict[str, Any]:
    """Return digests of the features of a complex for a monomer model, without duplicate rows."""
    first: dict[bytes, int] = {}
    for index, row in enumerate(np.ascontiguousarray(msa, np.int32)):
        first.setdefault(row.tobytes(), index)
    rows = [*first.values()]
    return {
        "rows": len(rows),
        "msa": array_digest(msa[rows]),
        "deletion_matrix": array_digest(deletions[rows]),
        "residue_index": array_digest(residue_index),
        "asym_id": array_digest(asym_id),
    }


if __name__ == "__main__":
    main()
