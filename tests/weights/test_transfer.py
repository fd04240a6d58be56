"""A network for complexes takes a monomer's parameters over, and one sentence says what is new."""

from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from data_pipeline.io.errors import InputError
from helixfold.execution.whole import Whole
from helixfold.model.alphafold import AlphaFold
from helixfold.model.batch import Batch, MultimerBatch
from helixfold.model.config import ModelConfig
from helixfold.model.presets import preset, tiny, tiny_multimer
from helixfold.weights.checkpoint import save_checkpoint
from helixfold.weights.load import model_shapes
from helixfold.weights.transfer import initial_weights, multimer_parameters
from helixfold.weights.untrained import untrained_model
from tests.support.networks import random_batch, relative_error, tiny_config, with_every_parameter_random
from tests.weights.written import write_parameters

MONOMER, MULTIMER = tiny().model, tiny_multimer().model
# What AlphaFold-Multimer has and AlphaFold 2 has not.
NEW = {
    *(f"template_embedder.out.{kind}" for kind in ("weight", "bias")),
    *(f"template_embedder.pair.{name}.{kind}" for name in ("query", "x", "y", "z") for kind in ("weight", "bias")),
    *(f"template_embedder.pair.norm_query.{kind}" for kind in ("weight", "bias")),
    # The monomer has one bias for all features of a template.
    *(f"template_embedder.pair.{name}.bias" for name in ("has_beta", "column_type", "row_type", "has_backbone")),
}
UNUSED = {
    "structure_module.attention.query.bias",
    *(f"template_embedder.attention.{name}" for name in ("query.weight", "key.weight", "value.weight")),
    *(f"template_embedder.attention.out.{kind}" for kind in ("weight", "bias")),
}
EXTENDED = {"input_embedder.relative_position.weight", "template_embedder.angles.linear_1.weight"}


@pytest.fixture(scope="module")
def state() -> dict[str, Tensor]:
    return with_every_parameter_random(MONOMER, seed=4).state_dict()


@pytest.mark.parametrize("suffix", [".npz", ".pt", ".safetensors"])
def test_everything_with_a_counterpart_is_taken_from_every_format(
    suffix: str, state: dict[str, Tensor], tmp_path: Path
) -> None:
    found = initial_weights(write_parameters(tmp_path / f"mine{suffix}", state, MONOMER), MULTIMER)
    shapes = model_shapes(MULTIMER)
    assert set(found.new) == NEW
    assert set(found.unused) == UNUSED
    assert set(found.extended) == EXTENDED
    # The others are there, and those of equal name, layout and unit bit for bit.
    assert found.state.keys() == shapes.keys() - NEW | {name for name in NEW if ".out." in name}
    changed = {*found.converted, *found.extended, *found.new}
    assert all(torch.equal(found.state[name], state[name]) for name in shapes if name not in changed)
    assert any(name.startswith("evoformer.blocks.1.triangle_incoming.left") for name in shapes.keys() - changed)
    assert not any(found.state[f"template_embedder.out.{kind}"].any() for kind in ("weight", "bias"))
    # Every value of a converted tensor is one of the file's: only zeros for unknown inputs are not counted.
    zeros = sum(int((found.state[name] == 0).sum()) for name in found.extended)
    whole = sum(found.state[name].numel() for name in shapes if name not in NEW)
    assert found.taken == whole - zeros
    sentence = found.description("mine")
    assert sentence.startswith(f"starts from {found.taken:,} parameters of mine; new, with their initial values: ")
    assert "left out, without a counterpart here: " in sentence
    assert "\n" not in sentence
    for name in (*NEW, *UNUSED, *EXTENDED):
        assert name in sentence


def chain_alone(batch: Batch) -> MultimerBatch:
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    ones = torch.ones_like(batch.aatype)
    return MultimerBatch(
        **values | {"target_feat": batch.target_feat[..., 1:]}, asym_id=ones, entity_id=ones, sym_id=ones
    )


