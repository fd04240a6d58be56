"""Cases computed by DeepMind's program: their parameters, features and outputs, as this project's types."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from helixfold.batch import Batch
from helixfold.config import HeadsConfig, ModelConfig, StackConfig, StructureConfig, TemplateConfig
from helixfold.model.alphafold import AlphaFold
from helixfold.weights.load import load_weights
from tests.parity import parameters

DATA = Path(__file__).parent / "data"
SMALL_CASES = sorted(path.parent.name for path in DATA.glob("*/outputs.npz"))


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run of DeepMind's program."""

    name: str
    folder: Path
    meta: dict[str, Any]
    batches: list[Batch]
    outputs: dict[str, np.ndarray]

    @property
    def config(self) -> ModelConfig:
        return config_from_deepmind(self.meta["config"])

    def model(self, scratch: Path) -> AlphaFold:
        """The network with the case's parameters, read through the same door as a user's download."""
        path = scratch / f"params_{self.name}.npz"
        np.savez(path, **parameters.from_manifest(self.folder / "params_manifest.json"))
        model = AlphaFold(self.config).eval()
        expected = {name: tuple(value.shape) for name, value in model.state_dict().items()}
        model.load_state_dict(load_weights(path, expected))
        return model

    def tolerance(self, name: str) -> float:
        """Largest deviation allowed, in units of the array's largest value."""
        noise = self.meta["float32_noise"].get(name, {"max_abs": 0.0, "max": 1.0})
        return max(1e-4, 3 * noise["max_abs"] / max(noise["max"], 1e-12))


def read_case(folder: Path) -> Case:
    features = dict(np.load(folder / "features.npz"))
    return Case(
        name=folder.name,
        folder=folder,
        meta=json.loads((folder / "meta.json").read_text()),
        batches=[batch_from_deepmind({k: v[draw] for k, v in features.items()}) for draw in range(len(features["aatype"]))],
        outputs=dict(np.load(folder / "outputs.npz")),
    )


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
    wanted = {**absent, **{name: value for name, value in features.items() if name in Batch.__dataclass_fields__}}
    return Batch(
        **{
            name: torch.from_numpy(value.astype(np.int64 if value.dtype.kind == "i" else np.float32))[None]
            for name, value in wanted.items()
        }
    )


def config_from_deepmind(config: dict[str, Any]) -> ModelConfig:
    """DeepMind's nested configuration as ours."""
    trunk, heads = config["embeddings_and_evoformer"], config["heads"]

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

    template = trunk["template"]
    structure, lddt = heads["structure_module"], heads["predicted_lddt"]
    return ModelConfig(
        c_z=trunk["pair_channel"],
        c_s=trunk["seq_channel"],
        evoformer=stack(trunk["evoformer_num_block"], trunk["msa_channel"]),
        extra_msa=stack(trunk["extra_msa_stack_num_block"], trunk["extra_msa_channel"]),
        template=TemplateConfig(
            blocks=template["template_pair_stack"]["num_block"],
            c_t=template["template_pair_stack"]["triangle_attention_starting_node"]["value_dim"],
            pair_heads=template["template_pair_stack"]["triangle_attention_starting_node"]["num_head"],
            c_triangle=template["template_pair_stack"]["triangle_multiplication_outgoing"]["num_intermediate_channel"],
            transition_factor=template["template_pair_stack"]["pair_transition"]["num_intermediate_factor"],
            attention_heads=template["attention"]["num_head"],
            attention_channels=template["attention"]["value_dim"],
            max_templates=template["max_templates"],
        )
        if template["enabled"]
        else None,
        structure=StructureConfig(
            layers=structure["num_layer"],
            c=structure["num_channel"],
            heads=structure["num_head"],
            c_scalar=structure["num_scalar_qk"],
            query_points=structure["num_point_qk"],
            value_points=structure["num_point_v"],
            c_angles=structure["sidechain"]["num_channel"],
            angle_blocks=structure["sidechain"]["num_residual_block"],
        ),
        heads=HeadsConfig(
            distogram_bins=heads["distogram"]["num_bins"],
            lddt_bins=lddt["num_bins"],
            c_lddt=lddt["num_channels"],
            aligned_error=heads.get("predicted_aligned_error", {}).get("weight", 0) > 0,
        ),
    )
