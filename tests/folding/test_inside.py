"""What happens inside the network can be looked at by name."""

import re

import numpy as np
import pytest
import torch
from torch import Tensor

from data_pipeline.io.errors import InputError
from data_pipeline.pipeline import Target, prepare
from helixfold.benchmark.block import block_flops
from helixfold.execution.iteration_runner import IterationRunner
from helixfold.execution.random_inputs import random_batch
from helixfold.execution.slabs import Slabs
from helixfold.execution.whole import Whole
from helixfold.folding.inside import feature_shapes, module_costs, record_attention, run_block
from helixfold.model.alphafold import AlphaFold
from helixfold.model.presets import preset, tiny, tiny_multimer
from helixfold.model.update import Executor
from helixfold.ops.dispatch import recorded
from helixfold.weights.untrained import untrained_model
from tests.folding.test_prediction import prediction

R, S, E, T = 9, 5, 6, 1  # residues, MSA rows with the template's, extra rows, templates


@pytest.fixture(scope="module")
def network() -> AlphaFold:
    return untrained_model(tiny().model, 0)


def passed(network: AlphaFold, run: Executor) -> Tensor:
    torch.manual_seed(1)
    batch = random_batch(R, S - T, E, T, torch.device("cpu"))
    with torch.no_grad():
        return network.fold(run, [batch]).structure.positions


def test_weights_of_every_attention_sum_to_one_and_have_its_axes(network: AlphaFold) -> None:
    before = passed(network, Whole())
    with record_attention(network) as maps:
        during = passed(network, Whole())
        assert maps == {}
    torch.testing.assert_close(during, before, rtol=0, atol=1e-3)
    shapes = {name: each.shape for name, each in maps.items()}
    assert shapes["evoformer.0.row"] == (S, 4, R, R)
    assert shapes["evoformer.1.column"] == (R, 4, S, S)
    assert shapes["evoformer.1.starting"] == shapes["evoformer.0.ending"] == (R, 4, R, R)
    assert shapes["extra_msa_stack.0.row"][0::2] == (E, R)
    assert shapes["extra_msa_stack.0.column"] == (R, 4, 1, E)
    assert shapes["structure_module.attention"][1:] == (R, R)
    assert [name for name in shapes if name.startswith("template_embedder")]
    for name, each in maps.items():
        np.testing.assert_allclose(each.sum(-1), 1, atol=1e-5, err_msg=name)
        assert (each >= 0).all()
    # Nothing is recorded afterwards.
    known = {name: each.copy() for name, each in maps.items()}
    passed(network, Whole())
    assert all((maps[name] == known[name]).all() for name in known)


def test_row_attention_is_the_softmax_of_its_queries_and_keys(network: AlphaFold) -> None:
    """Of the first block's inputs, by the paper's formula."""
    block, inputs = network.evoformer.blocks[0], []
    hook = block.register_forward_pre_hook(lambda _, given: inputs.append(given))
    with hook, record_attention(network, "evoformer.0.row") as maps:
        passed(network, Whole())
    assert [*maps] == ["evoformer.0.row"]
    _, msa, pair, *_ = inputs[0]
    update = block.row_attention
    x = torch.nn.functional.layer_norm(msa[0], msa.shape[-1:], update.norm.weight, update.norm.bias)
    query, key, _ = (x @ update.attention.qkv.affine.weight.T).unflatten(-1, (3, 4, -1)).unbind(-3)
    z = torch.nn.functional.layer_norm(pair[0], pair.shape[-1:], update.pair_norm.weight, update.pair_norm.bias)
    bias = (z @ update.pair_bias.weight.T).permute(2, 0, 1)
    logits = torch.einsum("nihd,njhd->nhij", query, key) * query.shape[-1] ** -0.5 + bias
    np.testing.assert_allclose(maps["evoformer.0.row"], logits.softmax(-1).detach(), atol=1e-5)


def test_slabs_give_the_same_weights_and_the_mean_is_over_rows(network: AlphaFold) -> None:
    with record_attention(network, "*") as whole:
        passed(network, Whole())
    with record_attention(network, "*") as slabs:
        passed(network, Slabs(rows=2))
    assert whole.keys() == slabs.keys()
    for name, each in whole.items():
        np.testing.assert_allclose(slabs[name], each, atol=1e-4, err_msg=name)
    with record_attention(network, "evoformer.*", average_rows=True) as means:
        passed(network, Slabs(rows=2))
    assert len(means) == 8
    for name, each in means.items():
        np.testing.assert_allclose(each, whole[name].mean(0), atol=1e-4)


