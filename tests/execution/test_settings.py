"""What recompute replaces in a network, when iterations are captured, and what nested values and random inputs hold."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
import torch
from torch import Tensor, nn

from helixfold.execution import iteration_runner
from helixfold.execution.graphs import GraphCache
from helixfold.execution.iteration_runner import (
    EAGER,
    IterationRunner,
    bucket_size,
    graphs_unsupported_reason,
    runner_for,
)
from helixfold.execution.nested import tensors, with_tensors_changed
from helixfold.execution.random_inputs import random_batch, random_labels
from helixfold.execution.recompute import (
    EachUpdate,
    RecomputeConfig,
    Recomputed,
    ReusedDropoutMask,
    WithRecomputingOperators,
    is_recomputing,
    recompute,
    replace_method,
    restore_methods,
)
from helixfold.execution.slabs import Slabs
from helixfold.execution.whole import Whole
from helixfold.losses.labels import ComplexLabels
from helixfold.model.alphafold import AlphaFold
from helixfold.model.config import ConfigError
from helixfold.model.evoformer import EvoformerBlock
from helixfold.model.update import Update
from helixfold.ops.device_properties import DEVICE_MODELS
from tests.support.networks import tiny_model

NONE = RecomputeConfig.everywhere("none")


@pytest.fixture(scope="module")
def network() -> AlphaFold:
    return tiny_model().train()


@pytest.fixture
def model(network: AlphaFold) -> Iterator[AlphaFold]:
    yield network
    restore_methods(network)


def replaced(model: AlphaFold) -> dict[str, set[str]]:
    """The kinds of replacements in each part of the network, dropout masks aside."""
    found: dict[str, set[str]] = {}
    parts = {"evoformer": "evoformer", "extra_msa_stack": "extra_msa", "template_embedder": "template"}
    for name, module in model.named_modules():
        for value in vars(module).values():
            if isinstance(value, (WithRecomputingOperators, Recomputed, EachUpdate)):
                part = parts.get(name.split(".")[0], name)
                found.setdefault(part, set()).add(type(value).__name__)
    return found


@pytest.mark.parametrize("part", ["evoformer", "extra_msa", "template"])
@pytest.mark.parametrize(
    ("keep", "kind"),
    [("operators", "WithRecomputingOperators"), ("inputs", "EachUpdate"), ("block", "Recomputed"), ("none", None)],
)
def test_each_part_recomputes_what_its_own_setting_says(model: AlphaFold, part: str, keep: str, kind: str) -> None:
    recompute(model, replace(NONE, **{part: keep}))
    assert replaced(model) == ({part: {kind}} if kind else {})
    drawn = [name for name, module in model.named_modules() if "dropout_mask" in vars(module)]
    dropping = {name for name, each in model.named_modules() if isinstance(each, Update) and each.dropout_rate > 0}
    assert set(drawn) <= dropping
    assert bool(drawn) == (keep in ("inputs", "block"))


def test_the_structure_module_recomputes_iterations_or_its_updates(model: AlphaFold) -> None:
    recompute(model, replace(NONE, structure="block"))
    assert set(replaced(model)) == {"structure_module", "structure_module.angles"}
    restore_methods(model)
    assert not replaced(model)
    recompute(model, replace(NONE, structure="inputs"))
    assert set(replaced(model)) == {f"structure_module.{name}" for name in ("attention", "transition", "angles")}
    with pytest.raises(ConfigError, match=r"with auto cannot be applied: got .*structure auto"):
        recompute(model, replace(NONE, structure="auto"))


@pytest.mark.parametrize("keep", ["operators", "inputs", "block"])
def test_a_block_with_dropout_has_the_gradients_of_one_that_recomputes_nothing(model: AlphaFold, keep: Any) -> None:
    block = cast(EvoformerBlock, model.evoformer.blocks[0])
    msa = torch.randn(1, 3, 4, block.row_attention.norm.weight.numel(), requires_grad=True)
    pair = torch.randn(1, 4, 4, block.pair_transition.norm.weight.numel(), requires_grad=True)
    second_runs = []
    hook = block.triangle_ending.register_forward_pre_hook(lambda *_: second_runs.append(is_recomputing()))

    def gradients() -> list[Tensor]:
        torch.manual_seed(3)
        found = block(Whole(), msa, pair, torch.ones(1, 3, 4), torch.ones(1, 4, 4))
        torch.manual_seed(4)  # a second run must not draw its own
        loss = sum(each.square().sum() for each in found)
        return list(torch.autograd.grad(loss, [msa, pair, *block.parameters()], allow_unused=True))

    expected = gradients()
    recompute(model, replace(NONE, evoformer=keep))
    found = gradients()
    hook.remove()
    assert second_runs == [False, False, *([True] if keep != "operators" else [])]
    assert not is_recomputing()
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours is None) == (theirs is None)
        assert ours is None or torch.equal(ours, theirs)


def test_nothing_is_recomputed_without_gradients() -> None:
    module, runs = nn.Linear(2, 2), list[bool]()
    module.register_forward_pre_hook(lambda *_: runs.append(True))
    replace_method(module, "forward", Recomputed)
    with torch.no_grad():
        module(torch.ones(2))
    assert runs == [True]
    first, second = Recomputed(lambda: None)._both_runs()
    drawn = ReusedDropoutMask(iter([torch.ones(1), None, torch.zeros(1)]).__next__)
    with first:
        masks = [drawn(), drawn()]
    with second:
        assert [drawn(), drawn()] == masks
    assert (masks[0] == 1).all()
    assert (drawn() == 0).all()


class Captured:
    """Instead of graphs: every second computation counts as replayed."""

    def __init__(self) -> None:
        self.names: list[object] = []
        self.given: list[Any] = []
        self.cleared = 0

    @property
    def replays(self) -> int:
        return len(self.names) // 2

    def run(self, name: object, action: Any, given: Any) -> Any:
        self.names.append(name)
        self.given.append(given)
        return action(given)

    def clear(self) -> bool:
        self.cleared += 1
        return True


def test_short_whole_iterations_are_captured_and_the_first_recycles_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iteration_runner, "nothing_recycled", lambda *_: "zeros")
    graphs, replays = Captured(), []
    runner = IterationRunner(cast(GraphCache, graphs))
    model: Any = SimpleNamespace(training=False, config=None, fold=lambda *given: given)
    batch: Any = SimpleNamespace(aatype=torch.zeros(1, 256), msa_feat=torch.zeros(1, 5, 256), seq_mask=None)
    whole = Whole()
    with runner.reporting(lambda: replays.append(runner.replays)):
        for previous in (None, "earlier"):
            found = runner(model, whole, [batch], cast(Any, previous), torch.bfloat16)
            assert found == (whole, (batch,), previous or "zeros", torch.bfloat16)
    runner(model, whole, [batch], None, torch.float32)
    runner(model, whole, [batch], None, torch.float32)
    # Only the second was replayed while anyone listened.
    assert replays == [1]
    assert graphs.names == [(model, torch.bfloat16)] * 2 + [(model, torch.float32)] * 2
    longer: Any = SimpleNamespace(aatype=torch.zeros(1, 257), msa_feat=torch.zeros(1, 5, 257), seq_mask=None)
    slabs = Slabs()
    training = SimpleNamespace(**{**vars(model), "training": True})
    for network, run, each in ((model, whole, longer), (model, slabs, batch), (training, whole, batch)):
        assert runner(cast(Any, network), run, [each], None, torch.float32) == (run, [each], None, torch.float32)
    assert (len(graphs.names), graphs.cleared) == (4, 3)
    assert runner.captures(whole, 4, 128)
    assert not runner.captures(whole, 5, 128)
    assert not IterationRunner().captures(whole, 1, 16)
    assert not EAGER.clear()


def test_iterations_are_captured_on_gpus_unless_ranks_share_them_or_the_user_says_no() -> None:
    assert graphs_unsupported_reason(DEVICE_MODELS["h100"]) is None
    assert graphs_unsupported_reason(DEVICE_MODELS["h100"], "off") == "--cuda-graphs is off"
    assert graphs_unsupported_reason(DEVICE_MODELS["cpu"]) == "only NVIDIA GPUs have them"
    assert "exchange data" in str(graphs_unsupported_reason(DEVICE_MODELS["h100"], ranks=2))
    assert runner_for(torch.device("cpu")) is EAGER
    assert [bucket_size(count) for count in (1, 16, 17, 65, 127, 129, 257)] == [16, 16, 32, 80, 128, 160, 320]


class Pair(NamedTuple):
    left: Tensor
    right: object


@dataclass(frozen=True, kw_only=True)
class Holder:
    name: str
    values: dict[str, Any]


def test_tensors_are_found_and_changed_wherever_they_are() -> None:
    one, two, three = (torch.tensor(float(number)) for number in (1, 2, 3))
    nested = [Holder(name="x", values={"a": one, "b": (two, None)}), Pair(three, 5)]
    assert [float(each) for each in tensors(nested)] == [1, 2, 3]
    holder, pair = with_tensors_changed(lambda each: 10 * each, nested)
    assert holder == Holder(name="x", values={"a": 10 * one, "b": (20, None)})
    assert pair == Pair(10 * three, 5)
    assert isinstance(pair, Pair)


def test_random_complexes_have_two_equal_chains_with_true_atoms() -> None:
    batch = random_batch(7, 2, 3, 1, torch.device("cpu"), method="multimer")
    assert batch.asym_id.tolist() == batch.sym_id.tolist() == [[1, 1, 1, 2, 2, 2, 2]]
    assert batch.entity_id.tolist() == [[1] * 7]
    labels = random_labels(batch)
    assert isinstance(labels, ComplexLabels)
    # Each residue's counterparts in the first and in the second chain, which has a residue more.
    own = labels.all_atom_positions[0]
    assert torch.equal(labels.copies_positions[0, 0, [0, 1, 2, 3, 4, 5]], own[[0, 1, 2, 0, 1, 2]])
    assert torch.equal(labels.copies_positions[0, 1], own[[3, 4, 5, 3, 4, 5, 6]])
    has_atoms = labels.copies_mask[0].amax(-1)
    assert has_atoms.tolist() == [[1, 1, 1, 1, 1, 1, 0], [1] * 7]
    assert {field.name for field in fields(labels)} >= {"bert_mask", "true_msa"}
    assert labels.true_msa.shape == labels.bert_mask.shape == (1, 2, 7)
