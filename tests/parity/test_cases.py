"""Whole runs equal DeepMind's program: every output, what is recycled, confidences."""

import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from helixfold.execution.slabs import Slabs
from helixfold.execution.whole import Whole
from helixfold.folding.recycling import distance_change
from helixfold.model import confidence
from helixfold.model.alphafold import AlphaFold
from helixfold.model.batch import with_chains
from helixfold.model.outputs import Outputs, Recycled
from helixfold.model.update import Executor
from helixfold.ops.dispatch import forced
from tests.model.ptm import ptm_of
from tests.parity.cases import (
    DATA,
    SMALL_CASES,
    Case,
    deviation,
    multimer_outputs_as_deepmind,
    outputs_as_deepmind,
    read_case,
)

pytestmark = pytest.mark.parity

LARGER_CASES = ["monomer_ptm_full", "monomer_ptm_loss"]
RECYCLED_CASES = ["monomer_ptm_recycle2", "monomer_ptm_padded", "monomer_ptm_full"]
RECYCLED_MULTIMERS = ["multimer_v1_early_end", "multimer_v2_recycle2", "multimer_v3_full"]
MULTIMERS = [*RECYCLED_MULTIMERS, "multimer_v3_padded", "multimer_v3_tiny"]
# With the ranges of trained networks; `test_trained_ranges.py` asks more of them.
RANGES = ["ranges_demonstration", "ranges_monomer", "ranges_monomer_times_10", "ranges_multimer_v3"]
# What each must be used for.
EVERYWHERE = {
    *("norm_linear", "outer_product_mean", "outer_product_operands"),
    *("self_attention", "transition", "triangle_update"),
}
BACKENDS = {
    "reference": EVERYWHERE | {"attention", "global_attention", "invariant_point_attention"},
    "rows": EVERYWHERE | {"global_attention", "invariant_point_attention"},
    "onednn": {"linear"},
    "triton": EVERYWHERE | {"attention", "layer_norm"},
}
# Three minutes in the interpreter; `tests/model/test_evoformer.py` has one block, with gradients.
EACH_BACKEND = [pytest.param(each, marks=pytest.mark.long if each == "triton" else ()) for each in BACKENDS]
# Angstrom; asked of everything that holds atom positions or frames, unless rounding moves DeepMind's own by a third.
COORDINATE_TOLERANCE = 1e-3
# Not from the network: constants, scores made from logits (with a test of their own), and what needs labels.
NOT_COMPUTED = re.compile("bin_edges|breaks|^confidence/|loss|metrics|violations|renamed|alt_naming|true_dist|fape")


# Cases that differ from others in numbers alone, which run before each release.
LONG = ("ranges_demonstration", "ranges_monomer_times_10", "monomer_ptm_recycle2", "monomer_ptm_loss")


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.long if name in LONG else ()) for name in SMALL_CASES + LARGER_CASES],
)
def case(request: pytest.FixtureRequest) -> Case:
    if request.param in SMALL_CASES:
        return read_case(DATA / request.param)
    return read_case(request.getfixturevalue("reference") / "cases" / request.param)


@pytest.fixture(scope="module")
def model(case: Case, tmp_path_factory: pytest.TempPathFactory) -> AlphaFold:
    return case.model(tmp_path_factory.mktemp(case.name))


def expected_outputs(case: Case) -> dict[str, np.ndarray]:
    """What the network itself gives."""
    return {name: value for name, value in case.outputs.items() if not NOT_COMPUTED.search(name)}


def require_equal(outputs: Outputs, case: Case) -> None:
    """Fail with a list of all outputs that deviate, worst first."""
    named = multimer_outputs_as_deepmind if case.is_multimer else outputs_as_deepmind
    found, expected = named(outputs), expected_outputs(case)
    assert found.keys() == expected.keys()
    failures = {}
    real = case.batches[-1].seq_mask[0].bool().numpy()
    for name in expected:
        if case.is_multimer and name.startswith("structure_module/"):
            # A padding residue attends to all others with logits of -1e5, where float32 leaves two digits.
            axis = 1 if name.startswith(("structure_module/traj", "structure_module/sidechains")) else 0
            found[name], expected[name] = (each[name].compress(real, axis) for each in (found, expected))
        error = deviation(found[name], expected[name])
        distance = np.abs(found[name] - expected[name]).max()
        moved = name.startswith("structure_module/") and distance > max(COORDINATE_TOLERANCE, 3 * rounding(case, name))
        if moved or not error <= case.tolerance(name):
            failures[name] = error
    lines = [f"  {name}: {failures[name]:.1e}" for name in sorted(failures, key=failures.__getitem__, reverse=True)]
    assert not failures, "\n".join([f"{case.name}: {len(failures)} of {len(expected)} outputs deviate", *lines])


def rounding(case: Case, name: str) -> float:
    """Return what float32 changes in DeepMind's output of real residues; 0 where it was not measured."""
    relative = case.meta.get("float32_noise_without_padding", {}).get(name, 0.0)
    return float(relative * case.meta["float32_noise"].get(name, {"max": 0.0})["max"])


@dataclass(frozen=True)
class Passes:
    """All passes of a case: what each but the last gave to the next, and the outputs of the last."""

    recycled: list[Recycled]
    outputs: Outputs


def run_all_passes(model: AlphaFold, run: Executor, case: Case) -> Passes:
    previous: Recycled | None = None
    recycled = []
    for number, batch in enumerate(case.batches):
        folded = model.fold(run, [batch], previous)
        if previous is not None:
            change = distance_change(previous.positions, folded.structure.positions, batch.seq_mask)
            if (change < case.recycle_tolerance).all():
                break
        if number + 1 < len(case.batches):
            previous = folded.recycled()
            # The next pass writes into the pair stream.
            recycled.append(replace(previous, pair=previous.pair.clone()))
    assert number == (len(case.recycled) if case.is_multimer else len(case.batches) - 1)
    logits = model.heads(run, folded)
    outputs = Outputs(representations=folded.representations, structure=folded.structure, logits=logits)
    return Passes(recycled=recycled, outputs=outputs)


