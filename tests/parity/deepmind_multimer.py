"""DeepMind's AlphaFold-Multimer, with the draws and the template directions that our network is compared on.

The package samples and masks the alignment inside the network; here both are given as features. It also rotates the two
ends of a vector before it subtracts them, so that the vector from a residue to itself is rounding noise that is then
scaled up to length 1; here it is exactly zero, as in exact arithmetic.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import haiku as hk
import jax
import ml_collections
import numpy as np
from alphafold.common import confidence
from alphafold.model import config as published
from alphafold.model import folding_multimer, geometry, modules, modules_multimer, prng

from tests.parity.deepmind_multimer_loss import losses
from tests.parity.spec import Spec

Arrays = dict[str, np.ndarray]

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
    "embeddings_and_evoformer.template.num_channels": 20,
    f"{TEMPLATE_STACK}.triangle_multiplication_outgoing.num_intermediate_channel": 12,
    f"{TEMPLATE_STACK}.triangle_multiplication_incoming.num_intermediate_channel": 12,
    "heads.structure_module.num_channel": 40,
    "heads.structure_module.sidechain.num_channel": 28,
    "heads.predicted_lddt.num_channels": 18,
}


def multimer_config(spec: Spec) -> ml_collections.ConfigDict:
    """The published configuration with the case's sizes; it follows DeepMind's files in what is fused."""
    config = published.model_config(spec.model).model
    config.update_from_flattened_dict(TINY_CHANNELS if spec.channels == "tiny" else {})
    trunk = config.embeddings_and_evoformer
    trunk.evoformer_num_block, trunk.extra_msa_stack_num_block = spec.evoformer, spec.extra
    trunk.template.template_pair_stack.num_block = spec.template
    trunk.num_msa, trunk.num_extra_msa = spec.seq, spec.extra_seq
    for stack in (trunk.evoformer, trunk.template.template_pair_stack):
        for direction in ("outgoing", "incoming"):
            stack[f"triangle_multiplication_{direction}"].fuse_projection_weights = spec.model.endswith("_v3")
    config.num_recycle, config.recycle_early_stop_tolerance = spec.recycle, spec.tolerance
    config.global_config.bfloat16 = False
    config.global_config.deterministic = True
    return config


def multimer_network(config: ml_collections.ConfigDict, labels: Arrays | None = None) -> hk.Transformed:
    """One recycling iteration, on samples with a leading axis of one; with labels, the result has `losses`."""

    def keep_structure_outputs(
        method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], context: hk.MethodContext
    ) -> Any:
        if isinstance(context.module, folding_multimer.StructureModule) and context.method_name == "__call__":
            kwargs = {**kwargs, "compute_loss": True}  # without it trajectory, side chains and atom14 are hidden
        result = method(*args, **kwargs)
        if isinstance(context.module, folding_multimer.StructureModule) and context.method_name == "__call__":
            args[0]["structure_module"] = result.pop("act")  # the lDDT head reads it
        return result

    def forward(samples: Arrays, previous: Arrays) -> dict[str, Any]:
        batch = {name: value[0] for name, value in samples.items()} | previous
        batch["msa_mask"] = batch["alignment_mask"]
        with hk.name_scope("alphafold"), hk.intercept_methods(keep_structure_outputs), as_compared():
            iteration = modules_multimer.AlphaFoldIteration(config, config.global_config)
            result: dict[str, Any] = iteration(batch, is_training=False, safe_key=prng.SafeKey(jax.random.PRNGKey(0)))
        result["predicted_aligned_error"].pop("asym_id")
        if labels is not None:
            result["losses"] = losses(config, iteration.heads, result, batch | labels)
        return result

    return hk.transform(forward)


def network_input(sample: Arrays, config: ml_collections.ConfigDict) -> Arrays:
    """What DeepMind's functions make of a sample's alignment and draws, under the names that a monomer's input has."""
    trunk = config.embeddings_and_evoformer
    batch = {name: jax.numpy.asarray(value) for name, value in sample.items()}
    batch["msa_mask"] = batch["alignment_mask"]
    batch = _given_masking(_given_rows(None, batch, trunk.num_msa), None, None)
    batch["cluster_profile"], batch["cluster_deletion_mean"] = modules_multimer.nearest_neighbor_clusters(batch)
    extra, extra_mask = modules_multimer.create_extra_msa_feature(batch, trunk.num_extra_msa)
    beta, has_beta = modules.pseudo_beta_fn(
        batch["template_aatype"], batch["template_all_atom_positions"], batch["template_all_atom_mask"]
    )
    made = {
        "target_feat": jax.nn.one_hot(batch["aatype"], 21),
        "msa_feat": modules_multimer.create_msa_feat(batch),
        "true_msa": batch["true_msa"],
        "bert_mask": batch["bert_mask"],
        "extra_msa": batch["extra_msa"][: trunk.num_extra_msa],
        "extra_has_deletion": extra[..., -2],
        "extra_deletion_value": extra[..., -1],
        "extra_msa_mask": extra_mask,
        "template_all_atom_masks": batch["template_all_atom_mask"],
        "template_pseudo_beta": beta,
        "template_pseudo_beta_mask": has_beta,
    }
    made["msa_mask"] = batch["msa_mask"]
    return {name: np.asarray(value) for name, value in made.items()}


