"""Make a parity case: run DeepMind's AlphaFold on random parameters and synthetic features, and store its outputs.

    python scripts/parity/make_cases.py --output cases --name mine --model model_1_ptm --residues 40 --seed 11
    python scripts/parity/make_cases.py --check tests/parity/data/monomer_ptm_tiny

The second form writes nothing. It repeats a case on its stored features and prints the deviations from the stored
outputs. The exit code is 1 if an output differs by more than 1e-4 of its largest value.
A case is a folder with features.npz, outputs.npz, recycle_inputs.npz, params_manifest.json and meta.json. With --times,
parameters are scaled until activations have the ranges of trained networks: range_factors.npz has the factors, and
meta.json the error of DeepMind's code in bfloat16.
Install its requirements: pip install -c constraints.txt -e '.[parity]'
"""

import argparse
import importlib
import json
import sys
from dataclasses import asdict, fields
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # Python finds only the folder of a script

from data_pipeline.io.errors import InputError
from helixfold.apps.verify.runs import mean_deviation
from tests.parity.cases import (
    batch_from_deepmind,
    case_config,
    case_parameters,
    deviation,
    real_part,
    stored_spec,
)
from tests.parity.multimer_features import make_multimer_features
from tests.parity.parameters import write_manifest
from tests.parity.spec import CHANNELS, MODELS, WITHOUT_TEMPLATES, Spec
from tests.parity.synthetic_features import make_features
from tests.parity.trained_ranges import find_factors

# At a smaller distance from a bin edge, float32 noise in recycled coordinates can change the bin.
SAFE_BIN_MARGIN = 2e-4
TOLERANCE = 1e-4


