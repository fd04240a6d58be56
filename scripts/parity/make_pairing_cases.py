"""Store digests of the features that DeepMind's pipeline makes for complexes with real alignments.

    python -m scripts.parity.make_pairing_cases --data shared/data --output tests/parity/data/pairing.json

Needs `pip install -c constraints.txt -e '.[parity]'`. DeepMind's code sorts rows with an unstable sort, so that
the order of equal rows depends on the processor; here it is replaced by a stable sort. ColabFold's fork keeps duplicate
rows, unlike the original; here they are removed beforehand.
"""

import argparse
import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from scripts.parity.make_feature_cases import digest, text_of

# Chains by their alignments; the proteins do not form complexes in nature.
ALIGNMENTS = {
    "adp": "T1034_D1__T1034.a3m.gz",
    "toxin": "1dtx_A__toxd.a3m.gz",
    "rnase": "bbcontacts__exampleresults__1nz0D.a3m.gz",
    "casp": "T1078_D1__t000_.1e-3.a3m.gz",
    "ace": "7ddo_A__6vw1.a3m.gz",
    "defensin": "3e7u_X__hhb-cov60.a3m.gz",
}
COMPLEXES = ("adp rnase", "rnase toxin", "adp casp rnase", "toxin rnase toxin", "ace toxin", "defensin adp casp toxin")
COMPARED = ("aatype", "residue_index", "asym_id", "sym_id", "entity_id", "msa", "deletion_matrix", "bert_mask")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with msa/")
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    options = parser.parse_args()
    parsers, pairing = (importlib.import_module(f"alphafold.data.{name}") for name in ("parsers", "msa_pairing"))
    pandas = importlib.import_module("pandas")
    usual = pandas.DataFrame.sort_values
    pandas.DataFrame.sort_values = lambda self, *a, **k: usual(self, *a, **k, kind="stable")
    argsort = np.argsort
    pairing.np.argsort = lambda array: argsort(array, kind="stable")
    msas = {name: parsers.parse_a3m(text_of(options.data / "msa" / file)) for name, file in ALIGNMENTS.items()}
    digests = {words: _merged(words.split(), msas) for words in COMPLEXES}
    options.output.write_text(json.dumps(digests, indent=1, sort_keys=True) + "\n")


def _merged(names: list[str], msas: dict[str, Any]) -> dict[str, Any]:
    modules = (importlib.import_module(f"alphafold.data.{name}") for name in ("pipeline", "pipeline_multimer"))
    pipeline, multimer = modules
    merge = importlib.import_module("alphafold.data.feature_processing").pair_and_merge
    chains = {}
    for chain_index, name in enumerate(names):
        msa = msas[name]
        sequence = msa.sequences[0]
        features = pipeline.make_sequence_features(sequence, name, len(sequence))
        first: dict[str, int] = {}
        for index, row in enumerate(msa.sequences):
            first.setdefault(row, index)
        unique_rows = [*first.values()]
        rows = pipeline.make_msa_features(
            [
                type(msa)(
                    sequences=[msa.sequences[row] for row in unique_rows],
                    deletion_matrix=[msa.deletion_matrix[row] for row in unique_rows],
                    descriptions=["query", *(msa.descriptions[row] for row in unique_rows[1:])],
                )
            ]
        )
        paired = {f"{key}_all_seq": value for key, value in rows.items() if key != "num_alignments"}
        chain_id = str(chain_index)
        chains[chain_id] = multimer.convert_monomer_features({**features, **rows, **paired}, chain_id)
    merged = merge(multimer.add_assembly_features(chains))
    return {
        "rows": int(merged["num_alignments"]),
        "paired": int(merged["bert_mask"].all(axis=1).sum()),
        **{name: array_digest(merged[name]) for name in COMPARED},
    }


def array_digest(array: np.ndarray) -> str:
    """Return a digest of an array of integers, independent of its dtype."""
    return digest(np.ascontiguousarray(array, np.int32).tobytes())


if __name__ == "__main__":
    main()
