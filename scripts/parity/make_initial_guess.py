"""Make the parity cases of the initial guess: unmodified ColabFold code on random parameters and a random guess.

    python scripts/parity/make_initial_guess.py

It writes tests/parity/data/initial_guess_{monomer,multimer}.npz: the inputs of the network and the guess (`in:`), and
the outputs of the last of three recycling iterations (`out:`), in float32, before the program rounds them. Parameters
are from the cases in `CASES`. Install its requirements:
    pip install -c constraints.txt -e '.[parity]'
"""

import json
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import ml_collections
import numpy as np
from alphafold.model import config as published
from alphafold.model.model import RunModel

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # Python finds only the folder of a script

from data_pipeline.residues import ATOM_ORDER, RESTYPES
from tests.parity import deepmind
from tests.parity.cases import DATA, stored_spec
from tests.parity.deepmind_multimer import as_compared
from tests.parity.multimer_features import make_multimer_features
from tests.parity.parameters import from_manifest
from tests.parity.spec import Spec
from tests.parity.synthetic_features import make_features

# The recycling loop of the program has the published widths hard-coded, so smaller networks do not work.
CASES = {"monomer": "ranges_monomer", "multimer": "multimer_v3_full"}
STORED_OUTPUTS = ("final_atom_positions", "predicted_lddt", "predicted_aligned_error", "distogram", "masked_msa")
# At a smaller distance from a bin edge, float32 rounding decides the bin of a distance of the guess.
SAFE_BIN_MARGIN = 2e-4

Arrays = dict[str, np.ndarray]


def main() -> None:
    """Compute and write both parity cases."""
    for name, case in CASES.items():
        meta = json.loads((DATA / case / "meta.json").read_text())
        spec = replace(stored_spec(meta), res=14, pad=0, pad_seq=0, pad_extra_seq=0, recycle=2, times=0.0)
        parameters = from_manifest(DATA / case / "params_manifest.json")
        features = make_multimer_features(spec) if spec.is_multimer else make_features(spec)
        guess, margin = random_guess(spec, features["aatype"][0])
        outputs = run(spec, features, parameters, guess)
        read = features | (deepmind.network_inputs(spec, features) if spec.is_multimer else {})
        if spec.is_multimer:
            read = {key: value[:1] for key, value in read.items() if not key.startswith("draw_")}
        stored = {f"in:{key}": value for key, value in read.items()} | {"in:guess": guess}
        stored |= {f"out:{key}": value for key, value in outputs.items()}
        np.savez_compressed(DATA / f"initial_guess_{name}.npz", **stored)  # type: ignore[arg-type]
        print(f"{name}: {len(outputs)} outputs; {margin:.1e} Angstrom from a distance of the guess to a bin's edge")


def random_guess(spec: Spec, aatype: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the atoms of a random walk, and the distance between a bin edge and the nearest rounded distance.

    Rounding to float16 moves at least one distance into another bin.
    """
    bins = deepmind.settings(spec)["embeddings_and_evoformer"]["prev_pos"]
    edges = np.linspace(bins["min_bin"], bins["max_bin"], bins["num_bins"])
    for seed in range(10_000):
        rng = np.random.default_rng([spec.seed, seed])
        guess = np.cumsum(rng.normal(0, 3, (spec.res, 1, 3)), 0) + rng.normal(0, 1.5, (spec.res, 37, 3))
        guess = guess.astype(np.float32)
        exact, rounded = (distances(atoms, aatype) for atoms in (guess, guess.astype(np.float16)))
        margin = float(np.abs(rounded[..., None] - edges).min())
        bins_differ = (np.digitize(exact, edges) != np.digitize(rounded, edges)).any()
        if margin > SAFE_BIN_MARGIN and bins_differ:
            return guess, margin
    raise RuntimeError("no random guess met the requirements on distances from bin edges")


def distances(atoms: np.ndarray, aatype: np.ndarray) -> np.ndarray:
    """Return the distances between the atoms that recycling uses: C-beta, or C-alpha for glycine."""
    is_glycine = aatype == RESTYPES.index("G")
    beta = np.where(is_glycine[:, None], atoms[:, ATOM_ORDER["CA"]], atoms[:, ATOM_ORDER["CB"]]).astype(np.float64)
    lengths: np.ndarray = np.linalg.norm(beta[:, None] - beta, axis=-1)
    return lengths


def run(spec: Spec, features: Arrays, parameters: Arrays, guess: np.ndarray) -> Arrays:
    """Return the unrounded outputs of the last recycling iteration of the program's own loop."""
    whole = published.model_config(spec.model)
    whole.model = ml_collections.ConfigDict(deepmind.settings(spec))
    nested: dict[str, Arrays] = {}
    for name, value in parameters.items():
        scope, leaf = name.split("//")
        nested.setdefault(scope, {})[leaf] = value
    runner = RunModel(whole, nested)
    computed: list[dict[str, Any]] = []
    apply = runner.apply

    def recorded(*arguments: Any) -> Any:
        result = jax.tree_util.tree_map(np.asarray, apply(*arguments))
        # The program rounds the returned dictionary in place.
        computed.append(jax.tree_util.tree_map(np.copy, result))
        return result

    runner.apply = recorded
    sample = features | {"all_atom_positions": guess}
    if spec.is_multimer:
        sample = {name: value[0] for name, value in features.items()} | {"all_atom_positions": guess}
        sample["msa_mask"] = sample["alignment_mask"]
    with as_compared() if spec.is_multimer else nullcontext():
        _, last = runner.predict(sample)
    assert (last, len(computed)) == (spec.recycle, spec.recycle + 1)
    result = computed[-1]
    # For the aligned errors, the program keeps only the expected values.
    heads = {name: result[name] for name in STORED_OUTPUTS[1:]}
    logits = {name: value["logits"] if isinstance(value, dict) else value for name, value in heads.items()}
    return {STORED_OUTPUTS[0]: result["structure_module"][STORED_OUTPUTS[0]], **logits}


if __name__ == "__main__":
    main()