def main(arguments: list[str] | None = None) -> int:
    """Make or check a case; return the exit code, which is 2 for invalid input."""
    options = _parser().parse_args(arguments)
    try:
        if options.check:
            return 0 if check_case(options.check) < TOLERANCE else 1
        make_case(_folder(options), _spec(options))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def make_case(folder: Path, spec: Spec) -> None:
    """Run DeepMind's code on new features and write the case."""
    program = _program()
    features = make_multimer_features(spec) if spec.is_multimer else make_features(spec)
    computed = program.network_inputs(spec, features) if spec.is_multimer else {}
    shapes = program.parameter_shapes(spec, features)
    factors = _range_factors(spec, shapes, program.settings(spec), features | computed) if spec.times else {}
    parameters = case_parameters(spec, shapes, program.settings(spec), factors)
    result = program.run(spec, features, parameters)
    exact = program.exact_outputs(spec, features, parameters)
    noise = program.float32_noise(result, exact)
    margin = program.recycle_bin_margin(spec, features, result)
    meta = {
        "name": folder.name,
        "spec": {"kind": "multimer" if spec.is_multimer else "monomer", **asdict(spec)},
        "package": "alphafold-colabfold",
        "versions": program.versions(),
        "config": program.settings(spec),
        "float32_noise": noise,
        "recycle_bin_margin_A": margin,
        "distance_changes_A": result.changes,
    }
    if spec.times:
        rounded = program.run(spec, features, parameters, bfloat16=True).outputs
        masks = features["seq_mask"][-1], (features | computed)["msa_mask"][-1]
        each = {name: [real_part(name, x[name], *masks) for x in (result.outputs, rounded, exact)] for name in exact}
        # Exclude padding, whose large values would hide the errors of other elements.
        meta["float32_noise_without_padding"] = {
            name: deviation(output, value) for name, (output, _, value) in each.items()
        }
        meta["bfloat16_error"] = {name: mean_deviation(output, value) for name, (_, output, value) in each.items()}
    folder.mkdir(parents=True)
    if factors:
        np.savez_compressed(folder / "range_factors.npz", **factors)  # type: ignore[arg-type]
    np.savez_compressed(folder / "features.npz", **features | computed)  # type: ignore[arg-type]
    np.savez_compressed(folder / "outputs.npz", **result.outputs)
    if result.recycle_inputs:
        np.savez_compressed(folder / "recycle_inputs.npz", **result.recycle_inputs)
    write_manifest(folder / "params_manifest.json", shapes, spec.seed)
    (folder / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")

    relative = {name: value["max_abs"] / max(value["max"], 1e-30) for name, value in noise.items()}
    worst = max(relative, key=lambda name: relative[name])
    print(f"{folder}: {len(shapes)} parameter arrays, {len(result.outputs)} outputs")
    print(f"largest float32 noise: {relative[worst]:.1e} of the largest value, in {worst}")
    if margin is not None and margin < SAFE_BIN_MARGIN:
        print(
            f"warning: a recycled distance lies {margin:.1e} Angstrom from a bin edge, "
            "so that rounding may decide its bin; another --seed avoids it"
        )


def check_case(case: Path) -> float:
    """Repeat a case on its stored features; print the deviations of its outputs, and return the largest."""
    spec, features, expected = _read_case(case)
    program = _program()
    factors = dict(np.load(path)) if (path := case / "range_factors.npz").exists() else {}
    parameters = case_parameters(spec, program.parameter_shapes(spec, features), program.settings(spec), factors)
    outputs = program.run(spec, features, parameters).outputs
    if missing := expected.keys() - outputs.keys():
        raise InputError(f"{case}: the installed program does not output {', '.join(sorted(missing))}")
    worst = 0.0
    for name, value in sorted(expected.items()):
        deviation = float(np.abs(outputs[name] - value).max()) / max(float(np.abs(value).max()), 1e-30)
        print(f"{name:60} {deviation:.1e}")
        worst = float(np.maximum(worst, deviation))  # unlike max, keeps NaN
    return worst


def _range_factors(
    spec: Spec, shapes: dict[str, tuple[int, ...]], settings: dict[str, Any], features: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the factors that give the parameters of a case trained ranges, by running our network in float32."""
    batches = [
        batch_from_deepmind({name: value[index] for name, value in features.items()}) for index in range(spec.passes)
    ]
    parameters = case_parameters(spec, shapes, settings, {})
    return find_factors(parameters, case_config(spec.channels, settings), batches, spec.times)


def _program() -> ModuleType:
    try:
        return importlib.import_module("tests.parity.deepmind")
    except ModuleNotFoundError as error:
        raise InputError(
            f"DeepMind's program needs the Python module {error.name!r}, which is missing: "
            "install it with  pip install -c constraints.txt -e '.[parity]'"
        ) from error


def _folder(options: argparse.Namespace) -> Path:
    if options.output is None or options.name is None:
        raise InputError("a new case needs --output DIR and --name NAME (or check an existing one with --check CASE)")
    if options.name in ("", ".", "..") or Path(options.name).name != options.name:
        raise InputError(f"--name must be a plain folder name, got {options.name!r}")
    folder: Path = options.output / options.name
    if folder.exists():
        raise InputError(f"{folder} exists already: choose another --name or remove it")
    return folder


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="parent folder of the case")
    parser.add_argument("--name", help="name of the folder of the case")
    parser.add_argument(
        "--check", type=Path, metavar="CASE", help="repeat this case instead, and ignore all other options"
    )
    parser.add_argument("--model", choices=MODELS, default="model_1_ptm")
    parser.add_argument("--channels", choices=CHANNELS, default="tiny")
    parser.add_argument("--evoformer-blocks", dest="evoformer", type=int, default=2)
    parser.add_argument("--extra-blocks", dest="extra", type=int, default=1)
    parser.add_argument("--template-blocks", dest="template", type=int, default=1)
    parser.add_argument("--residues", dest="res", type=int, default=26, help="length, padding included")
    parser.add_argument("--padding", dest="pad", type=int, default=0, help="number of padding residues")
    parser.add_argument("--msa-rows", dest="seq", type=int, default=10, help="clustered rows, padding included")
    parser.add_argument("--padded-msa-rows", dest="pad_seq", type=int, default=0)
    parser.add_argument("--extra-rows", dest="extra_seq", type=int, default=14, help="extra rows, padding included")
    parser.add_argument("--padded-extra-rows", dest="pad_extra_seq", type=int, default=0)
    parser.add_argument("--templates", dest="templ", type=int, help="template slots (4 if the model has templates)")
    parser.add_argument("--real-templates", dest="real_templ", type=int, help="slots with a template (3)")
    parser.add_argument("--recycles", dest="recycle", type=int, default=0)
    parser.add_argument("--ensemble", type=int, default=1, help="samples averaged in every recycling iteration")
    parser.add_argument(
        "--chains", default="A", help="chains of a multimer, one letter each; equal letters are equal chains"
    )
    parser.add_argument(
        "--tolerance", type=float, default=0.0, help="change in Å that ends the recycling of a multimer"
    )
    parser.add_argument(
        "--times", type=float, default=0.0, help="scale activations to this multiple of the ranges of trained networks"
    )
    parser.add_argument("--unknown-residue", dest="with_x", action="store_true", help="include an X in the sequence")
    parser.add_argument("--seed", type=int, default=0, help="random seed of parameters and features")
    return parser


def _spec(options: argparse.Namespace) -> Spec:
    values = {field.name: getattr(options, field.name) for field in fields(Spec)}
    if values["templ"] is None:
        values["templ"] = 0 if options.model in WITHOUT_TEMPLATES else 4
    if values["real_templ"] is None:
        values["real_templ"] = min(3, values["templ"])
    return Spec(**values)


def _read_case(case: Path) -> tuple[Spec, dict[str, np.ndarray], dict[str, np.ndarray]]:
    for name in ("meta.json", "features.npz", "outputs.npz"):
        if not (case / name).is_file():
            raise InputError(f"{case / name} is missing: --check needs the folder of a case")
    spec = stored_spec(json.loads((case / "meta.json").read_text()))
    with np.load(case / "features.npz") as features, np.load(case / "outputs.npz") as outputs:
        return spec, dict(features), dict(outputs)


if __name__ == "__main__":
    sys.exit(main())
