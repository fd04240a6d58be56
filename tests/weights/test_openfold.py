import pickle
import re
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from data_pipeline.io.config import RestraintKind
from data_pipeline.io.errors import InputError
from helixfold.model.presets import preset
from helixfold.weights import alphafold, openfold
from helixfold.weights.load import load_weights
from helixfold.weights.openfold import current_name, read_pt, write_pt
from helixfold.weights.untrained import untrained_model

TINY = preset("tiny").model


@pytest.fixture(scope="module")
def state() -> dict[str, Tensor]:
    return untrained_model(TINY, seed=3).state_dict()


@pytest.fixture(scope="module")
def tensors(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return openfold.from_state_dict(state, TINY)


def assert_equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert tensor.dtype == right[name].dtype
        assert torch.equal(tensor, right[name]), name


def test_import_of_export_is_bit_equal(state: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
    assert_equal(openfold.to_state_dict(tensors, TINY), state)


def test_export_of_import_is_bit_equal(tensors: dict[str, Tensor]) -> None:
    assert_equal(openfold.from_state_dict(openfold.to_state_dict(tensors, TINY), TINY), tensors)


def test_a_network_of_complexes_is_written_and_read_bit_equal() -> None:
    config = preset("tiny_multimer").model
    state = untrained_model(config, seed=3).state_dict()
    tensors = openfold.from_state_dict(state, config)
    assert_equal(openfold.to_state_dict(tensors, config), state)
    pair = "evoformer.blocks.1.pair_stack"
    for theirs, ours in (("tri_mul_out", "triangle_outgoing.left"), ("tri_mul_in", "triangle_incoming.right")):
        fused = tensors[f"{pair}.{theirs}.linear_ab_p.weight"]
        assert torch.equal(fused.chunk(2)[0], state[f"evoformer.blocks.1.{ours}.weight"])


@pytest.mark.parametrize("kind", ["contacts", "distances"])
def test_alphalinks_checkpoints_are_read(kind: RestraintKind, tmp_path: Path) -> None:
    config = replace(TINY, template=None, restraints=kind)
    state = untrained_model(config, seed=3).state_dict()
    # Its version of OpenFold has other names, and template modules that its networks do not use.
    tensors = {"template_angle_embedder.linear_1.weight": torch.ones(2, 2)}
    for name, tensor in openfold.from_state_dict(state, config).items():
        tensors[name.replace(".pair_stack", "").replace("extra_msa_stack.", "extra_msa_stack.stack.")] = tensor
    write_pt(tmp_path / "alphalink.pt", tensors)
    assert_equal(openfold.to_state_dict(read_pt(tmp_path / "alphalink.pt"), config), state)
    weight = state["restraint_embedder.value.weight"]
    assert torch.equal(tensors["xl_embedder.linear.weight"], weight)
    assert weight.shape[1] == {"contacts": 1, "distances": 128}[kind]


def test_incoming_edges_keep_the_papers_names_there_and_deepminds_here(tensors: dict[str, Tensor]) -> None:
    arrays = alphafold.from_state_dict(openfold.to_state_dict(tensors, TINY), TINY)
    scope = f"{alphafold.SCOPE}/evoformer/evoformer_iteration"
    for side, there in (("outgoing", ("a", "b")), ("incoming", ("b", "a"))):
        for deepmind, letter in zip(("left", "right"), there, strict=True):
            array = arrays[f"{scope}/triangle_multiplication_{side}/{deepmind}_projection//weights"][1]
            name = f"evoformer.blocks.1.pair_stack.tri_mul_{side.removesuffix('going').removesuffix('coming')}"
            assert torch.equal(tensors[f"{name}.linear_{letter}_p.weight"], torch.from_numpy(array).T)


@pytest.mark.parametrize(
    "wrap",
    [
        pytest.param(lambda tensors: tensors, id="plain"),
        pytest.param(lambda tensors: {"state_dict": {f"model.{n}": t for n, t in tensors.items()}}, id="lightning"),
        pytest.param(lambda tensors: {"module": {f"module.model.{n}": t for n, t in tensors.items()}}, id="deepspeed"),
        pytest.param(
            lambda tensors: {
                "state_dict": {f"model.{n}": t + 1 for n, t in tensors.items()},
                "ema": {"params": tensors, "decay": 0.999},
            },
            id="average",
        ),
    ],
)
def test_checkpoints_are_unwrapped(
    wrap: Callable[[dict[str, Tensor]], dict[str, object]],
    state: dict[str, Tensor],
    tensors: dict[str, Tensor],
    tmp_path: Path,
) -> None:
    path = tmp_path / "openfold.pt"
    torch.save(wrap(tensors), path)
    assert_equal(load_weights(path, TINY), state)


def test_names_of_version_1_are_understood(
    state: dict[str, Tensor], tensors: dict[str, Tensor], tmp_path: Path
) -> None:
    old = {_old_name(name): tensor for name, tensor in tensors.items()}
    assert sum(name not in tensors for name in old) > 100
    write_pt(tmp_path / "old.pt", old)
    assert_equal(load_weights(tmp_path / "old.pt", TINY), state)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("template_angle_embedder.linear_1.weight", "template_embedder.template_single_embedder.linear_1.weight"),
        ("model.template_pair_stack.blocks.0.tri_mul_in.linear_z.bias", None),
        ("evoformer.blocks.3.core.msa_transition.linear_1.bias", "evoformer.blocks.3.msa_transition.linear_1.bias"),
        ("extra_msa_stack.blocks.0.core.tri_att_end.linear.weight", None),
        ("structure_module.ipa.linear_q_points.weight", "structure_module.ipa.linear_q_points.linear.weight"),
        ("structure_module.ipa.linear_kv_points.linear.bias", "structure_module.ipa.linear_kv_points.linear.bias"),
    ],
)
def test_old_names_become_current(old: str, new: str | None) -> None:
    name = current_name(old)
    assert new is None or name == new
    assert "core." not in name
    assert not name.startswith(("model.", "template_pair"))
    assert current_name(name) == name


