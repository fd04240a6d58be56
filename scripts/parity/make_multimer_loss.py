"""Make the parity case of a complex's losses: DeepMind's losses and the gradient of their sum for every parameter.

    python scripts/parity/make_multimer_loss.py tests/parity/data/multimer_v3_loss

It writes features.npz, labels.npz, losses.npz, gradients.npz (some elements of each, evenly spaced in its flat
array), params_manifest.json and meta.json. Install its requirements:
    pip install -c constraints.txt -e '.[parity]'
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # Python finds only the folder of a script

from data_pipeline.features.ground_truth import ATOM14_IS_AMBIGUOUS, ground_truth
from data_pipeline.features.labels import ChainLabels
from data_pipeline.residues import ATOM14_TO_ATOM37, ATOM37_MASK, ATOM_ORDER
from tests.parity import deepmind
from tests.parity.deepmind_multimer import multimer_config, multimer_network
from tests.parity.multimer_features import make_multimer_features
from tests.parity.parameters import draw_parameters, write_manifest
from tests.parity.spec import Spec

SPEC = Spec(
    model="model_1_multimer_v3", res=23, pad=2, seq=6, extra_seq=8, templ=4, real_templ=3, chains="AAB", seed=23
)
SAMPLED = 128

Arrays = dict[str, np.ndarray]


def main(folder: Path) -> None:
    """Compute and write the case."""
    features = make_multimer_features(SPEC)
    inputs = deepmind.network_inputs(SPEC, features)
    labels = make_labels(features["aatype"][0], features["seq_mask"][0], np.random.default_rng(SPEC.seed))
    labels |= {name: inputs[name][0] for name in ("true_msa", "bert_mask")}
    config = multimer_config(SPEC)
    shapes = deepmind.parameter_shapes(SPEC, features)
    parameters = draw_parameters(shapes, SPEC.seed)
    losses, gradients = differentiated(config, parameters, features, labels)
    with deepmind.in_float64():
        exact, exact_gradients = differentiated(config, *map(deepmind.widened, (parameters, features, labels)))
    noise = {
        name: {"max_abs": float(np.abs(computed[name] - value).max()), "max": float(np.abs(value).max())}
        for computed, exactly in ((losses, exact), (gradients, exact_gradients))
        for name, value in exactly.items()
    }
    folder.mkdir(parents=True)
    np.savez_compressed(folder / "features.npz", **features | inputs)  # type: ignore[arg-type]
    np.savez_compressed(folder / "labels.npz", **labels)
    np.savez_compressed(folder / "losses.npz", **losses)
    few = {name: value.reshape(-1)[:: -(-value.size // SAMPLED) | 1] for name, value in gradients.items()}
    np.savez_compressed(folder / "gradients.npz", **{name.removeprefix("grad/"): value for name, value in few.items()})
    write_manifest(folder / "params_manifest.json", shapes, SPEC.seed)
    meta = {
        "name": folder.name,
        "spec": {"kind": "multimer", **asdict(SPEC)},
        "package": "alphafold-colabfold",
        "versions": deepmind.versions(),
        "config": config.to_dict(),
        "float32_noise": noise,
    }
    (folder / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")
    for name, value in losses.items():
        print(f"{name:30} {value:.6f}  float32 noise {noise[name]['max_abs']:.1e}")


def make_labels(aatype: np.ndarray, seq_mask: np.ndarray, rng: np.random.Generator) -> Arrays:
    """Return the labels of a complex: a random walk with missing atoms and an unresolved residue.

    Ambiguous atoms are only missing in pairs, because otherwise DeepMind's code uses another mask than for monomers.
    """
    r = len(aatype)
    alpha = np.cumsum(rng.normal(size=(r, 3)) * 2.2, axis=0)
    positions = (alpha[:, None] + 1.3 * rng.normal(size=(r, 37, 3))).astype(np.float32)
    positions[:, ATOM_ORDER["CA"]] = alpha
    mask = ATOM37_MASK[aatype] * (rng.random((r, 37)) < 0.93)
    residue, slot = np.nonzero(ATOM14_IS_AMBIGUOUS[aatype])
    mask[residue, ATOM14_TO_ATOM37[aatype][residue, slot]] = 1
    mask[r // 3] = 0
    mask = (mask * seq_mask[:, None]).astype(np.float32)
    labels = ChainLabels(
        all_atom_positions=positions * mask[..., None],
        all_atom_mask=mask,
        confidence=np.ones(r, np.float32),
        resolution=2.0,
        is_distillation=False,
    )
    truth = {name: value for name, value in vars(ground_truth(aatype, labels)).items() if name != "aatype"}
    for name in ("atom37_atom_exists", "atom14_atom_exists"):
        truth[name] = truth[name] * seq_mask[:, None]
    return {**truth, "resolution": np.float32(2.0)}


def differentiated(config: Any, parameters: Arrays, features: Arrays, labels: Arrays) -> tuple[Arrays, Arrays]:
    """Return the losses, and the gradients of their sum by "grad/" plus the name of the parameter."""
    network = multimer_network(config, labels)
    samples = {name: value[:1] for name, value in features.items()}
    trunk = config.embeddings_and_evoformer
    previous = {
        "prev_pos": np.zeros((SPEC.res, 37, 3), np.float32),
        "prev_msa_first_row": np.zeros((SPEC.res, trunk.msa_channel), np.float32),
        "prev_pair": np.zeros((SPEC.res, SPEC.res, trunk.pair_channel), np.float32),
    }
    by_scope: dict[str, Arrays] = {}
    for name, value in parameters.items():
        scope, leaf = name.split("//")
        by_scope.setdefault(scope, {})[leaf] = value

    def total(nested: Mapping[str, Arrays]) -> tuple[Any, dict[str, Any]]:
        losses = network.apply(nested, jax.random.PRNGKey(0), samples, previous)["losses"]
        return losses["total"], losses

    gradients, losses = jax.device_get(jax.jit(jax.grad(total, has_aux=True))(by_scope))
    return (
        {name: np.asarray(value) for name, value in losses.items()},
        {f"grad/{scope}//{leaf}": value for scope, leaves in gradients.items() for leaf, value in leaves.items()},
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
