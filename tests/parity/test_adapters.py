"""A network with an adapter gives what DeepMind's program gives with the parameters to which it was added."""

from pathlib import Path

import numpy as np
import pytest
import torch

from helixfold.execution.whole import Whole
from helixfold.model.alphafold import AlphaFold
from helixfold.model.presets import preset
from helixfold.training.finetune.adapted import FrozenParameters, LowRankTrained
from helixfold.weights.adapters import WeightedAdapter, read_adapter
from helixfold.weights.demonstration import NAME, WEIGHTS
from helixfold.weights.files import merge
from helixfold.weights.load import load_weights
from scripts.parity.make_adapter_case import LOW_RANK, random_adapter
from tests.parity.cases import DATA, batch_from_deepmind, deviation, outputs_as_deepmind
from tests.parity.trained_ranges import demonstration_config

pytestmark = pytest.mark.parity
Arrays = dict[str, np.ndarray]
CASE = DATA / "adapter.npz"


@torch.no_grad()
def outputs(model: AlphaFold) -> Arrays:
    read = {name[3:]: value[0] for name, value in np.load(CASE).items() if name.startswith("in:")}
    return outputs_as_deepmind(model.eval()(Whole(), [batch_from_deepmind(read)]))


def check(model: AlphaFold) -> None:
    found = outputs(model)
    for name, expected in np.load(CASE).items():
        if name.startswith("out:"):
            assert deviation(found[name[4:]], expected) < 1e-4, name


def test_effective_weights_give_deepminds_outputs_with_merged_ones(tmp_path: Path) -> None:
    state = load_weights(WEIGHTS, preset(NAME).model)
    base = FrozenParameters.of(state, demonstration_config(), WEIGHTS.name, torch.device("cpu"))
    trained = LowRankTrained(base, LOW_RANK, seed=0)
    trained.matrices.load_state_dict(read_adapter(random_adapter(tmp_path)).tensors)
    trained.apply()
    check(trained.model)
    trained.release()
    with pytest.raises(AssertionError, match="out:"):
        check(trained.model)


def test_so_does_the_merged_file(tmp_path: Path) -> None:
    merged = tmp_path / f"params_{NAME}.npz"
    merge(WEIGHTS, merged, [WeightedAdapter(path=random_adapter(tmp_path))])
    network = AlphaFold(demonstration_config())
    network.load_state_dict(load_weights(merged, network.config))
    check(network)
