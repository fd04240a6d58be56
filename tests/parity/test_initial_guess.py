"""Recycling that starts from a structure equals ColabFold's program, which rounds what it recycles to float16."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from helixfold.execution.slabs import Slabs
from helixfold.execution.whole import Whole
from helixfold.folding.recycling import recycled_guess
from helixfold.model.alphafold import AlphaFold
from helixfold.model.confidence import predicted_aligned_error
from helixfold.model.outputs import Recycled
from helixfold.model.update import Executor, as_tensor
from helixfold.weights.load import load_weights
from tests.parity.cases import DATA, batch_from_deepmind, config_from_deepmind, deviation, read_case
from tests.parity.parameters import from_manifest

pytestmark = pytest.mark.parity

# The case whose parameters and configuration each has.
CASES = {"monomer": "ranges_monomer", "multimer": "multimer_v3_full"}
PASSES = 3
# In units of the largest value. Rounding to float16 makes steps of what differs by rounding in float32: a number at the
# edge of a step may be the next one, which moves atoms of the complex, up to 67 Angstrom from the origin, by 9e-5.
TOLERANCE = 1e-4
TOLERANCE_OF_ATOMS = 2e-4
Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[AlphaFold, Arrays]:
    source = read_case(DATA / CASES[request.param])
    path: Path = tmp_path_factory.mktemp("parameters") / "params_case.npz"
    np.savez(path, **from_manifest(source.folder / "params_manifest.json"))  # type: ignore[arg-type]
    model = AlphaFold(config_from_deepmind(source.meta["config"])).eval()
    model.load_state_dict(load_weights(path, model.config))
    return model, dict(np.load(DATA / f"initial_guess_{request.param}.npz"))


def halved(recycled: Recycled) -> Recycled:
    """What is recycled, in numbers as float16 holds them."""
    return replace(
        recycled,
        msa_first_row=recycled.msa_first_row.half().float(),
        pair=as_tensor(recycled.pair).half().float(),
        positions=recycled.positions.half().float(),
    )


def last_pass(model: AlphaFold, run: Executor, arrays: Arrays, guess: np.ndarray) -> Arrays:
    """What the last of three passes gives, of which each hands on numbers of float16."""
    read = {name[3:]: value for name, value in arrays.items() if name.startswith("in:") and name != "in:guess"}
    draws = len(read["aatype"])
    batches = [batch_from_deepmind({name: value[draw] for name, value in read.items()}) for draw in range(draws)]
    previous = recycled_guess(run, model, guess[None], torch.float32)
    with torch.no_grad():
        # A complex has one draw for all passes, which the program would make inside.
        for cycle in range(PASSES):
            folded = model.fold(run, [batches[cycle % draws]], previous)
            if cycle + 1 < PASSES:
                previous = halved(folded.recycled())
        of_heads = model.heads(run, folded)
        assert of_heads.aligned_error is not None
        errors, _ = predicted_aligned_error(of_heads.aligned_error)
        logits = of_heads.arrays()
    return {
        "final_atom_positions": folded.structure.positions[0].numpy(),
        "predicted_lddt": logits["lddt"],
        "predicted_aligned_error": errors[0].numpy(),
        "distogram": logits["distogram"],
        "masked_msa": logits["masked_msa"],
    }


@pytest.mark.parametrize(
    "run", [pytest.param(Whole(), marks=pytest.mark.long, id="whole"), pytest.param(Slabs(rows=5), id="slabs")]
)
def test_every_output_equals_colabfolds_after_two_recycles(case: tuple[AlphaFold, Arrays], run: Executor) -> None:
    model, arrays = case
    found = last_pass(model, run, arrays, arrays["in:guess"].astype(np.float16).astype(np.float32))
    expected = {name[4:]: value for name, value in arrays.items() if name.startswith("out:")}
    assert found.keys() == expected.keys()
    errors = {name: deviation(found[name], value) for name, value in expected.items()}
    assert errors.pop("final_atom_positions") < TOLERANCE_OF_ATOMS
    assert max(errors.values()) < TOLERANCE, errors


def test_the_rounding_of_the_guess_is_a_difference(case: tuple[AlphaFold, Arrays]) -> None:
    """It puts a distance of the guess into another bin; see `recycled_guess`."""
    model, arrays = case
    found = last_pass(model, Whole(), arrays, arrays["in:guess"])
    assert deviation(found["distogram"], arrays["out:distogram"]) > TOLERANCE
