"""Cases computed by DeepMind's program: their parameters, features and outputs, as this project's types."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from helixfold.model.alphafold import AlphaFold
from helixfold.model.batch import Batch, MultimerBatch
from helixfold.model.config import HeadsConfig, ModelConfig, StackConfig, StructureConfig, TemplateConfig
from helixfold.model.geometry.rigid import rigid_from_tensor
from helixfold.model.outputs import Outputs, PredictedStructure, Recycled
from helixfold.ops.precision import to_float32
from helixfold.weights.load import load_weights
from tests.parity import parameters
from tests.parity.spec import Spec
from tests.parity.trained_ranges import demonstration_config, demonstration_parameters, scaled

DATA = Path(__file__).parent / "data"
SMALL_CASES = sorted(path.parent.name for path in DATA.glob("*/outputs.npz"))


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run of DeepMind's program: a draw for every pass, what passes after the first got, what the last gave."""

    name: str
    folder: Path
    meta: dict[str, Any]
    batches: list[Batch]
    recycled: list[Recycled]
    outputs: dict[str, np.ndarray]

    @property
    def is_multimer(self) -> bool:
        return bool(self.meta["spec"]["kind"] == "multimer")

    @property
    def recycle_tolerance(self) -> float:
        """Change of distances in Angstrom below which recycling ends; 0 where it never does."""
        return float(self.meta["spec"].get("tolerance", 0.0))

    @property
    def config(self) -> ModelConfig:
        return case_config(self.meta.get("spec", {}).get("channels", "full"), self.meta["config"])

    def parameters(self) -> dict[str, np.ndarray]:
        """The case's parameters under DeepMind's names."""
        shapes = json.loads((self.folder / "params_manifest.json").read_text())["shapes"]
        factors = dict(np.load(path)) if (path := self.folder / "range_factors.npz").exists() else {}
        if not factors:
            return parameters.from_manifest(self.folder / "params_manifest.json")
        return case_parameters(stored_spec(self.meta), shapes, self.meta["config"], factors)

    def model(self, scratch: Path) -> AlphaFold:
        """The network with the case's parameters, read through the same door as a user's download."""
        path = scratch / f"params_{self.name}.npz"
        np.savez(path, **self.parameters())
        model = AlphaFold(self.config).eval()
        model.load_state_dict(load_weights(path, self.config))
        return model

    def tolerance(self, name: str) -> float:
        """Largest deviation allowed, in units of the array's largest value."""
        noise = self.meta["float32_noise"].get(name, {"max_abs": 0.0, "max": 1.0})
        return max(1e-4, 3 * noise["max_abs"] / max(noise["max"], 1e-12))


def stored_spec(meta: Mapping[str, Any]) -> Spec:
    """Return the settings that the `meta.json` of a case has; older cases lack newer settings."""
    known = {field.name for field in fields(Spec)}
    return Spec(**{name: value for name, value in meta["spec"].items() if name in known})


def case_config(channels: str, settings: dict[str, Any]) -> ModelConfig:
    """Return our configuration of a case with such channels (`Spec.channels`), from DeepMind's nested one."""
    return demonstration_config() if channels == "demonstration" else config_from_deepmind(settings)


