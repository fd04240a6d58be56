"""Store digests of the features that DeepMind's code makes from real alignments and template hits.

    python scripts/parity/make_feature_cases.py --data shared/data --output tests/parity/data/feature_code.json

Needs `pip install -c constraints.txt -e '.[parity]'`. Only the readers of `alphafold.data` are run.
"""

import argparse
import gzip
import hashlib
import importlib
import json
import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

# A target with several alignments, in AlphaFold's order of merging.
MERGED = {
    "T1084_D1": ("uniref90_hits.sto", "bfd_uniclust_hits.a3m", "mgnify_hits.sto"),
    "0099_B": ("bfd_uniref_hits.a3m", "mgnify_hits.sto"),
    "3l4q_A": ("uniref90_hits.sto", "bfd_uniref_hits.a3m", "mgnify_hits.sto"),
    "3l4q_C": ("uniref90_hits.sto", "bfd_uniref_hits.a3m", "mgnify_hits.sto"),
    "1a02_F": ("uniref90_hits.a3m", "bfd_uniclust_hits.a3m"),
}
ROW_LIMIT = 40  # for truncation: below the depth of most alignments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with msa/ and templates/")
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    options = parser.parse_args()
    parsers = importlib.import_module("alphafold.data.parsers")
    digests: dict[str, dict[str, str]] = {}
    for path in sorted((options.data / "msa").glob("*.sto.gz")):
        digests[path.name] = _stockholm(parsers, text_of(path))
    for path in sorted((options.data / "msa").glob("*.a3m.gz")):
        text = "".join(
            line for line in text_of(path).replace("\0", "").splitlines(True) if not line.startswith(("#", ";"))
        )
        msa = parsers.parse_a3m(text)
        if len({len(row) for row in msa.sequences}) == 1:
            digests[path.name] = {"rows": alignment_digest(msa.sequences, np.array(msa.deletion_matrix))}
    for path in sorted((options.data / "templates").glob("*.hhr.gz")):
        # Files from before hh-suite 3 lack the last value that DeepMind's parser reads, which it does not use.
        text = re.sub(r"(Sum_probs=\S+)$", r"\1  Template_Neff=1.0", text_of(path), flags=re.MULTILINE)
        digests[path.name] = {"hits": hits_digest(parsers.parse_hhr(text))}
    for path in sorted((options.data / "templates").glob("*.sto.gz")):
        a3m = parsers.convert_stockholm_to_a3m(text_of(path), remove_first_row_gaps=False)
        first = parsers.parse_fasta(a3m)[0][0]
        query = "A" * sum(not letter.islower() for letter in first)
        hits = parsers.parse_hmmsearch_a3m(query, a3m, skip_first=False)
        digests[path.name] = {"query": query, "hits": hits_digest(hits)}
    for target, files in MERGED.items():
        digests[target] = _merged(parsers, [options.data / "msa" / f"{target}__{file}.gz" for file in files])
    options.output.write_text(json.dumps(digests, indent=1, sort_keys=True) + "\n")


def text_of(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode()


def alignment_digest(sequences: Iterable[str], deletions: np.ndarray) -> str:
    """Return a digest of an alignment: its rows in order, and their deletion counts."""
    return digest("\n".join(sequences).encode() + np.ascontiguousarray(deletions, np.int32).tobytes())


def hits_digest(hits: Sequence[Any]) -> str:
    """Return a digest of DeepMind's template hits."""
    fields = [
        (
            *(hit.index, hit.name.rstrip(), hit.aligned_cols, hit.sum_probs, hit.query, hit.hit_sequence),
            *(list(map(int, hit.indices_query)), list(map(int, hit.indices_hit))),
        )
        for hit in hits
    ]
    return digest(json.dumps(fields).encode())


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _stockholm(parsers: Any, text: str) -> dict[str, str]:
    msa = parsers.parse_stockholm(text)
    deduplicated = parsers.deduplicate_stockholm_msa(text)
    compact = parsers.remove_empty_columns_from_stockholm_msa(deduplicated)
    with tempfile.NamedTemporaryFile("w", suffix=".sto") as file:
        file.write(text)
        file.flush()
        truncated = parsers.truncate_stockholm_msa(file.name, ROW_LIMIT)
    short = parsers.parse_stockholm(truncated)
    return {
        "rows": alignment_digest(msa.sequences, np.array(msa.deletion_matrix)),
        "names": digest("\n".join(msa.descriptions).encode()),
        "first_rows": alignment_digest(short.sequences, np.array(short.deletion_matrix)),
        "truncated": digest(truncated.encode()),
        "a3m": digest(parsers.convert_stockholm_to_a3m(text).encode()),
        "short_a3m": digest(parsers.convert_stockholm_to_a3m(text, max_sequences=ROW_LIMIT).encode()),
        "deduplicated": digest(deduplicated.encode()),
        "compact": digest(compact.encode()),
        "compact_a3m": digest(parsers.convert_stockholm_to_a3m(compact).encode()),
    }


def _merged(parsers: Any, paths: list[Path]) -> dict[str, str]:
    """Return DeepMind's MSA features; the package does not deduplicate, so the merged rows have no duplicates."""
    pipeline = importlib.import_module("alphafold.data.pipeline")
    seen: set[str] = set()
    msas = []
    for path in paths:
        read = parsers.parse_stockholm if ".sto" in path.name else parsers.parse_a3m
        msa = read(text_of(path))
        new = [index for index, row in enumerate(msa.sequences) if not (row in seen or seen.add(row))]
        fields = (msa.sequences, msa.deletion_matrix, msa.descriptions)
        msas.append(parsers.Msa(*([field[index] for index in new] for field in fields)))
    features = pipeline.make_msa_features([msa for msa in msas if msa.sequences])
    rows, deletions = features["msa"].astype(np.int32), features["deletion_matrix_int"].astype(np.int32)
    return {"depth": str(len(rows)), "features": digest(rows.tobytes() + deletions.tobytes())}


if __name__ == "__main__":
    main()