def test_a_chain_alone_is_folded_as_by_the_monomer() -> None:
    """With the outer product at the same place, and without the one bias that AlphaFold-Multimer does not have."""
    config = tiny_config("first")
    monomer = with_every_parameter_random(config, seed=7).eval()
    with torch.no_grad():
        monomer.structure_module.attention.query.bias.zero_()  # type: ignore[union-attr, operator]
    multimer = AlphaFold(MULTIMER).eval()
    given = multimer_parameters(monomer.state_dict(), config, MULTIMER)
    taken = {name: given[name] for name in model_shapes(MULTIMER) if name in given}
    multimer.load_state_dict(taken, strict=False)
    batch = random_batch(residues=17, templates=0)
    with torch.no_grad():
        first, ours = (model(Whole(), [each]) for model, each in ((monomer, batch), (multimer, chain_alone(batch))))
        again, recycled = (
            model(Whole(), [each], outputs.recycled())
            for model, each, outputs in ((monomer, batch, first), (multimer, chain_alone(batch), ours))
        )
    for expected, found in ((first, ours), (again, recycled)):
        assert relative_error(found.structure.positions, expected.structure.positions) < 1e-4
        assert relative_error(found.logits.distogram, expected.logits.distogram) < 1e-4
        assert relative_error(found.logits.masked_msa, expected.logits.masked_msa[..., :22]) < 1e-4
        assert relative_error(found.logits.lddt, expected.logits.lddt) < 1e-4
    assert float(first.structure.positions.abs().max()) > 3


def test_templates_of_a_chain_enter_the_first_maps_alike(state: dict[str, Tensor]) -> None:
    given = multimer_parameters(state, MONOMER, MULTIMER)
    pair = "template_embedder.pair"
    joined = torch.cat(
        [given[f"{pair}.{name}.weight"] for name in ("distances", "has_beta", "column_type", "row_type")], 1
    )
    weight = state[f"{pair}.linear.weight"]
    assert torch.equal(joined, weight[:, :84])
    assert torch.equal(given[f"{pair}.has_backbone.weight"], weight[:, 87:])
    assert torch.equal(given[f"{pair}.distances.bias"], state[f"{pair}.linear.bias"])


@pytest.mark.parametrize(
    ("source", "new"),
    [
        (replace(MONOMER, template=None), "template_embedder."),
        (replace(MONOMER, heads=replace(MONOMER.heads, aligned_error=False)), "heads.aligned_error."),
        (replace(MONOMER, evoformer=replace(MONOMER.evoformer, blocks=1)), "evoformer.blocks.1.*"),
        (replace(MULTIMER, evoformer=replace(MULTIMER.evoformer, blocks=1)), "evoformer.blocks.1.*"),
    ],
    ids=["no templates", "no aligned errors", "fewer blocks", "fewer blocks of a multimer"],
)
def test_what_a_file_lacks_is_new(source: ModelConfig, new: str, tmp_path: Path) -> None:
    given = with_every_parameter_random(source).state_dict()
    found = initial_weights(write_parameters(tmp_path / "x.safetensors", given, source), MULTIMER)
    assert any(name.startswith(new) for name in found.listing()["new"])
    assert new in found.description("x")
    named = {*found.state, *found.new}
    assert named == {*model_shapes(MULTIMER)}


def test_the_published_releases_differ_in_nothing_but_their_files() -> None:
    assert model_shapes(preset("model_1_multimer_v2").model) == model_shapes(preset("model_1_multimer_v3").model)


def test_another_release_is_taken_whole(tmp_path: Path) -> None:
    second = replace(MULTIMER, triangle_projections="separate")
    given = with_every_parameter_random(second).state_dict()
    found = initial_weights(write_parameters(tmp_path / "x.safetensors", given, second), MULTIMER)
    assert (found.new, found.unused, found.converted) == ((), (), ())
    assert all(torch.equal(found.state[name], given[name]) for name in given)


def test_a_file_that_does_not_fit_is_one_sentence(state: dict[str, Tensor], tmp_path: Path) -> None:
    wider = replace(MONOMER, c_z=64)
    path = write_parameters(tmp_path / "wide.safetensors", with_every_parameter_random(wider).state_dict(), wider)
    with pytest.raises(InputError, match=r"wide\.safetensors: .*cannot be taken over: c_z is 64 there and 32 here$"):
        initial_weights(path, MULTIMER)
    path = write_parameters(tmp_path / "wide.npz", with_every_parameter_random(wider).state_dict(), wider)
    with pytest.raises(InputError, match=r"wide\.npz: does not fit this model: .*; it does not fit any preset$"):
        initial_weights(path, MULTIMER)
    good = write_parameters(tmp_path / "good.safetensors", state, MONOMER)
    content = bytearray(good.read_bytes())
    content[-1] ^= 1
    (tmp_path / "bad.safetensors").write_bytes(content)
    with pytest.raises(InputError, match=r"bad\.safetensors: its tensors do not have the stored checksum") as caught:
        initial_weights(tmp_path / "bad.safetensors", MULTIMER)
    assert "\n" not in str(caught.value)
    # And no network for single chains begins with one for complexes.
    with pytest.raises(InputError, match="does not fit this model"):
        path = write_parameters(
            tmp_path / "m.safetensors", with_every_parameter_random(MULTIMER).state_dict(), MULTIMER
        )
        initial_weights(path, MONOMER)