def test_half_precision_comes_as_float32(state: dict[str, Tensor], tensors: dict[str, Tensor], tmp_path: Path) -> None:
    write_pt(tmp_path / "half.pt", {name: tensor.bfloat16() for name, tensor in tensors.items()})
    loaded = load_weights(tmp_path / "half.pt", TINY)
    assert_equal(loaded, {name: tensor.bfloat16().float() for name, tensor in state.items()})


class _Harmful:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("this ran",)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        pytest.param({"a": _Harmful()}, "tensors only", id="code"),
        pytest.param([torch.zeros(1)], "not contain a state dict", id="list"),
        pytest.param({"a": 3}, "'a' is not a tensor", id="number"),
        pytest.param({"a": torch.zeros(2, dtype=torch.int64)}, "floating-point", id="integers"),
        pytest.param({"a": torch.zeros(0)}, "floating-point", id="empty"),
        pytest.param({"a": torch.eye(2).to_sparse()}, "floating-point", id="sparse"),
        pytest.param({"model.a": torch.zeros(1), "a": torch.zeros(1)}, "twice", id="twice"),
    ],
)
def test_other_contents_are_refused(
    content: object, word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(content, tmp_path / "x.pt")
    with pytest.raises(InputError, match=word):
        read_pt(tmp_path / "x.pt")
    assert "this ran" not in capsys.readouterr().out


def test_files_before_the_zip_format_are_refused(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    torch.save(tensors, tmp_path / "x.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(InputError, match="damaged"):
        read_pt(tmp_path / "x.pt")


def test_a_bare_pickle_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.pt").write_bytes(pickle.dumps(_Harmful()))
    with pytest.raises(InputError):
        read_pt(tmp_path / "x.pt")
    assert "this ran" not in capsys.readouterr().out


def test_a_truncated_checkpoint_is_refused(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    write_pt(path, tensors)
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(InputError, match="damaged"):
        read_pt(path)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_mangled_pickle_is_refused_or_read(data: st.DataObject, tmp_path: Path) -> None:
    stored = torch.arange(1.0, 20)
    torch.save({"a.weight": stored[:15].clone().view(3, 5), "a.bias": stored[15:].clone()}, tmp_path / "x.pt")
    with zipfile.ZipFile(tmp_path / "x.pt") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = next(name for name in members if name.endswith("data.pkl"))
    content = bytearray(members[name])
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with zipfile.ZipFile(tmp_path / "mangled.pt", "w") as archive:
        for each, old in members.items():
            archive.writestr(each, bytes(content) if each == name else old)
    try:
        tensors = read_pt(tmp_path / "mangled.pt")
    except InputError as error:
        assert str(error).isprintable()
    else:
        # Names and shapes have no checksum. Whatever they are, the numbers come from the file.
        assert all(torch.isin(tensor, stored).all() for tensor in tensors.values())


def _old_name(name: str) -> str:
    name = re.sub(r"^template_embedder\.template_single_embedder\.", "template_angle_embedder.", name)
    name = re.sub(r"^template_embedder\.", "", name)
    name = re.sub(
        r"(^|\.)((?:evoformer|extra_msa_stack)\.blocks\.\d+\.)(msa_transition|outer_product_mean)\.",
        r"\1\2core.\3.",
        name,
    )
    name = name.replace(".pair_stack.", ".core.")
    return re.sub(r"(linear_k?v?q?_points)\.linear\.", r"\1.", name)
