"""Run and time DeepMind's program, compiled, in its own process.

    python -P helixfold/apps/verify/deepmind.py FOLDER

FOLDER has `parameters.npz` and `features.npz` with DeepMind's names, and `settings.json`; results are written to
`found.json` in it. With `outputs` in the settings, the features are for one or more recycling iterations, and all
outputs of the last one are written to `outputs.npz`. The script needs jax, haiku and alphafold (the extra `parity`) and
nothing from this project, so that another interpreter can run it.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np


def main(folder: Path) -> None:
    """Run the program in a folder, with as many processors as its settings allow, and write found.json."""
    settings = json.loads((folder / "settings.json").read_text())
    if settings["threads"] is not None and hasattr(os, "sched_setaffinity"):
        # XLA starts a thread for each processor that is available to the process when it is imported.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: settings["threads"]])
    (folder / "found.json").write_text(json.dumps(run(folder, settings)))


def run(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Compile the network once and run it several times; return times in seconds, memory in bytes and shapes.

    `settings` is the content of `settings.json`.
    """
    import haiku as hk  # noqa: PLC0415 (after the number of threads is set)
    import jax  # noqa: PLC0415
    from alphafold.model import config as published  # noqa: PLC0415
    from alphafold.model import modules  # noqa: PLC0415

    config = published.model_config(settings["model"]).model
    is_multimer, trunk = "multimer" in settings["model"], config.embeddings_and_evoformer
    for stack in (trunk.evoformer, trunk.template.template_pair_stack):
        for direction in ("outgoing", "incoming"):
            # Only the third release of published parameters has fused left and right projections.
            fused = settings["model"].endswith("_v3")
            stack[f"triangle_multiplication_{direction}"].fuse_projection_weights = fused
    config.global_config.update(
        deterministic=True, bfloat16=settings["bfloat16"], subbatch_size=settings["subbatch_size"]
    )
    if settings["fused"]:
        # ColabFold's releases of the program have this setting.
        config.global_config.update(use_pallas=True)

    def forward(samples: dict[str, Any], previous: dict[str, Any]) -> dict[str, Any]:
        """Run one recycling iteration of DeepMind's network, and return the outputs to compare."""
        with hk.name_scope("alphafold"):
            if is_multimer:
                results = _complex(config, {name: value[0] for name, value in samples.items()} | previous)
            else:
                iteration = modules.AlphaFoldIteration(config, config.global_config)
                results = iteration(samples, previous, is_training=False, ensemble_representations=False)
        if settings.get("outputs"):
            return _all_outputs(results)
        return {
            "positions": results["structure_module"]["final_atom_positions"],
            "pair": results["representations"]["pair"],
            "msa": results["representations"]["msa"],
            "single": results["representations"]["single"],
            "distogram": results["distogram"]["logits"],
            "lddt": results["predicted_lddt"]["logits"],
        }

    parameters: dict[str, dict[str, Any]] = {}
    with np.load(folder / "parameters.npz", allow_pickle=False) as arrays:
        for name in arrays.files:
            scope, parameter_name = name.split("//")
            parameters.setdefault(scope, {})[parameter_name] = jax.device_put(arrays[name])
    with np.load(folder / "features.npz", allow_pickle=False) as arrays:
        samples = {name: jax.device_put(arrays[name]) for name in arrays.files}
    iterations, residues = samples["aatype"].shape
    previous = {
        "prev_pos": np.zeros((residues, 37, 3), np.float32),
        "prev_msa_first_row": np.zeros((residues, trunk.msa_channel), np.float32),
        "prev_pair": np.zeros((residues, residues, trunk.pair_channel), np.float32),
    }
    key = jax.random.PRNGKey(0)  # only dropout needs it, which is off
    start_time = time.perf_counter()
    inputs = [{name: value[index : index + 1] for name, value in samples.items()} for index in range(iterations)]
    compiled = jax.jit(hk.transform(forward).apply).lower(parameters, key, inputs[0], previous).compile()
    compile_seconds = time.perf_counter() - start_time
    memory_before = _peak_memory(reset=True)
    seconds = []
    for _ in range(settings["repeats"]):
        start_time = time.perf_counter()
        for sample in inputs:
            outputs = jax.block_until_ready(compiled(parameters, key, sample, previous))
            if sample is not inputs[-1]:
                previous = {
                    "prev_pos": outputs["structure_module/final_atom_positions"],
                    "prev_msa_first_row": outputs["representations/msa_first_row"],
                    "prev_pair": outputs["representations/pair"],
                }
        seconds.append(time.perf_counter() - start_time)
    if settings.get("outputs"):
        arrays = {name: np.asarray(value, np.float32) for name, value in outputs.items()}
        np.savez(folder / "outputs.npz", **arrays)
    return {
        "compile_seconds": compile_seconds,
        "seconds": seconds,
        "memory": max(0, _peak_memory() - memory_before),
        "shapes": {name: list(value.shape) for name, value in outputs.items()},
        "device": str(jax.devices()[0]),
        "version": jax.__version__,
    }