def test_a_training_may_change_how_far_template_residues_move(tmp_path: Path) -> None:
    config = preset("small").model
    assert config.template is not None
    freely = replace(config, template=replace(config.template, update_factor=1.0, plddt_slope=0.5))
    path, state = tmp_path / "freely.safetensors", untrained_model(freely, 0).state_dict()
    save_checkpoint(path, state, freely.to_dict())
    found = initial_weights(path, config)
    assert found.taken == sum(tensor.numel() for tensor in state.values())
    assert found.listing() == {"new": [], "reshaped": [], "unused": [], "extended": [], "converted": []}
    other = replace(config, template=replace(config.template, update_factor=1.0, unit_vectors=False))
    with pytest.raises(InputError, match="is for another model"):
        initial_weights(path, other)


CHANGED = replace(
    MONOMER,
    evoformer=replace(MONOMER.evoformer, blocks=MONOMER.evoformer.blocks + 1),
    heads=replace(MONOMER.heads, lddt_bins=7, aligned_error=False),
)
AT_END = MONOMER.with_settings(["evoformer.outer_product=end", "extra_msa.outer_product=end"])
LAST = f"evoformer.blocks.{MONOMER.evoformer.blocks}."


@pytest.mark.parametrize("suffix", [".npz", ".pt", ".safetensors"])
def test_a_changed_network_starts_from_a_file_and_what_is_named_is_new(
    suffix: str, state: dict[str, Tensor], tmp_path: Path
) -> None:
    path = write_parameters(tmp_path / f"mine{suffix}", state, MONOMER)
    found = initial_weights(path, CHANGED, [f"{LAST}*", "heads.lddt.*"])
    shapes = model_shapes(CHANGED)
    assert set(found.new) == {name for name in shapes if name.startswith(LAST)}
    assert set(found.reshaped) == {f"heads.lddt.out.{kind}" for kind in ("weight", "bias")}
    assert set(found.unused) == {name for name in state if name.startswith("heads.aligned_error.")}
    assert found.state.keys() == shapes.keys() - {*found.new, *found.reshaped}
    assert all(torch.equal(tensor, state[name]) for name, tensor in found.state.items())
    assert found.taken == sum(tensor.numel() for tensor in found.state.values())
    assert f"new, with their initial values: {LAST}*; " in found.description("mine")
    assert "because they have another shape there: heads.lddt.out.weight, " in found.description("mine")
    assert "left out, without a counterpart here: heads.aligned_error." in found.description("mine")


@pytest.mark.parametrize(
    ("patterns", "problem"),
    [
        ([f"{LAST}*"], r"it lacks heads\.lddt\.out\.weight, heads\.lddt\.out\.bias, or has them in another"),
        (["heads.lddt.*"], rf"it lacks {LAST}\S+, (\S+ ){{4}}and \d+ more, or has them"),
        (["heads.*", "evoformer.blokcs.*"], "'evoformer.blokcs.*' matches no parameter of the network"),
    ],
)
def test_what_is_new_without_being_named_is_an_error(
    patterns: list[str], problem: str, state: dict[str, Tensor], tmp_path: Path
) -> None:
    path = write_parameters(tmp_path / "x.safetensors", state, MONOMER)
    with pytest.raises(InputError, match=problem):
        initial_weights(path, CHANGED, patterns)


def test_parameters_of_another_meaning_are_not_taken_over_by_name(state: dict[str, Tensor], tmp_path: Path) -> None:
    heads = replace(MONOMER.evoformer, msa_heads=2 * MONOMER.evoformer.msa_heads)
    path = write_parameters(tmp_path / "x.safetensors", state, MONOMER)
    with pytest.raises(InputError, match=r"cannot be taken over: evoformer\.msa_heads is \d+ there and \d+ here"):
        initial_weights(path, replace(MONOMER, evoformer=heads), ["evoformer.*"])


def test_a_changed_network_is_advised_to_name_its_new_parameters(state: dict[str, Tensor], tmp_path: Path) -> None:
    path = write_parameters(tmp_path / "x.safetensors", state, MONOMER)
    with pytest.raises(
        InputError,
        match=r"; if you changed the network, pass its new parameters with --new-parameters; if not, choose a preset "
        r"that it fits: tiny$",
    ):
        initial_weights(path, CHANGED)
    with pytest.raises(
        InputError, match=r"outer_product is 'middle' there and 'end' here.*; if you changed "
    ) as caught:
        initial_weights(path, AT_END)
    # The advice, taken literally, is right.
    found = initial_weights(path, AT_END, [str(caught.value).split()[-1]])
    assert all(torch.equal(found.state[name], tensor) for name, tensor in state.items())
