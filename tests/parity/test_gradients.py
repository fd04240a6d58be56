"""Gradients of AlphaFold-Multimer's network equal DeepMind's, for every parameter and for what it reads."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from helixfold.execution.recompute import RecomputeConfig, recompute
from helixfold.execution.whole import Whole
from helixfold.model.outputs import Recycled
from helixfold.weights.alphafold import from_state_dict
from tests.parity.cases import DATA, Case, batch_from_deepmind, multimer_tensors_as_deepmind
from tests.parity.gradient_probe import READ, probe, recycled_input, sampled

pytestmark = pytest.mark.parity

CASES = sorted(path.parent.name for path in DATA.glob("multimer_*_gradients/gradients.npz"))


def read_gradient_case(name: str) -> Case:
    folder = DATA / name
    features = {name: value[0] for name, value in np.load(folder / "features.npz").items()}
    return Case(
        name=name,
        folder=folder,
        meta=json.loads((folder / "meta.json").read_text()),
        batches=[batch_from_deepmind(features)],
        recycled=[],
        outputs=dict(np.load(folder / "gradients.npz")),
    )


def found_gradients(case: Case, scratch: Path, *, recomputed: bool) -> tuple[float, dict[str, np.ndarray]]:
    """Return the number and its gradients by DeepMind's names."""
    model, config = case.model(scratch), case.config
    if recomputed:
        recompute(model, RecomputeConfig.everywhere("inputs"))
    batch = case.batches[0]
    drawn = recycled_input(batch.aatype.shape[1], config.evoformer.c_m, config.c_z)
    recycled = {name: torch.from_numpy(value)[None].requires_grad_() for name, value in drawn.items()}
    read = {
        "msa_feat": batch.msa_feat.requires_grad_(),
        "template_all_atom_positions": batch.template_all_atom_positions.requires_grad_(),
        **recycled,
    }
    previous = Recycled(
        msa_first_row=recycled["prev_msa_first_row"], pair=recycled["prev_pair"], positions=recycled["prev_pos"]
    )
    outputs = multimer_tensors_as_deepmind(model(Whole(), [replace(batch)], previous))
    weights = probe({name: value.detach().numpy() for name, value in outputs.items()})
    value = torch.stack([(outputs[name] * torch.from_numpy(each)).sum() for name, each in weights.items()]).sum()
    value.backward()
    # The extra MSA after its last block's outer product mean, which comes first, is not used.
    gradients = {
        name: torch.zeros_like(each) if each.grad is None else each.grad for name, each in model.named_parameters()
    }
    found = from_state_dict(gradients, model.config)
    for name in READ:
        gradient = read[name].grad
        assert gradient is not None, name
        found[f"input/{name}"] = gradient[0].numpy()
    return value.item(), found


def test_there_are_cases_of_all_three_releases() -> None:
    assert CASES == ["multimer_v1_gradients", "multimer_v2_gradients", "multimer_v3_gradients"]


@pytest.mark.parametrize(
    "recomputed", [pytest.param(False, marks=pytest.mark.long, id="stored"), pytest.param(True, id="recomputed")]
)
@pytest.mark.parametrize("name", CASES)
def test_every_gradient_equals_deepminds(name: str, recomputed: bool, tmp_path: Path) -> None:
    case = read_gradient_case(name)
    value, found = found_gradients(case, tmp_path, recomputed=recomputed)
    assert value == pytest.approx(case.meta["exact_value"], rel=1e-4)
    assert found.keys() == case.outputs.keys()
    failures = []
    for each, expected in case.outputs.items():
        largest = max(case.meta["float32_noise"][each]["max"], 1e-12)
        # DeepMind's program gives no number for atoms that a template lacks, ours 0 or next to it.
        known = ~np.isnan(expected)
        assert known.all() or each == "input/template_all_atom_positions"
        assert np.isfinite(found[each]).all(), each
        error = float(np.abs(sampled(found[each]) - expected)[known].max() / largest)
        if not error <= case.tolerance(each):
            failures.append(f"  {each}: {error:.1e}, {case.tolerance(each):.1e} allowed")
    assert not failures, "\n".join([f"{len(failures)} of {len(found)} gradients deviate", *failures])
