"""Make a parity case: run DeepMind's AlphaFold on random parameters and synthetic features, and keep what it gives.

    python tests/parity/make_cases.py --output cases --name mine --model model_1_ptm --residues 26 --recycles 2 --seed 11
    python tests/parity/make_cases.py --output cases --name again --like tests/parity/data/monomer_ptm_tiny

The second form repeats a given case on its own features and prints how far the outputs are from the stored ones.
A case is a folder with features.npz, outputs.npz, recycle_inputs.npz, params_manifest.json and meta.json.
Install what it runs with: pip install -c constraints.txt -e '.[parity]'
"""

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # as a script, Python finds only this folder

from data_pipeline.errors import InputError
from tests.parity.parameters import write_manifest
from tests.parity.spec import WITH_TEMPLATES, WITHOUT_TEMPLATES, Spec
from tests.parity.synthetic_features import make_features

if TYPE_CHECKING:
    from tests.parity.deepmind import Run

# Closer to a bin edge than this, float32 noise in recycled coordinates can choose the other bin.
SAFE_BIN_MARGIN = 2e-4


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line, make the case, and return the exit code: 2 where the input is wrong."""
    options = _parser().parse_args(arguments)
    try:
        make_case(options)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def make_case(options: argparse.Namespace) -> None:
    """Make the one case that the options describe."""
    folder = options.output / options.name
    if folder.parent != options.output or options.name in ("", ".", ".."):
        raise InputError(f"--name must be a plain folder name, got {options.name!r}")
    if folder.exists():
        raise InputError(f"{folder} exists already: choose another --name or remove it")
    if options.like:
        spec, features = _read_case(options.like)
    else:
        spec = _spec(options)
        features = make_features(spec)
    try:
        from tests.parity import deepmind
    except ModuleNotFoundError as error:
        raise InputError(
            f"DeepMind's program cannot run because Python module {error.name!r} is missing: "
            "install it with  pip install -c constraints.txt -e '.[parity]'"
        ) from error
    result = deepmind.run(spec, features)
    _write_case(folder, spec, features, result)
    _report(folder, result)
    if options.like:
        _compare(options.like, result.outputs)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder to put the case's folder into")
    parser.add_argument("--name", required=True, help="name of the case's folder")
    parser.add_argument("--like", type=Path, help="repeat this case; all options below come from it")
    parser.add_argument("--model", choices=WITH_TEMPLATES + WITHOUT_TEMPLATES, default="model_1_ptm")
    parser.add_argument("--channels", choices=("tiny", "full"), default="tiny")
    parser.add_argument("--evoformer-blocks", dest="evoformer", type=int, default=2)
    parser.add_argument("--extra-blocks", dest="extra", type=int, default=1)
    parser.add_argument("--template-blocks", dest="template", type=int, default=1)
    parser.add_argument("--residues", dest="res", type=int, default=26, help="length, padding included")
    parser.add_argument("--padding", dest="pad", type=int, default=0, help="how many of the residues are padding")
    parser.add_argument("--msa-rows", dest="seq", type=int, default=10, help="clustered rows, padding included")
    parser.add_argument("--padded-msa-rows", dest="pad_seq", type=int, default=0)
    parser.add_argument("--extra-rows", dest="extra_seq", type=int, default=14, help="extra rows, padding included")
    parser.add_argument("--padded-extra-rows", dest="pad_extra_seq", type=int, default=0)
    parser.add_argument("--templates", dest="templ", type=int, help="template slots; 4 where the model has templates")
    parser.add_argument("--real-templates", dest="real_templ", type=int, help="slots with a template; 3 by default")
    parser.add_argument("--recycles", dest="recycle", type=int, default=0)
    parser.add_argument("--ensemble", type=int, default=1, help="samples averaged in every recycling pass")
    parser.add_argument("--unknown-residue", dest="with_x", action="store_true", help="put an X into the sequence")
    parser.add_argument("--seed", type=int, default=0, help="seed of parameters and features")
    return parser


def _spec(options: argparse.Namespace) -> Spec:
    values = {field.name: getattr(options, field.name) for field in fields(Spec)}
    if values["templ"] is None:
        values["templ"] = 4 if options.model in WITH_TEMPLATES else 0
    if values["real_templ"] is None:
        values["real_templ"] = min(3, values["templ"])
    return Spec(**values)


def _read_case(case: Path) -> tuple[Spec, dict[str, np.ndarray]]:
    for name in ("meta.json", "features.npz"):
        if not (case / name).is_file():
            raise InputError(f"{case / name} is missing: --like needs the folder of a case")
    known = {field.name for field in fields(Spec)}
    stored = json.loads((case / "meta.json").read_text())["spec"]
    with np.load(case / "features.npz", allow_pickle=False) as features:
        return Spec(**{name: value for name, value in stored.items() if name in known}), dict(features)


def _write_case(folder: Path, spec: Spec, features: Mapping[str, np.ndarray], result: "Run") -> None:
    folder.mkdir(parents=True)
    np.savez_compressed(folder / "features.npz", **features)  # type: ignore[arg-type]
    np.savez_compressed(folder / "outputs.npz", **result.outputs)  # type: ignore[arg-type]
    if result.recycle_inputs:
        np.savez_compressed(folder / "recycle_inputs.npz", **result.recycle_inputs)  # type: ignore[arg-type]
    write_manifest(folder / "params_manifest.json", result.shapes, spec.seed)
    meta = {
        "name": folder.name,
        "spec": {"kind": "monomer", **asdict(spec)},
        "package": "alphafold-colabfold",
        "versions": result.versions,
        "config": result.config,
        "float32_noise": result.float32_noise,
        "recycle_bin_margin_A": result.recycle_bin_margin,
    }
    (folder / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")


def _report(folder: Path, result: "Run") -> None:
    worst = max(result.float32_noise, key=lambda name: _relative(result.float32_noise[name]))
    print(f"{folder}: {len(result.shapes)} parameter arrays, {len(result.outputs)} outputs")
    print(f"largest float32 noise: {_relative(result.float32_noise[worst]):.1e} of the largest value, in {worst}")
    if result.recycle_bin_margin is not None and result.recycle_bin_margin < SAFE_BIN_MARGIN:
        print(
            f"warning: a recycled distance lies {result.recycle_bin_margin:.1e} Angstrom from a bin edge, "
            "so that rounding may decide its bin; another --seed avoids it"
        )


def _relative(noise: Mapping[str, float]) -> float:
    return noise["max_abs"] / max(noise["max"], 1e-30)


def _compare(case: Path, outputs: Mapping[str, np.ndarray]) -> None:
    """Print the largest difference of every output from the stored one, relative to the largest stored value."""
    with np.load(case / "outputs.npz", allow_pickle=False) as stored:
        expected = dict(stored)
    for name in sorted(expected.keys() | outputs.keys()):
        if name not in outputs or name not in expected:
            print(f"{name:60} only in {'the stored case' if name in expected else 'this run'}")
            continue
        largest = max(float(np.abs(expected[name]).max()), 1e-30)
        print(f"{name:60} {float(np.abs(outputs[name] - expected[name]).max()) / largest:.1e}")


if __name__ == "__main__":
    sys.exit(main())
