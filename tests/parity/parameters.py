"""Random parameters that a parity case can rebuild anywhere, so that no case has to carry them.

Every array follows from its flat name (DeepMind's `scope//leaf`), its shape and the case's seed alone: NumPy keeps the
stream of `RandomState` frozen for good. A case stores names, shapes, seed and one checksum in `params_manifest.json`.
The draws are scaled so that an untrained network stays numerically tame (activations of order one, chains within some
30 Angstrom) and so that no array is zero or constant: a swapped, transposed or forgotten array always shows.
"""

import hashlib
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from data_pipeline.io.errors import InputError

# Scopes whose arrays carry one leading axis, the block of the stack.
STACKS = (
    "/evoformer/evoformer_iteration/",
    "/evoformer/extra_msa_stack/",
    "/__layer_stack_no_state/",
    "/template_embedding_iteration/",
)
GATES = ("left_gate", "right_gate", "gate", "gating_linear")  # "gate" is left and right in one
# Mean and standard deviation where the last part of the name alone decides.
BY_LEAF = {
    "scale": (1.0, 0.15),
    "offset": (0.0, 0.15),
    "trainable_point_weights": (0.5413, 0.2),  # AlphaFold starts them at softplus^-1(1)
    "gating_b": (1.0, 0.3),
    "output_b": (0.0, 0.1),
}
RESIDUAL_OUTPUTS = ("output_projection", "transition2", "resblock2")


def from_manifest(manifest: Path) -> dict[str, np.ndarray]:
    """Rebuild the random parameters of a case from its `params_manifest.json` and verify their checksum."""
    content = json.loads(manifest.read_text())
    parameters = draw_parameters(content["shapes"], content["seed"])
    found = checksum(parameters)
    if found != content["sha256"]:
        raise InputError(
            f"{manifest}: the rebuilt parameters have checksum {found}, not {content['sha256']}: "
            "names, shapes or seed were changed; make the case again with scripts/parity/make_cases.py"
        )
    return parameters


def read_module(path: Path) -> dict[str, np.ndarray]:
    """Read a module's `in:`, `param:` and `out:` arrays; where a manifest lies beside the file, it gives `param:`."""
    with np.load(path) as stored:
        arrays = dict(stored)
    manifest = path.with_suffix(".json")
    if manifest.exists():
        arrays |= {f"param:{name}": value for name, value in from_manifest(manifest).items()}
    return arrays


def write_manifest(path: Path, shapes: Mapping[str, Sequence[int]], seed: int) -> None:
    """Write what `from_manifest` needs to rebuild the parameters of these names and shapes."""
    ordered = {name: list(shapes[name]) for name in sorted(shapes)}
    content = {"seed": seed, "sha256": checksum(draw_parameters(ordered, seed)), "shapes": ordered}
    path.write_text(json.dumps(content, separators=(",", ":")) + "\n")


def draw_parameters(shapes: Mapping[str, Sequence[int]], seed: int) -> dict[str, np.ndarray]:
    """Draw one array per name."""
    return {name: draw(name, tuple(shapes[name]), seed) for name in sorted(shapes)}


def draw(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Draw the array of this name: normal, float32, with the mean and deviation that its role asks for."""
    stream = np.random.RandomState((zlib.crc32(name.encode()) ^ (seed * 2654435761)) & 0xFFFFFFFF)
    mean, deviation = _moments(name, shape)
    return (mean + deviation * stream.standard_normal(shape)).astype(np.float32)


def checksum(parameters: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over names and little-endian float32 values, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(parameters):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(parameters[name], dtype="<f4").tobytes())
    return digest.hexdigest()


def _moments(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Mean and standard deviation of an array."""
    scope, leaf = name.split("//")
    module = scope.rsplit("/", 1)[-1]
    if leaf in BY_LEAF:
        return BY_LEAF[leaf]
    if leaf == "bias":
        return BY_LEAF["gating_b"] if module in GATES else (0.0, 0.05 if _is_backbone_update(scope) else 0.1)
    return 0.0, _gain(scope, module, leaf) / math.sqrt(_fan_in(scope, leaf, shape))


def _gain(scope: str, module: str, leaf: str) -> float:
    if _is_backbone_update(scope):
        return 0.35  # eight backbone updates in a row: keeps the chain compact
    if leaf == "output_w" or module in RESIDUAL_OUTPUTS:
        return 0.5
    if leaf == "gating_w" or module in GATES:
        return 0.7
    return 1.0


def _is_backbone_update(scope: str) -> bool:
    return scope.endswith(("fold_iteration/affine_update", "quat_rigid/rigid"))


def _fan_in(scope: str, leaf: str, shape: tuple[int, ...]) -> int:
    per_block = shape[1:] if any(stack in f"/{scope}/" for stack in STACKS) else shape
    if len(per_block) == 1:
        return 1  # a map of one number, which DeepMind's array has no axis for
    if leaf == "output_w":
        return math.prod(per_block[:-1])
    return per_block[0]
