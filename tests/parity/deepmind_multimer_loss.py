"""The losses of DeepMind's AlphaFold-Multimer, added up as in its structure module and its heads.

Its structure module refuses to compute them because its chains may come in another order than those of the truth; here
they come in the same one.
"""

from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
from alphafold.model import all_atom_multimer, folding_multimer, geometry, quat_affine

HEADS = ("distogram", "experimentally_resolved", "masked_msa", "predicted_aligned_error", "predicted_lddt")


def losses(
    config: ml_collections.ConfigDict, heads: dict[str, Any], result: dict[str, Any], batch: dict[str, Any]
) -> dict[str, Any]:
    """Return every term by the name of what computes it, and the weighted sum "total"."""
    structure = result["structure_module"]
    found = _structure_losses(config.heads.structure_module, structure, batch)
    positions = geometry.Vec3Array.from_array(batch["all_atom_positions"])
    true_frames, mask = folding_multimer.make_backbone_affine(positions, batch["all_atom_mask"], None)
    frames = geometry.Rigid3Array.from_array(structure["final_rigids"])
    value = result | {"structure_module": structure | {"final_affines": _affines(frames)}}
    given = batch | {"backbone_affine_tensor": _affines(true_frames), "backbone_affine_mask": mask}
    total = found["structure_module"]
    for name in HEADS:
        head_config, head = heads[name]
        # Two heads are given the outputs of all.
        found[name] = head.loss(value if name.startswith("predicted") else result[name], given)["loss"]
        total += head_config.weight * found[name]
    return found | {"total": total}


def _structure_losses(c: ml_collections.ConfigDict, value: dict[str, Any], batch: dict[str, Any]) -> dict[str, Any]:
    aatype, chain = batch["aatype"], batch["asym_id"]
    positions = geometry.Vec3Array.from_array(batch["all_atom_positions"])
    mask = all_atom_multimer.get_atom14_mask(aatype) * batch["seq_mask"][:, None]
    predicted = geometry.Vec3Array.from_array(value["final_atom14_positions"])
    frames, frames_mask = folding_multimer.make_backbone_affine(positions, batch["all_atom_mask"], aatype)
    atoms, atoms_mask, renamed = folding_multimer.compute_atom14_gt(
        aatype, positions, batch["all_atom_mask"], predicted
    )
    same = (chain[:, None] == chain[None]).astype(jnp.float32)
    backbone = [
        folding_multimer.backbone_loss(
            gt_rigid=frames,
            gt_frames_mask=frames_mask,
            gt_positions_mask=frames_mask,
            target_rigid=geometry.Rigid3Array.from_array(value["traj"]),
            config=settings,
            pair_mask=pairs,
        )[0]
        for settings, pairs in ((c.intra_chain_fape, same), (c.interface_fape, 1.0 - same))
    ]
    groups, groups_mask = folding_multimer.compute_frames(aatype, positions, batch["all_atom_mask"], renamed)
    sidechain = folding_multimer.sidechain_loss(
        gt_frames=groups,
        gt_frames_mask=groups_mask,
        gt_positions=atoms,
        gt_mask=atoms_mask,
        pred_frames=geometry.Rigid3Array.from_array(value["sidechains"]["frames"]),
        pred_positions=geometry.Vec3Array.from_array(value["sidechains"]["atom_pos"]),
        config=c,
    )["loss"]
    chi, chi_mask = all_atom_multimer.compute_chi_angles(positions, batch["all_atom_mask"], aatype)
    torsions, chi_loss, norm_loss = folding_multimer.supervised_chi_loss(
        sequence_mask=batch["seq_mask"],
        target_chi_mask=chi_mask,
        target_chi_angles=folding_multimer.get_renamed_chi_angles(aatype, chi, renamed),
        aatype=aatype,
        pred_angles=value["sidechains"]["angles_sin_cos"],
        unnormed_angles=value["sidechains"]["unnormalized_angles_sin_cos"],
        config=c,
    )
    violations = folding_multimer.find_structural_violations(
        aatype=aatype,
        residue_index=batch["residue_index"],
        mask=mask,
        pred_positions=predicted,
        config=c,
        asym_id=chain,
    )
    violation = folding_multimer.structural_violation_loss(mask, violations, c)
    share = c.sidechain.weight_frac
    return {
        "intra_chain_fape": backbone[0],
        "interface_fape": backbone[1],
        "sidechain_fape": sidechain,
        "chi_loss": chi_loss,
        "angle_norm_loss": norm_loss,
        "violation": violation,
        "structure_module": (1 - share) * sum(backbone) + share * sidechain + torsions + violation,
    }


def _affines(frames: geometry.Rigid3Array) -> Any:
    """Return frames as quaternions and translations, which the aligned-error head takes and passes no gradient to."""
    matrix = jax.lax.stop_gradient(frames.rotation.to_array())
    quaternion = quat_affine.rot_to_quat(matrix, unstack_inputs=True)
    return jnp.concatenate([quaternion, jax.lax.stop_gradient(frames.translation.to_array())], -1)
