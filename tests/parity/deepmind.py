"""DeepMind's own program, run on given parameters and features, so that ours can be compared with it.

Needs jax, haiku and alphafold (the extra `parity`). What is run is `AlphaFoldIteration` of the published code; the
recycling around it is written here, because the package's own recycling loop drops most of the outputs.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any
from unittest import mock

import haiku as hk
import jax
import ml_collections
import numpy as np
from alphafold.common import confidence
from alphafold.model import config as published
from alphafold.model import folding, modules, r3, utils

from tests.parity.deepmind_multimer import (
    distance_change,
    multimer_config,
    multimer_in_float64,
    multimer_network,
    multimer_scores,
    network_input,
)
from tests.parity.spec import Spec

Arrays = dict[str, np.ndarray]

PACKAGES = ("alphafold-colabfold", "jax", "jaxlib", "dm-haiku", "numpy")

TEMPLATE_STACK = "embeddings_and_evoformer.template.template_pair_stack"
# Small enough for a test, with every width different from its neighbours so that a swapped axis shows.
TINY_CHANNELS = {
    "embeddings_and_evoformer.msa_channel": 32,
    "embeddings_and_evoformer.pair_channel": 24,
    "embeddings_and_evoformer.seq_channel": 48,
    "embeddings_and_evoformer.extra_msa_channel": 16,
    "embeddings_and_evoformer.evoformer.outer_product_mean.num_outer_channel": 8,
    "embeddings_and_evoformer.evoformer.triangle_multiplication_outgoing.num_intermediate_channel": 16,
    "embeddings_and_evoformer.evoformer.triangle_multiplication_incoming.num_intermediate_channel": 16,
    "embeddings_and_evoformer.template.attention.key_dim": 16,
    "embeddings_and_evoformer.template.attention.value_dim": 16,
    f"{TEMPLATE_STACK}.triangle_attention_starting_node.key_dim": 16,
    f"{TEMPLATE_STACK}.triangle_attention_starting_node.value_dim": 16,
    f"{TEMPLATE_STACK}.triangle_attention_ending_node.key_dim": 16,
    f"{TEMPLATE_STACK}.triangle_attention_ending_node.value_dim": 16,
    f"{TEMPLATE_STACK}.triangle_multiplication_outgoing.num_intermediate_channel": 12,
    f"{TEMPLATE_STACK}.triangle_multiplication_incoming.num_intermediate_channel": 12,
    "heads.structure_module.num_channel": 40,
    "heads.structure_module.sidechain.num_channel": 24,
    "heads.predicted_lddt.num_channels": 20,
}

# Those of the model in the package.
EVOFORMER = "embeddings_and_evoformer.evoformer"
DEMONSTRATION_CHANNELS = {
    "embeddings_and_evoformer.msa_channel": 128,
    "embeddings_and_evoformer.pair_channel": 64,
    "embeddings_and_evoformer.seq_channel": 128,
    "embeddings_and_evoformer.extra_msa_channel": 64,
    f"{EVOFORMER}.outer_product_mean.num_outer_channel": 16,
    f"{EVOFORMER}.triangle_multiplication_outgoing.num_intermediate_channel": 32,
    f"{EVOFORMER}.triangle_multiplication_incoming.num_intermediate_channel": 32,
    f"{EVOFORMER}.triangle_attention_starting_node.num_head": 2,
    f"{EVOFORMER}.triangle_attention_ending_node.num_head": 2,
    f"{EVOFORMER}.msa_transition.num_intermediate_factor": 2,
    f"{EVOFORMER}.pair_transition.num_intermediate_factor": 2,
    "embeddings_and_evoformer.template.use_template_unit_vector": True,
    "embeddings_and_evoformer.template.attention.key_dim": 32,
    "embeddings_and_evoformer.template.attention.value_dim": 32,
    f"{TEMPLATE_STACK}.triangle_attention_starting_node.num_head": 2,
    f"{TEMPLATE_STACK}.triangle_attention_starting_node.key_dim": 32,
    f"{TEMPLATE_STACK}.triangle_attention_starting_node.value_dim": 32,
    f"{TEMPLATE_STACK}.triangle_attention_ending_node.num_head": 2,
    f"{TEMPLATE_STACK}.triangle_attention_ending_node.key_dim": 32,
    f"{TEMPLATE_STACK}.triangle_attention_ending_node.value_dim": 32,
    f"{TEMPLATE_STACK}.triangle_multiplication_outgoing.num_intermediate_channel": 32,
    f"{TEMPLATE_STACK}.triangle_multiplication_incoming.num_intermediate_channel": 32,
    "heads.structure_module.num_layer": 6,
    "heads.structure_module.num_channel": 128,
    "heads.structure_module.num_head": 8,
    "heads.predicted_lddt.num_channels": 32,
}
CHANNELS = {"tiny": TINY_CHANNELS, "full": {}, "demonstration": DEMONSTRATION_CHANNELS}
# In its extra-MSA stack, for which DeepMind's configuration has no number of its own.
DEMONSTRATION_EXTRA_HEADS = 4


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one run gives: flat outputs of the last pass, and `recycleK/prev_*` that entered each later pass K.

    `changes` are the changes of distances from pass to pass in Angstrom, for the end of a multimer's recycling.
    """

    outputs: Arrays
    recycle_inputs: Arrays
    changes: list[float]


