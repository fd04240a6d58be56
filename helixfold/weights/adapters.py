"""Adapter files: changes of one model's parameters by fine-tuning, with a card that describes the training.

An adapter is a safetensors file. It has the two matrices of each weight that LoRA changes, or new values of whole
parameters, such as the parameters of the heads. It fits only the parameters that it was trained on. `FORMAT` and
`VERSION` identify the kind of file in its metadata. `Kind` is whether it changes weights by LoRA, or the heads.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.json_files import parse_json
from helixfold.model.config import ConfigError
from helixfold.weights.low_rank import LORA_A, LORA_B, MAGNITUDE, LowRankConfig, effective_weight
from helixfold.weights.tensor_file import digest_of, open_tensors, read_metadata, read_tensors, write_tensors

FORMAT, VERSION = "helixfold adapter", "1"
Kind = Literal["lora", "heads"]
_KINDS: tuple[Kind, ...] = ("lora", "heads")


@dataclass(frozen=True, kw_only=True)
class AdapterCard:
    """Model card of an adapter: what it changes, and how it was trained.

    `base` is the SHA-256 of the parameters that it changes (`digest_of` their float32 state dict), and `base_name` the
    name of their file. `low_rank` has the settings of LoRA. `training` has the training set, the held-out chains, the
    seed and the steps. `scores` has the mean scores of the held-out chains before and after training.
    """

    kind: Kind
    base: str
    base_name: str
    low_rank: LowRankConfig | None = None
    training: Mapping[str, Any] = field(default_factory=dict)
    scores: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the card as JSON text."""
        low_rank = None if self.low_rank is None else self.low_rank.to_dict()
        return json.dumps({**asdict(self), "low_rank": low_rank}, allow_nan=False, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "AdapterCard":
        """Read a card from JSON text. Raise ValueError, KeyError, TypeError or `ConfigError` if it is damaged."""
        values = parse_json(text)
        low_rank = values["low_rank"]
        return cls(
            kind=_KINDS[_KINDS.index(values["kind"])],
            base=str(values["base"]),
            base_name=str(values["base_name"]),
            low_rank=None if low_rank is None else LowRankConfig.from_dict(low_rank),
            training=dict(values["training"]),
            scores=dict(values["scores"]),
        )


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """An adapter read from a file; `sha256` is the digest of its tensors."""

    path: Path
    card: AdapterCard
    tensors: Mapping[str, Tensor]
    sha256: str  # of its tensors

    def changed(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the new values of the parameters that the adapter changes, by name, with a weight of 1.

        `state` has all original parameters, and is not changed. Raise `InputError` if they do not fit.
        """
        try:
            return changed_parameters(state, self.tensors, self.card.low_rank)
        except (KeyError, RuntimeError) as error:
            raise InputError.at(self.path, "its tensors do not fit the parameters named in its card") from error


@dataclass(frozen=True, kw_only=True)
class WeightedAdapter:
    """An adapter file and the factor by which its changes are multiplied."""

    path: Path
    weight: float = 1.0

    def __str__(self) -> str:
        return self.path.name if self.weight == 1 else f"{self.path.name} times {self.weight:g}"


def parse_adapters(words: Sequence[str]) -> tuple[WeightedAdapter, ...]:
    """Parse command-line arguments of the form FILE or FILE=WEIGHT, or several of these separated by commas.

    The default weight is 1. Raise `InputError` for a weight that is not a number from -1000 to 1000.
    """
    adapters = []
    for word in filter(None, (part.strip() for argument in words for part in argument.split(","))):
        name, equals, text = word.rpartition("=")
        try:
            weight = float(text) if equals and not os.path.exists(word) else 1.0
        except ValueError:
            raise InputError(
                f"an adapter must be FILE or FILE=WEIGHT with a number as weight, got {printable(word)}"
            ) from None
        if not -1000 <= weight <= 1000:
            raise InputError(f"the weight of an adapter must be from -1000 to 1000, got {printable(text)}")
        adapters.append(
            WeightedAdapter(path=Path(name if equals and not os.path.exists(word) else word), weight=weight)
        )
    return tuple(adapters)


def save_adapter(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], card: AdapterCard) -> None:
    """Write an adapter with its card atomically. Equal arguments give equal bytes."""
    write_tensors(Path(path), tensors, {"format": FORMAT, "version": VERSION, "card": card.to_json()})


def read_adapter(path: str | os.PathLike[str]) -> Adapter:
    """Read an adapter. Raise `InputError` if the file is not an adapter or is damaged."""
    path = Path(path)
    with open_tensors(path, FORMAT, VERSION, "is not an adapter; pass a file written by `helixfold finetune`") as file:
        tensors, metadata = read_tensors(path, file), file.metadata()
    if not all(torch.isfinite(tensor).all() for tensor in tensors.values()):
        raise InputError.at(path, "has numbers that are not finite; train the adapter again")
    return Adapter(path=path, card=_card(path, metadata), tensors=tensors, sha256=metadata["sha256"])


def read_card(path: Path) -> AdapterCard | None:
    """Read the card of an adapter without its tensors; None for a safetensors file of another format.

    Raise `InputError` if the file is damaged.
    """
    metadata = read_metadata(path)
    return _card(path, metadata) if metadata.get("format") == FORMAT else None


def _card(path: Path, metadata: Mapping[str, str]) -> AdapterCard:
    try:
        return AdapterCard.from_json(metadata.get("card", ""))
    except (ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
        raise InputError.at(path, f"its card is damaged ({printable(str(error))}); create the file again") from error


def changed_parameters(
    state: Mapping[str, Tensor], tensors: Mapping[str, Tensor], low_rank: LowRankConfig | None
) -> dict[str, Tensor]:
    """Return the new values of the parameters that an adapter changes, by names in the state dict.

    `state` has all original parameters, and `tensors` are the adapter's. `low_rank` has the settings of LoRA; without
    it `tensors` are the new values. Raise KeyError or RuntimeError if they do not fit the parameters.
    """
    if low_rank is None:
        for name, tensor in tensors.items():
            if state[name].shape != tensor.shape:
                raise RuntimeError(f"{name} has another shape")
        return dict(tensors)
    maps = [name.removesuffix(f".{LORA_A}") for name in tensors if name.endswith(f".{LORA_A}")]
    return {
        f"{name}.weight": effective_weight(
            state[f"{name}.weight"],
            tensors[f"{name}.{LORA_A}"],
            tensors[f"{name}.{LORA_B}"],
            low_rank.scale,
            tensors.get(f"{name}.{MAGNITUDE}"),
        )
        for name in maps
    }


def with_adapters(
    state: Mapping[str, Tensor], adapters: Sequence[WeightedAdapter], source: Path
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Read adapters, and return parameters with them added, and a note on each adapter for the output files.

    `state` has the parameters of the file `source`. The changes of each adapter are multiplied by its weight and
    summed. Raise `InputError` if an adapter was trained on other parameters.
    """
    merged, notes = dict(state), []
    digest = digest_of(state)
    for each in adapters:
        adapter = read_adapter(each.path)
        if adapter.card.base != digest:
            raise InputError.at(
                each.path,
                f"was trained on the parameters {printable(adapter.card.base_name)} (SHA-256 {adapter.card.base[:12]}) "
                f"and does not fit {printable(source.name)} ({digest[:12]}); pass its parameters with --weights",
            )
        for name, tensor in adapter.changed(state).items():
            if len(adapters) == 1 and each.weight == 1:
                merged[name] = tensor  # exactly as in training
            else:
                merged[name] = merged[name] + each.weight * (tensor - state[name])
        notes.append(
            f"The adapter {printable(each.path.name)} (SHA-256 {adapter.sha256[:12]}) was added to the parameters, "
            f"with weight {each.weight:g}."
        )
    return merged, tuple(notes)