def case_parameters(
    spec: Spec,
    shapes: Mapping[str, Sequence[int]],
    settings: dict[str, Any],
    factors: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """Return a case's parameters under DeepMind's names, scaled by `factors` if there are any."""
    if spec.channels == "demonstration":
        found = demonstration_parameters()
    else:
        found = parameters.draw_parameters(shapes, spec.seed)
    return scaled(found, case_config(spec.channels, settings), factors) if factors else found


def read_case(folder: Path) -> Case:
    features = dict(np.load(folder / "features.npz"))
    draws = range(len(features["aatype"]))
    return Case(
        name=folder.name,
        folder=folder,
        meta=json.loads((folder / "meta.json").read_text()),
        batches=[batch_from_deepmind({name: value[draw] for name, value in features.items()}) for draw in draws],
        recycled=_recycled(folder / "recycle_inputs.npz"),
        outputs=dict(np.load(folder / "outputs.npz")),
    )


def _recycled(path: Path) -> list[Recycled]:
    arrays = {name: torch.from_numpy(value)[None] for name, value in np.load(path).items()} if path.exists() else {}
    return [
        Recycled(
            msa_first_row=arrays[f"recycle{number}/prev_msa_first_row"],
            pair=arrays[f"recycle{number}/prev_pair"],
            positions=arrays[f"recycle{number}/prev_pos"],
        )
        for number in range(1, len(arrays) // 3 + 1)
    ]


def outputs_as_deepmind(outputs: Outputs) -> dict[str, np.ndarray]:
    """Our outputs of one target under the names and in the layout of a monomer's `outputs.npz`."""
    return _arrays(_named(outputs))


def multimer_outputs_as_deepmind(outputs: Outputs) -> dict[str, np.ndarray]:
    """The same in the layout of a multimer's, which has frames as matrices."""
    return _arrays(multimer_tensors_as_deepmind(outputs))


def multimer_tensors_as_deepmind(outputs: Outputs) -> dict[str, Tensor]:
    """The same as tensors, through which gradients can flow."""
    named = _named(outputs)
    rigid = rigid_from_tensor(outputs.structure.frames[:, 0])
    frames = torch.cat([rigid.rotation, rigid.translation[..., None]], -1)
    del named["structure_module/final_affines"]
    return named | {
        "structure_module/traj": frames,
        "structure_module/final_rigids": frames[-1],
        "structure_module/sidechains/frames": outputs.structure.rigid_groups[:, 0],
    }


def structure_as_deepmind(structure: PredictedStructure) -> dict[str, np.ndarray]:
    """The structure module's results of one target under DeepMind's names; its state is `single`."""
    return _arrays(_structure(structure))


def _named(outputs: Outputs) -> dict[str, Tensor]:
    logits = {
        "distogram": outputs.logits.distogram,
        "experimentally_resolved": outputs.logits.experimentally_resolved,
        "masked_msa": outputs.logits.masked_msa,
        "predicted_aligned_error": outputs.logits.aligned_error,
        "predicted_lddt": outputs.logits.lddt,
    }
    structure = _structure(outputs.structure)
    named = {f"{name}/logits": value[0] for name, value in logits.items() if value is not None}
    for name in ("msa", "msa_first_row", "pair", "single"):
        named[f"representations/{name}"] = getattr(outputs.representations, name)[0]
    named["representations/structure_module"] = structure.pop("single")
    return named | {f"structure_module/{name}": value for name, value in structure.items()}


def _structure(structure: PredictedStructure) -> dict[str, Tensor]:
    groups = structure.rigid_groups
    return {
        "single": structure.single[0],
        "final_affines": structure.frames[-1, 0],
        "final_atom14_mask": structure.atom14_mask[0],
        "final_atom14_positions": structure.atom14[-1, 0],
        "final_atom_mask": structure.mask[0],
        "final_atom_positions": structure.positions[0],
        "sidechains/angles_sin_cos": structure.torsions[:, 0],
        "sidechains/atom_pos": structure.atom14[:, 0],
        "sidechains/frames": torch.cat([groups[..., :3].flatten(-2), groups[..., 3]], -1)[:, 0],
        "sidechains/unnormalized_angles_sin_cos": structure.unnormalized_torsions[:, 0],
        "traj": structure.frames[:, 0],
    }


def _arrays(tensors: dict[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: to_float32(value.detach()).numpy() for name, value in tensors.items()}


def deviation(value: np.ndarray, expected: np.ndarray) -> float:
    """Largest deviation in units of the largest expected value; not a number if anything is not."""
    if value.shape != expected.shape:
        raise ValueError(f"cannot compare an array of shape {value.shape} with one of {expected.shape}")
    return float(np.abs(value - expected).max() / max(np.abs(expected).max(), 1e-12))


def real_part(name: str, value: np.ndarray, seq_mask: np.ndarray, msa_mask: np.ndarray) -> np.ndarray:
    """Return an output, by DeepMind's name, without padding residues and padding rows of the MSA."""
    residues, rows = seq_mask > 0, msa_mask.any(-1)
    count = len(residues)
    if name in ("representations/msa", "masked_msa/logits"):
        # Behind the sampled rows are those of the templates.
        rows = np.concatenate([rows, np.ones(len(value) - len(rows), bool)])
        return value[rows][:, residues]
    if name.startswith(("structure_module/traj", "structure_module/sidechains")):
        return value[:, residues]
    if value.shape[:2] == (count, count):
        return value[residues][:, residues]
    return value[residues] if value.shape[:1] == (count,) else value


def batch_from_deepmind(features: dict[str, np.ndarray]) -> Batch:
    """One draw of DeepMind's feature dictionary; templates may be absent."""
    residues = len(features["aatype"])
    absent = {
        "template_aatype": np.zeros((0, residues), np.int32),
        "template_all_atom_positions": np.zeros((0, residues, 37, 3), np.float32),
        "template_all_atom_masks": np.zeros((0, residues, 37), np.float32),
        "template_mask": np.zeros((0,), np.float32),
        "template_pseudo_beta": np.zeros((0, residues, 3), np.float32),
        "template_pseudo_beta_mask": np.zeros((0, residues), np.float32),
    }
    kind = MultimerBatch if "asym_id" in features else Batch
    wanted = {**absent, **{name: value for name, value in features.items() if name in kind.__dataclass_fields__}}
    return kind(
        **{
            name: torch.from_numpy(value.astype(np.int64 if value.dtype.kind == "i" else np.float32))[None]
            for name, value in wanted.items()
        }
    )


def config_from_deepmind(config: dict[str, Any]) -> ModelConfig:
    """DeepMind's nested configuration as ours."""
    trunk, heads = config["embeddings_and_evoformer"], config["heads"]
    is_multimer = config["global_config"].get("multimer_mode", False)

    def stack(blocks: int, c_m: int) -> StackConfig:
        updates = trunk["evoformer"]
        return StackConfig(
            blocks=blocks,
            c_m=c_m,
            msa_heads=updates["msa_row_attention_with_pair_bias"]["num_head"],
            pair_heads=updates["triangle_attention_starting_node"]["num_head"],
            c_outer=updates["outer_product_mean"]["num_outer_channel"],
            c_triangle=updates["triangle_multiplication_outgoing"]["num_intermediate_channel"],
            transition_factor=updates["msa_transition"]["num_intermediate_factor"],
            outer_product="first" if updates["outer_product_mean"].get("first") else "middle",
        )

    structure, lddt = heads["structure_module"], heads["predicted_lddt"]
    return ModelConfig(
        c_z=trunk["pair_channel"],
        c_s=trunk["seq_channel"],
        evoformer=stack(trunk["evoformer_num_block"], trunk["msa_channel"]),
        extra_msa=stack(trunk["extra_msa_stack_num_block"], trunk["extra_msa_channel"]),
        template=_template_config(trunk["template"]) if trunk["template"]["enabled"] else None,
        structure=StructureConfig(
            layers=structure["num_layer"],
            c=structure["num_channel"],
            heads=structure["num_head"],
            c_scalar=structure["num_scalar_qk"],
            query_points=structure["num_point_qk"],
            value_points=structure["num_point_v"],
            c_angles=structure["sidechain"]["num_channel"],
            angle_blocks=structure["sidechain"]["num_residual_block"],
            position_scale=structure.get("position_scale", 10.0),
        ),
        heads=HeadsConfig(
            distogram_bins=heads["distogram"]["num_bins"],
            lddt_bins=lddt["num_bins"],
            c_lddt=lddt["num_channels"],
            aligned_error=heads.get("predicted_aligned_error", {}).get("weight", 0) > 0,
            masked_msa_letters=22 if is_multimer else 23,
        ),
        method="multimer" if is_multimer else "monomer",
        triangle_projections="fused"
        if trunk["evoformer"]["triangle_multiplication_outgoing"].get("fuse_projection_weights")
        else "separate",
    )


def _template_config(template: dict[str, Any]) -> TemplateConfig:
    stack = template["template_pair_stack"]
    attention = stack["triangle_attention_starting_node"]
    config = TemplateConfig(
        blocks=stack["num_block"],
        # A multimer's averages templates instead of attending to them.
        c_t=template["num_channels"] if "num_channels" in template else attention["value_dim"],
        pair_heads=attention["num_head"],
        c_triangle=stack["triangle_multiplication_outgoing"]["num_intermediate_channel"],
        transition_factor=stack["pair_transition"]["num_intermediate_factor"],
        max_templates=template["max_templates"],
    )
    pointwise = template["attention"]
    if "value_dim" not in pointwise:
        return config
    return replace(config, attention_heads=pointwise["num_head"], attention_channels=pointwise["value_dim"])
