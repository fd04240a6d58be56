"""Adapter files are read whole or not at all, and their words on the command line are understood."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from data_pipeline.io.errors import InputError
from helixfold.weights.adapters import (
    FORMAT,
    VERSION,
    AdapterCard,
    WeightedAdapter,
    parse_adapters,
    read_adapter,
    save_adapter,
    with_adapters,
)
from helixfold.weights.find import find_models
from helixfold.weights.low_rank import LORA_A, LORA_B, LowRankConfig, effective_weight
from helixfold.weights.tensor_file import digest_of, write_tensors

STATE = {"map.weight": torch.arange(6.0).reshape(2, 3), "map.bias": torch.ones(2)}
TENSORS = {f"map.{LORA_A}": torch.tensor([[1.0, 2.0, 3.0]]), f"map.{LORA_B}": torch.tensor([[0.5], [-1.0]])}
LOW_RANK = LowRankConfig(rank=1, alpha=2.0, targets="map")
CARD = AdapterCard(kind="lora", base=digest_of(STATE), base_name="base.npz", low_rank=LOW_RANK, training={"seed": 3})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "adapter.safetensors"
    save_adapter(path, TENSORS, CARD)
    return path


def test_what_is_written_is_read_and_equal_adapters_are_equal_files(file: Path, tmp_path: Path) -> None:
    found = read_adapter(file)
    assert found.card == CARD
    assert all(torch.equal(found.tensors[name], tensor) for name, tensor in TENSORS.items())
    save_adapter(tmp_path / "again.safetensors", TENSORS, CARD)
    assert (tmp_path / "again.safetensors").read_bytes() == file.read_bytes()


def test_an_adapter_as_weights_is_an_error_with_its_base(file: Path) -> None:
    with pytest.raises(InputError, match=r"is an adapter of base\.npz; pass it with --adapter"):
        find_models([], file, seed=0)
    # A damaged card is reported as such.
    save_file(TENSORS, file, metadata={"format": FORMAT, "version": VERSION, "card": "{}"})
    with pytest.raises(InputError, match="its card is damaged"):
        find_models([], file, seed=0)


def test_changes_are_weighted_and_added_up(file: Path) -> None:
    new = effective_weight(STATE["map.weight"], *TENSORS.values(), LOW_RANK.scale)
    alone, notes = with_adapters(STATE, [WeightedAdapter(path=file)], Path("base.npz"))
    assert torch.equal(alone["map.weight"], new)
    assert alone["map.bias"] is STATE["map.bias"]
    assert len(notes) == 1
    both, _ = with_adapters(STATE, [WeightedAdapter(path=file, weight=w) for w in (0.5, -2.0)], Path("base.npz"))
    torch.testing.assert_close(both["map.weight"], STATE["map.weight"] - 1.5 * (new - STATE["map.weight"]))


@given(place=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_no_changed_bit_is_taken_for_the_adapter(
    place: int, bit: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("bits") / "adapter.safetensors"
    save_adapter(path, TENSORS, CARD)
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= 1 << bit
    path.write_bytes(content)
    try:
        found = read_adapter(path)
    except InputError as error:
        assert "\n" not in str(error)
    else:  # a bit of the card, which is no number of the model
        assert all(torch.equal(found.tensors[name], tensor) for name, tensor in TENSORS.items())


@pytest.mark.parametrize(
    ("tensors", "metadata", "message"),
    [
        (TENSORS, {"format": "helixfold"}, "is not an adapter; pass a file written by `helixfold finetune`"),
        (TENSORS, {"version": "9"}, "has format version 9, and this helixfold reads 1; update helixfold"),
        ({"map.lora_a": torch.tensor([[float("nan")]])}, {}, "has numbers that are not finite"),
        (TENSORS, {"card": "{}"}, "its card is damaged"),
        (TENSORS, {"card": CARD.to_json().replace('"lora"', '"qlora"')}, "its card is damaged"),
    ],
)
def test_a_file_that_is_no_adapter_is_refused(
    tensors: dict[str, torch.Tensor], metadata: dict[str, str], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, tensors, {"format": FORMAT, "version": VERSION, "card": CARD.to_json(), **metadata})
    with pytest.raises(InputError, match=message):
        read_adapter(path)


def test_tensors_that_do_not_fit_their_card_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_adapter(path, {**TENSORS, f"map.{LORA_B}": torch.ones(5, 1)}, CARD)
    with pytest.raises(InputError, match="its tensors do not fit the parameters named in its card"):
        with_adapters(STATE, [WeightedAdapter(path=path)], Path("base.npz"))


def test_words_name_files_and_weights(tmp_path: Path) -> None:
    strange = tmp_path / "a=1"
    strange.touch()
    found = parse_adapters(["one.safetensors,two.safetensors=0.5", f"{strange}, three.safetensors=-1"])
    assert [(each.path.name, each.weight) for each in found] == [
        ("one.safetensors", 1.0), ("two.safetensors", 0.5), ("a=1", 1.0), ("three.safetensors", -1.0),
    ]  # fmt: skip
    for word in ("a.safetensors=x", "a.safetensors=nan", "a.safetensors=1001"):
        with pytest.raises(InputError, match="weight"):
            parse_adapters([word])
