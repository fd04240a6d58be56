"""Make a case of gradients: DeepMind's AlphaFold-Multimer differentiates one scalar that depends on all outputs.

    python scripts/parity/make_gradient_cases.py --output cases --name mine --model model_1_multimer_v3 --seed 41

The scalar is the sum over all outputs of their values times random weights, which `probe` draws. Its gradients for all
parameters and for the inputs of the network are stored; for large arrays, only evenly spaced values. A case is a folder
with features.npz, gradients.npz, params_manifest.json and meta.json. The requirements are the same as for
make_cases.py.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # Python finds only the folder of a script

import jax
from alphafold.model import modules_multimer

from tests.parity import deepmind
from tests.parity.gradient_probe import READ, Arrays, probe, recycled_input, sampled
from tests.parity.multimer_features import make_multimer_features
from tests.parity.parameters import draw_parameters, write_manifest
from tests.parity.spec import MULTIMER, Spec
from tests.parity.test_cases import NOT_COMPUTED


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder to put the case's folder into")
    parser.add_argument("--name", required=True, help="name of the case's folder")
    parser.add_argument("--model", choices=MULTIMER, default="model_1_multimer_v3")
    parser.add_argument("--seed", type=int, default=0, help="seed of parameters and features")
    options = parser.parse_args()
    spec = Spec(model=options.model, res=14, seq=6, extra_seq=8, templ=2, real_templ=1, chains="ABA", seed=options.seed)
    make_case(options.output / options.name, spec)


def make_case(folder: Path, spec: Spec) -> None:
    """Differentiate DeepMind's code on new features, in float32 and float64, and write the case."""
    features = make_multimer_features(spec)
    features |= deepmind.network_inputs(spec, features)
    shapes = deepmind.parameter_shapes(spec, features)
    parameters, settings = draw_parameters(shapes, spec.seed), deepmind.settings(spec)
    trunk = settings["embeddings_and_evoformer"]
    previous = recycled_input(spec.res, trunk["msa_channel"], trunk["pair_channel"])
    value, gradients = _gradients(spec, parameters, features, previous)
    with deepmind.in_float64():
        exact_value, exact = _gradients(*(spec, *(deepmind.widened(each) for each in (parameters, features, previous))))
    # The gradient is NaN for atoms that a template lacks.
    noise = {
        name: {"max_abs": float(np.nanmax(np.abs(gradients[name] - each))), "max": float(np.nanmax(np.abs(each)))}
        for name, each in exact.items()
    }
    meta = {
        "name": folder.name,
        "spec": {"kind": "multimer", **asdict(spec)},
        "versions": deepmind.versions(),
        "config": settings,
        "value": value,
        "exact_value": exact_value,
        "float32_noise": noise,
    }
    folder.mkdir(parents=True)
    np.savez_compressed(folder / "features.npz", **features)  # type: ignore[arg-type]
    np.savez_compressed(
        folder / "gradients.npz", **{name: sampled(each).astype(np.float32) for name, each in exact.items()}
    )
    write_manifest(folder / "params_manifest.json", shapes, spec.seed)
    (folder / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")
    print(f"{folder}: {value} ({exact_value} in float64), {len(gradients)} gradients")


def _gradients(
    spec: Spec, parameters: Mapping[str, np.ndarray], features: Mapping[str, np.ndarray], previous: Arrays
) -> tuple[float, Arrays]:
    """Return the scalar and its gradients by name; gradients of inputs are without the sample axis."""
    read = {name: (previous | dict(features))[name] for name in READ}
    outputs = deepmind.one_pass(spec)

    def weighed(values: dict[str, Any], inputs: dict[str, Any]) -> Any:
        samples = {name: inputs.get(name, each) for name, each in features.items()}
        recycled = {name: inputs.get(name, each) for name, each in previous.items()}
        results = {
            name: each for name, each in outputs(values, samples, recycled).items() if not NOT_COMPUTED.search(name)
        }
        if weights is None:
            return results
        return sum((results[name] * each).sum() for name, each in weights.items())

    # The features that the network computes from the alignment are passed, so that gradients end there.
    with mock.patch.object(modules_multimer, "create_msa_feat", lambda batch: batch["msa_feat"]):
        weights = None
        weights = probe({name: np.asarray(each) for name, each in jax.jit(weighed)(parameters, read).items()})
        value, (by_parameter, by_input) = jax.jit(jax.value_and_grad(weighed, argnums=(0, 1)))(dict(parameters), read)
    gradients = {name: np.asarray(each) for name, each in by_parameter.items()}
    for name, each in by_input.items():
        gradients[f"input/{name}"] = np.asarray(each if name.startswith("prev_") else each[0])
    return float(value), gradients


if __name__ == "__main__":
    main()
