"""Small networks and inputs that tests share."""

from dataclasses import fields, replace
from typing import TypeVar

import numpy as np
import torch

from helixfold.execution.nested import with_tensors_changed
from helixfold.losses.labels import Labels
from helixfold.model.alphafold import AlphaFold
from helixfold.model.batch import Batch, MultimerBatch
from helixfold.model.config import ModelConfig, OuterProductPosition, StackConfig
from helixfold.model.presets import tiny, tiny_multimer
from helixfold.weights.untrained import untrained_model

Tensors = TypeVar("Tensors", Batch, Labels)


def to_device(values: Tensors, device: torch.device | str) -> Tensors:
    return with_tensors_changed(lambda tensor: tensor.to(device), values)


def without_templates(batch: Batch) -> Batch:
    """The same sample without templates, instead of with masked ones."""
    names = [name for name in batch.__dataclass_fields__ if name.startswith("template_")]
    return replace(batch, **{name: getattr(batch, name)[:, :0] for name in names if getattr(batch, name) is not None})


def tiny_model(outer_product: OuterProductPosition = "middle", seed: int = 0) -> AlphaFold:
    """A tiny network whose every parameter is random, biases and norms too."""
    return with_every_parameter_random(tiny_config(outer_product), seed)


def with_every_parameter_random(config: ModelConfig, seed: int = 0) -> AlphaFold:
    model = untrained_model(config, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def tiny_config(outer_product: OuterProductPosition = "middle") -> ModelConfig:
    config = tiny().model

    def placed(stack: StackConfig) -> StackConfig:
        return replace(stack, outer_product=outer_product)

    return replace(config, evoformer=placed(config.evoformer), extra_msa=placed(config.extra_msa))


def tiny_multimer_config(outer_product: OuterProductPosition = "first") -> ModelConfig:
    config = tiny_multimer().model

    def placed(stack: StackConfig) -> StackConfig:
        return replace(stack, outer_product=outer_product)

    return replace(config, evoformer=placed(config.evoformer), extra_msa=placed(config.extra_msa))


def random_complex(chains: str = "ABA", residues: int = 13, seed: int = 0, templates: int = 2) -> MultimerBatch:
    """One sample of a complex, whose last template is empty; `chains` has a letter for each chain, equal for copies."""
    batch = random_batch(residues=residues, templates=templates, seed=seed)
    lengths = [len(part) for part in np.array_split(np.arange(residues), len(chains))]
    ids = {
        "asym_id": range(1, len(chains) + 1),
        "entity_id": [sorted(set(chains)).index(letter) + 1 for letter in chains],
        "sym_id": [chains[: place + 1].count(letter) for place, letter in enumerate(chains)],
    }
    present = torch.ones(1, templates)
    present[:, -1] = 0
    values = {field.name: getattr(batch, field.name) for field in fields(batch)} | {
        "residue_index": torch.cat([torch.arange(length) for length in lengths])[None],
        "target_feat": torch.nn.functional.one_hot(batch.aatype, 21).float(),
        "template_mask": present,
        "template_all_atom_masks": batch.template_all_atom_masks * present[..., None, None],
        "template_pseudo_beta_mask": batch.template_pseudo_beta_mask * present[..., None],
    }
    each = {name: torch.tensor(np.repeat(list(numbers), lengths))[None] for name, numbers in ids.items()}
    return MultimerBatch(**values, **each)


def random_batch(*, residues: int = 13, rows: int = 5, extra: int = 7, templates: int = 2, seed: int = 0) -> Batch:
    """One sample of plausible features: a compact random chain as every template, everything present."""
    random = np.random.default_rng(seed)
    target = random.integers(0, 20, residues)
    chain = np.cumsum(random.normal(size=(templates, residues, 1, 3)) * 2, 1) + random.normal(
        size=(templates, residues, 37, 3)
    )

    def floats(array: np.ndarray) -> torch.Tensor:
        return torch.tensor(array, dtype=torch.float32)[None]

    def integers(array: np.ndarray) -> torch.Tensor:
        return torch.tensor(array, dtype=torch.int64)[None]

    return Batch(
        aatype=integers(target),
        residue_index=integers(np.arange(residues)),
        seq_mask=floats(np.ones(residues)),
        target_feat=floats(np.eye(22)[target + 1]),
        msa_feat=floats(random.random((rows, residues, 49))),
        msa_mask=floats(np.ones((rows, residues))),
        extra_msa=integers(random.integers(0, 23, (extra, residues))),
        extra_has_deletion=floats(random.integers(0, 2, (extra, residues))),
        extra_deletion_value=floats(random.random((extra, residues))),
        extra_msa_mask=floats(np.ones((extra, residues))),
        template_aatype=integers(random.integers(0, 20, (templates, residues))),
        template_all_atom_positions=floats(chain),
        template_all_atom_masks=floats(np.ones((templates, residues, 37))),
        template_mask=floats(np.ones(templates)),
        template_pseudo_beta=floats(chain[:, :, 3]),
        template_pseudo_beta_mask=floats(np.ones((templates, residues))),
    )


def relative_error(value: torch.Tensor, reference: torch.Tensor) -> float:
    """Largest deviation in units of the reference's largest value."""
    value, reference = value.detach().double(), reference.detach().double()
    return float((value - reference).abs().max() / reference.abs().max().clamp(min=1e-12))