def multimer_scores(outputs: Arrays, seq_mask: np.ndarray, asym_id: np.ndarray) -> dict[str, Any]:
    """Scores from the logits, whose masks leave out padding."""
    found = confidence.get_confidence_metrics(
        {
            "predicted_lddt": {"logits": outputs["predicted_lddt/logits"]},
            "predicted_aligned_error": {
                "logits": outputs["predicted_aligned_error/logits"],
                "breaks": outputs["predicted_aligned_error/breaks"],
                "asym_id": asym_id,
            },
        },
        seq_mask,
        rank_by="multimer",
    )
    names = ("plddt", "predicted_aligned_error", "max_predicted_aligned_error", "ptm", "iptm", "ranking_confidence")
    return {name: found[name] for name in names}


def distance_change(before: np.ndarray, after: np.ndarray, mask: np.ndarray) -> float:
    """The change that ends recycling where it is below the tolerance, in Angstrom."""
    return float(confidence.compute_tol(before, after, mask))


@contextmanager
def as_compared() -> Iterator[None]:
    with ExitStack() as stack:
        for owner, name, replacement in (
            (modules_multimer, "sample_msa", _given_rows),
            (modules_multimer, "make_masked_msa", _given_masking),
            (geometry.Rigid3Array, "inverse", _inverse),
        ):
            stack.enter_context(mock.patch.object(owner, name, replacement))
        yield


@contextmanager
def multimer_in_float64() -> Iterator[None]:
    """Let the geometry of the program take float64, which it refuses."""
    identity = geometry.Rigid3Array.identity

    def identity_in_float64(shape: tuple[int, ...]) -> geometry.Rigid3Array:
        return identity(shape, dtype=jax.numpy.float64)

    with ExitStack() as stack:
        for kind in (geometry.Vec3Array, geometry.Rot3Array, geometry.Rigid3Array):
            stack.enter_context(mock.patch.object(kind, "__post_init__", return_value=None))
        stack.enter_context(mock.patch.object(geometry.Rigid3Array, "identity", identity_in_float64))
        yield


def _given_rows(_: Any, batch: dict[str, Any], max_seq: int) -> dict[str, Any]:
    order = batch["draw_order"]
    for name in ("msa", "deletion_matrix", "msa_mask"):
        batch[f"extra_{name}"] = batch[name][order[max_seq:]]
        batch[name] = batch[name][order[:max_seq]]
    return batch


def _given_masking(batch: dict[str, Any], _: Any, __: Any) -> dict[str, Any]:
    return batch | {
        "true_msa": batch["msa"],
        "msa": batch["draw_masked_msa"],
        "bert_mask": batch["draw_bert_mask"],
    }


def _inverse(rigid: geometry.Rigid3Array) -> "_Inverse":
    return _Inverse(rigid)


class _Inverse:
    """The inverse of rigid motions, which subtracts before it rotates."""

    def __init__(self, rigid: geometry.Rigid3Array) -> None:
        self.rigid = rigid

    def apply_to_point(self, point: geometry.Vec3Array) -> geometry.Vec3Array:
        return self.rigid.rotation.apply_inverse_to_point(point - self.rigid.translation)