def run(
    spec: Spec, features: Mapping[str, np.ndarray], parameters: Mapping[str, np.ndarray], *, bfloat16: bool = False
) -> Run:
    """Run every recycling pass of a case in float32, or with the trunk in bfloat16."""
    config = _config(spec)
    config.global_config.bfloat16 = bfloat16
    outputs, recycle_inputs, changes = _passes(config, spec, parameters, features)
    return Run(outputs=outputs, recycle_inputs=recycle_inputs, changes=changes)


def exact_outputs(
    spec: Spec, features: Mapping[str, np.ndarray], parameters: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Run the case in float64."""
    with in_float64():
        exact, *_ = _passes(_config(spec), spec, widened(parameters), widened(features))
    return exact


def float32_noise(result: Run, exact: Mapping[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """Return the largest deviation from float64 and the largest value of every output."""
    return {
        name: {"max_abs": float(np.abs(result.outputs[name] - value).max()), "max": float(np.abs(value).max())}
        for name, value in exact.items()
    }


def settings(spec: Spec) -> dict[str, Any]:
    """Return DeepMind's nested configuration of a case."""
    return dict(_config(spec).to_dict())


def one_pass(spec: Spec) -> Callable[[Any, Any, Any], dict[str, Any]]:
    """Return the function that gives the flat outputs of one pass for parameters, samples and what is recycled."""
    return _one_pass(_config(spec), spec)


def parameter_shapes(spec: Spec, features: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter array by its flat name."""
    config = _config(spec)
    samples = {name: value[: spec.ensemble] for name, value in features.items()}
    init = _network(config, spec).init
    previous = _nothing_recycled(config, features["aatype"].shape[1])
    nested = jax.eval_shape(init, jax.random.PRNGKey(0), samples, previous)
    return {f"{scope}//{leaf}": array.shape for scope, leaves in nested.items() for leaf, array in leaves.items()}


def recycle_bin_margin(spec: Spec, features: Mapping[str, np.ndarray], result: Run) -> float | None:
    """How far in Angstrom the nearest recycled distance is from a bin edge, where rounding would flip the bin."""
    bins = settings(spec)["embeddings_and_evoformer"]["prev_pos"]
    edges = np.linspace(bins["min_bin"], bins["max_bin"], bins["num_bins"])
    real = features["seq_mask"][0] > 0
    margins = []
    for name, positions in result.recycle_inputs.items():
        if name.endswith("/prev_pos"):
            beta = np.asarray(modules.pseudo_beta_fn(features["aatype"][0], positions, None), np.float64)[real]
            distances = np.linalg.norm(beta[:, None] - beta[None], axis=-1)
            margins.append(float(np.abs(distances[..., None] - edges).min()))
    return min(margins, default=None)


def network_inputs(spec: Spec, features: Mapping[str, np.ndarray]) -> Arrays:
    """What a multimer's network reads of every sample, after DeepMind's functions have clustered its alignment."""
    config = _config(spec)
    made = [
        network_input({name: value[index] for name, value in features.items()}, config) for index in range(spec.passes)
    ]
    return {name: np.stack([each[name] for each in made]) for name in made[0]}


def versions() -> dict[str, str]:
    """The versions of the packages that decide the numbers."""
    return {package: version(package) for package in PACKAGES}


def _config(spec: Spec) -> ml_collections.ConfigDict:
    return multimer_config(spec) if spec.is_multimer else _monomer_config(spec)


def _monomer_config(spec: Spec) -> ml_collections.ConfigDict:
    config = published.model_config(spec.model).model
    config.update_from_flattened_dict(CHANNELS[spec.channels])
    trunk = config.embeddings_and_evoformer
    trunk.evoformer_num_block = spec.evoformer
    trunk.extra_msa_stack_num_block = spec.extra
    trunk.template.template_pair_stack.num_block = spec.template
    for stack in (trunk.evoformer, trunk.template.template_pair_stack):
        for direction in ("outgoing", "incoming"):
            # The published monomer parameters have separate left and right projections.
            stack[f"triangle_multiplication_{direction}"].fuse_projection_weights = False
    config.num_recycle = spec.recycle
    config.global_config.bfloat16 = False
    config.global_config.deterministic = True
    return config


def _network(config: ml_collections.ConfigDict, spec: Spec) -> hk.Transformed:
    return multimer_network(config) if spec.is_multimer else _monomer_network(config, spec)


def _monomer_network(config: ml_collections.ConfigDict, spec: Spec) -> hk.Transformed:
    def keep_structure_outputs(
        method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], context: hk.MethodContext
    ) -> Any:
        if isinstance(context.module, folding.StructureModule) and context.method_name == "__call__":
            context.module.compute_loss = True  # without it the module hides trajectory, side chains and atom14
        return method(*args, **kwargs)

    def forward(samples: Arrays, previous: Arrays) -> dict[str, Any]:
        extra_heads = DEMONSTRATION_EXTRA_HEADS if spec.channels == "demonstration" else None
        with hk.name_scope("alphafold"), hk.intercept_methods(keep_structure_outputs), _extra_heads(extra_heads):
            iteration = modules.AlphaFoldIteration(config, config.global_config)
            result: dict[str, Any] = iteration(
                samples, previous, is_training=False, ensemble_representations=spec.ensemble > 1
            )
        sidechains = result["structure_module"]["sidechains"]
        sidechains["frames"] = r3.rigids_to_tensor_flat12(sidechains["frames"])
        sidechains["atom_pos"] = r3.vecs_to_tensor(sidechains["atom_pos"])
        return result

    return hk.transform(forward)


def _one_pass(config: ml_collections.ConfigDict, spec: Spec) -> Callable[[Any, Any, Any], dict[str, Any]]:
    network = _network(config, spec)

    def outputs(parameters: Mapping[str, Any], samples: Mapping[str, Any], previous: Arrays) -> dict[str, Any]:
        nested: dict[str, dict[str, Any]] = {}
        for name, value in parameters.items():
            scope, leaf = name.split("//")
            nested.setdefault(scope, {})[leaf] = value
        # The key is asked for by dropout, which is off.
        return dict(_flatten(network.apply(nested, jax.random.PRNGKey(0), samples, previous)))

    return outputs


def _passes(
    config: ml_collections.ConfigDict,
    spec: Spec,
    parameters: Mapping[str, np.ndarray],
    features: Mapping[str, np.ndarray],
) -> tuple[Arrays, Arrays, list[float]]:
    """Outputs of the last pass, `recycleK/prev_*` for each pass K after the first, and changes of distances."""
    compiled = jax.jit(_one_pass(config, spec))
    previous = _nothing_recycled(config, features["aatype"].shape[1])
    recycle_inputs: Arrays = {}
    changes: list[float] = []
    mask = features["seq_mask"][-1]
    for index in range(spec.recycle + 1):
        samples = {name: value[index * spec.ensemble : (index + 1) * spec.ensemble] for name, value in features.items()}
        outputs = {name: np.asarray(value) for name, value in compiled(dict(parameters), samples, previous).items()}
        positions = outputs["structure_module/final_atom_positions"]
        changes.append(distance_change(previous["prev_pos"], positions, mask))
        if index > 0 and changes[-1] < spec.tolerance:
            break
        if index < spec.recycle:
            previous = {
                "prev_pos": positions,
                "prev_msa_first_row": outputs["representations/msa_first_row"],
                "prev_pair": outputs["representations/pair"],
            }
            recycle_inputs |= {f"recycle{index + 1}/{name}": value for name, value in previous.items()}
    if spec.is_multimer:
        scores = multimer_scores(outputs, mask, features["asym_id"][-1])
        outputs |= {f"confidence/{name}": np.asarray(value, np.float64) for name, value in scores.items()}
        return outputs, recycle_inputs, changes
    return outputs | _confidence(outputs, mask), recycle_inputs, changes


def _confidence(outputs: Arrays, seq_mask: np.ndarray) -> Arrays:
    """Scores from the logits; only the one per residue where there is padding, which DeepMind's scores do not mask."""
    plddt = confidence.compute_plddt(outputs["predicted_lddt/logits"])
    found = {"plddt": plddt}
    if seq_mask.all():
        found["ranking_confidence"] = plddt.mean()
        if "predicted_aligned_error/logits" in outputs:
            aligned = outputs["predicted_aligned_error/logits"], outputs["predicted_aligned_error/breaks"]
            errors = confidence.compute_predicted_aligned_error(*aligned)
            found |= {name: errors[name] for name in ("predicted_aligned_error", "max_predicted_aligned_error")}
            found["ptm"] = confidence.predicted_tm_score(*aligned)
    return {f"confidence/{name}": np.asarray(value, np.float64) for name, value in found.items()}


@contextmanager
def _extra_heads(heads: int | None) -> Iterator[None]:
    """Give attention in the extra-MSA stack another number of heads than in the Evoformer."""
    if heads is None:
        yield
        return

    class Block(modules.EvoformerIteration):  # type: ignore[misc]
        def __init__(self, config: ml_collections.ConfigDict, *given: Any, is_extra_msa: bool, **named: Any) -> None:
            if is_extra_msa:
                config = config.copy_and_resolve_references()
                for attention in ("msa_row_attention_with_pair_bias", "msa_column_attention"):
                    config[attention].num_head = heads
            super().__init__(config, *given, is_extra_msa=is_extra_msa, **named)

    with mock.patch.object(modules, "EvoformerIteration", Block):
        yield


def _nothing_recycled(config: ml_collections.ConfigDict, residues: int) -> Arrays:
    trunk = config.embeddings_and_evoformer
    return {
        "prev_pos": np.zeros((residues, 37, 3), np.float32),
        "prev_msa_first_row": np.zeros((residues, trunk.msa_channel), np.float32),
        "prev_pair": np.zeros((residues, residues, trunk.pair_channel), np.float32),
    }


@contextmanager
def in_float64() -> Iterator[None]:
    """Let the program compute in float64: it asks one function for the trunk's dtype."""
    jax.config.update("jax_enable_x64", True)
    try:
        with mock.patch.object(utils, "half_dtype", return_value=jax.numpy.float64), multimer_in_float64():
            yield
    finally:
        jax.config.update("jax_enable_x64", False)


def widened(arrays: Mapping[str, np.ndarray]) -> Arrays:
    """Return the arrays with floats in float64."""
    return {name: value.astype(np.float64) if value.dtype == np.float32 else value for name, value in arrays.items()}


def _flatten(nested: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in nested.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}/")
        else:
            yield prefix + name, value