def test_the_last_recycling_iteration_is_recorded(network: AlphaFold) -> None:
    with record_attention(network, "evoformer.0.*") as twice:
        passed(network, Whole())
        passed(network, Whole())
    with record_attention(network, "evoformer.0.*") as once:
        passed(network, Whole())
    for name, each in once.items():
        np.testing.assert_array_equal(twice[name], each)


def test_an_unknown_name_is_refused_with_those_that_there_are(network: AlphaFold) -> None:
    problem = r"no attention is named 'evoformer\.7\.row'; the names are .*evoformer\.0\.row"
    with pytest.raises(InputError, match=problem), record_attention(network, "evoformer.7.row"):
        pass


def test_no_pass_is_replayed_while_attention_is_recorded(network: AlphaFold) -> None:
    class Never:
        replays = 0

        def clear(self) -> bool:
            return False

    torch.manual_seed(1)
    batch = random_batch(R, S, E, T, torch.device("cpu"))
    with record_attention(network, "evoformer.0.row") as maps, torch.no_grad():
        IterationRunner(Never())(network, Whole(), [batch], None, torch.float32)  # type: ignore[arg-type]
    assert maps


def test_a_block_runs_on_random_numbers_without_an_executor(network: AlphaFold) -> None:
    (msa, pair), (msa_after, pair_after) = run_block(network, block=1, residues=R, rows=S)
    block = network.evoformer.blocks[1]
    with torch.no_grad():
        expected = block(Whole(), msa, pair, torch.ones(1, S, R), torch.ones(1, R, R))
    assert (msa.shape, pair.shape) == ((1, S, R, 64), (1, R, R, 32))
    torch.testing.assert_close((msa_after, pair_after), expected)
    assert not torch.equal(msa, msa_after)
    torch.testing.assert_close(run_block(network, block=1, residues=R, rows=S)[0], (msa, pair), rtol=0, atol=0)


def test_parameters_and_flops_are_counted_by_module() -> None:
    table = module_costs("model_1", residues=32, rows=8, templates=0)
    costs = {name: (parameters, flops) for name, parameters, flops in table.rows}
    assert costs["evoformer"][1] == 48 * block_flops(32, 8)
    with torch.device("meta"):
        network = AlphaFold(preset("model_1").model)
    assert costs["network"][0] == sum(each.numel() for each in network.parameters())
    for name, _ in network.named_children():
        assert costs[name][0] == sum(each.numel() for each in network.get_submodule(name).parameters())
    parts = {name: each for name, each in costs.items() if name.startswith("evoformer.*.")}
    assert len(parts) == 9
    # Contexts, such as the bias of row attention by pairs, are counted with the stack.
    assert 0.99 * costs["evoformer"][1] < sum(flops for _, flops in parts.values()) <= costs["evoformer"][1]
    children = [flops for name, (_, flops) in costs.items() if "." not in name and name != "network" and flops != "-"]
    assert 0.9 * costs["network"][1] < sum(children) < costs["network"][1]
    # Products of embedders are counted with the network alone.
    assert costs["input_embedder"][1] == "-"


def test_costs_are_printed_as_a_table() -> None:
    table = module_costs("tiny_multimer", residues=16, rows=4, extra_rows=4, templates=1)
    first, *lines = repr(table).splitlines()
    assert first.split() == ["module", "parameters", "FLOPs"]
    total = sum(each.numel() for each in untrained_model(tiny_multimer().model, 0).parameters())
    assert lines[0].split()[:2] == ["network", f"{total:,}"]
    assert len({re.search(r"  \d", line).start() for line in lines[:2]}) == 1  # type: ignore[union-attr]


def test_features_have_names_and_shapes() -> None:
    features = prepare(Target(name="one", sequence="MKTAYIAKQR")).features
    shapes = {name: (shape, dtype) for name, shape, dtype in feature_shapes(features).rows}
    assert shapes["msa"] == ((1, 10), "int8")
    assert shapes["template_all_atom_positions"] == ((0, 10, 37, 3), "float32")
    assert feature_shapes(prediction(features=features)) == feature_shapes(features)
    with pytest.raises(InputError, match="were not read with it"):
        feature_shapes(prediction())


def test_operators_outside_of_the_recorded_attention_keep_their_backends(network: AlphaFold) -> None:
    with record_attention(network, "evoformer.0.row"), recorded() as calls:
        passed(network, Whole())
    assert {"triangle_update", "transition"} & {operator.name for operator, _ in calls}