def _complex(config: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """Return the outputs of AlphaFold-Multimer for sampled features; by default it would sample them itself."""
    import haiku as hk  # noqa: PLC0415
    import jax  # noqa: PLC0415
    from alphafold.model import folding_multimer, geometry, modules_multimer, prng  # noqa: PLC0415

    def for_lddt(method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], context: Any) -> Any:
        """Pass the structure module's state to the lDDT head, which the program only does in training."""
        result = method(*args, **kwargs)
        if isinstance(context.module, folding_multimer.StructureModule) and context.method_name == "__call__":
            args[0]["structure_module"] = result.pop("act")
        return result

    def sampled_extra_msa(features: dict[str, Any], _: int) -> tuple[Any, Any]:
        """Return the features of the sampled extra MSA rows, and their mask."""
        letters = jax.nn.one_hot(features["extra_msa"], 23)
        deletion_features = [features[name][..., None] for name in ("extra_has_deletion", "extra_deletion_value")]
        return jax.numpy.concatenate([letters, *deletion_features], -1), features["extra_msa_mask"]

    replacements: dict[str, Callable[..., Any]] = {
        "make_msa_profile": lambda features: features["msa_mask"],  # only read by the masking, which is replaced
        "sample_msa": lambda _, features, __: features,
        "make_masked_msa": lambda features, _, __: features,
        "nearest_neighbor_clusters": lambda features: (features["msa_mask"], features["msa_mask"]),
        "create_msa_feat": lambda features: features["msa_feat"],
        "create_extra_msa_feature": sampled_extra_msa,
    }
    with ExitStack() as stack:
        stack.enter_context(hk.intercept_methods(for_lddt))
        for name, function in replacements.items():
            stack.enter_context(mock.patch.object(modules_multimer, name, function))
        stack.enter_context(mock.patch.object(geometry.Rigid3Array, "inverse", _inverse))
        iteration = modules_multimer.AlphaFoldIteration(config, config.global_config)
        outputs: dict[str, Any] = iteration(batch, is_training=False, safe_key=prng.SafeKey(jax.random.PRNGKey(0)))
    return outputs


def _inverse(rigid: Any) -> "_Inverse":
    """Return the inverse of rigid motions, instead of DeepMind's function."""
    return _Inverse(rigid)


class _Inverse:
    """Inverse of rigid motions that subtracts before it rotates.

    DeepMind's function rotates both ends of a vector first. The vector from a residue to itself is then rounding noise,
    which the template embedding scales to length 1; here it is exactly zero.
    """

    def __init__(self, rigid: Any) -> None:
        self.rigid = rigid

    def apply_to_point(self, point: Any) -> Any:
        """Return the point in the coordinates of the rigid motions."""
        return self.rigid.rotation.apply_inverse_to_point(point - self.rigid.translation)


def _all_outputs(results: dict[str, Any]) -> dict[str, Any]:
    """Return the logits of all heads, the representations and the atom positions, with flat names ("pair/logits")."""
    heads = ("distogram", "experimentally_resolved", "masked_msa", "predicted_aligned_error", "predicted_lddt")
    streams = ("msa", "msa_first_row", "pair", "single")
    position = "final_atom_positions"
    return {
        **{f"{name}/logits": results[name]["logits"] for name in heads if name in results},
        # Recycled representations have the trunk's precision, and are stored as float32.
        **{f"representations/{name}": results["representations"][name].astype("float32") for name in streams},
        f"structure_module/{position}": results["structure_module"][position],
    }


def _peak_memory(*, reset: bool = False) -> int:
    """Return the peak resident memory of the process in bytes, since the last reset if the system supports it."""
    status, clear_refs = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if reset:
        clear_refs.write_text("5")
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main(Path(sys.argv[1]))