def test_all_small_cases_are_in_the_repository() -> None:
    monomers = ["monomer_notempl_tiny", "monomer_ptm_padded", "monomer_ptm_recycle2", "monomer_ptm_tiny"]
    assert [*monomers, *MULTIMERS, *RANGES] == SMALL_CASES


def test_a_complex_recycles_until_it_hardly_moves() -> None:
    case = read_case(DATA / "multimer_v1_early_end")
    *before, last = case.meta["distance_changes_A"]
    assert min(before) >= case.recycle_tolerance > last
    assert len(case.recycled) < len(case.batches) - 1


@pytest.fixture(scope="module")
def whole(case: Case, model: AlphaFold) -> Passes:
    with torch.no_grad():
        return run_all_passes(model, Whole(), case)


@pytest.fixture(scope="module")
def in_slabs(case: Case, model: AlphaFold) -> Passes:
    with torch.no_grad():
        return run_all_passes(model, Slabs(rows=5), case)


def test_every_output_with_gradients_equals_deepminds(case: Case, model: AlphaFold) -> None:
    outputs = run_all_passes(model, Whole(), case).outputs
    assert outputs.representations.pair.requires_grad
    require_equal(outputs, case)


@pytest.mark.parametrize("passes", ["whole", "in_slabs"])
def test_every_output_equals_deepminds(case: Case, passes: str, request: pytest.FixtureRequest) -> None:
    outputs = request.getfixturevalue(passes).outputs
    assert not outputs.representations.pair.requires_grad
    require_equal(outputs, case)


@pytest.mark.parametrize("case", ["monomer_ptm_full"], indirect=True)
@pytest.mark.parametrize("backend", EACH_BACKEND)
def test_every_backend_gives_deepminds_outputs(case: Case, model: AlphaFold, backend: str) -> None:
    """At the channels of the published models, which kernels are made for."""
    if backend == "triton":
        pytest.importorskip("triton")
    with torch.no_grad(), forced(backend) as used:
        require_equal(model(Whole(), [case.batches[-1]], case.recycled[-1]), case)
    assert BACKENDS[backend] <= used.keys()


@pytest.mark.parametrize("case", RECYCLED_CASES + RECYCLED_MULTIMERS, indirect=True)
@pytest.mark.parametrize("passes", ["whole", "in_slabs"])
def test_every_pass_recycles_what_deepminds_does(case: Case, passes: str, request: pytest.FixtureRequest) -> None:
    recycled = request.getfixturevalue(passes).recycled
    assert recycled
    for number, (found, expected) in enumerate(zip(recycled, case.recycled, strict=True)):
        for name in ("msa_first_row", "pair", "positions"):
            error = deviation(getattr(found, name).numpy(), getattr(expected, name).numpy())
            assert error < 1e-4, f"{name} after pass {number} deviates by {error:.1e}"
        assert (found.positions - expected.positions).abs().max() < COORDINATE_TOLERANCE


@pytest.mark.parametrize("case", RECYCLED_CASES + RECYCLED_MULTIMERS, indirect=True)
def test_the_last_pass_alone_equals_deepminds(case: Case, model: AlphaFold) -> None:
    # The pair stream is given away.
    previous = replace(case.recycled[-1], pair=case.recycled[-1].pair.clone())
    with torch.no_grad():
        require_equal(model(Whole(), [case.batches[len(case.recycled)]], previous), case)


def test_confidences_equal_deepminds(case: Case, model: AlphaFold, in_slabs: Passes) -> None:
    outputs = in_slabs.outputs
    logits = outputs.logits
    plddt = confidence.plddt(logits.lddt)
    scores: dict[str, Tensor] = {"plddt": plddt[0]}
    # DeepMind's scores of a monomer count padding, so the padded case has none of them; those of a complex do not.
    mask, aligned_error = case.batches[-1].seq_mask, logits.aligned_error
    if case.is_multimer or mask.all():
        scores["ranking_confidence"] = confidence.ranking_confidence(plddt, mask)[0]
        if aligned_error is not None:
            pae, max_pae = confidence.predicted_aligned_error(aligned_error)
            scores["predicted_aligned_error"] = pae[0]
            scores["max_predicted_aligned_error"] = torch.tensor(max_pae)
            scores["ptm"] = ptm_of(aligned_error, mask)[0]
            breaks = case.outputs["predicted_aligned_error/breaks"]
            assert deviation(confidence.aligned_error_breaks(len(breaks) + 1).numpy(), breaks) < 1e-6
    if case.is_multimer:
        with torch.no_grad():
            head, pair = model.heads.aligned_error, outputs.representations.pair
            assert head is not None
            error = confidence.aligned_error(Slabs(rows=5), head, pair, mask, with_chains(case.batches[-1]).asym_id)
        assert error.iptm is not None
        torch.testing.assert_close(error.ptm[0], scores["ptm"])
        scores["iptm"] = error.iptm[0]
        scores["ranking_confidence"] = 100 * confidence.complex_ranking_confidence(error.ptm, error.iptm)[0]
    expected = {name.split("/")[1]: value for name, value in case.outputs.items() if name.startswith("confidence/")}
    assert scores.keys() == expected.keys()
    for name, value in scores.items():
        assert deviation(value.numpy(), expected[name]) < case.tolerance(f"confidence/{name}"), name
