"""Impossible geometry is found as AlphaFold finds it, and its loss has a gradient wherever atoms stand."""

import itertools
import math
from dataclasses import fields
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor

from data_pipeline.parse.structures import read_structure
from data_pipeline.residues import ATOM14_MASK, ATOM14_TO_ATOM37, RESTYPES
from helixfold.execution.counter import Counter
from helixfold.losses import violations as module
from helixfold.losses.labels import Labels
from helixfold.losses.violations import Violations, clashes, violation_loss, violations
from helixfold.model.batch import Batch
from helixfold.model.geometry.atoms import atom14_from_rigid_groups, rigid_groups_from_torsions
from helixfold.model.geometry.rigid import Rigid
from helixfold.model.outputs import PredictedStructure
from helixfold.ops.device_properties import DEVICE_MODELS, simulated_device
from tests.parity.test_functions import Function

ALPHAFOLD = {
    "bond_c_n": "between_residues/bonds_c_n_loss_mean",
    "angle_ca_c_n": "between_residues/angles_ca_c_n_loss_mean",
    "angle_c_n_ca": "between_residues/angles_c_n_ca_loss_mean",
    "connections_mask": "between_residues/connections_per_residue_violation_mask",
    "clashes": "between_residues/clashes_per_atom_loss_sum",
    "clashes_mask": "between_residues/clashes_per_atom_clash_mask",
    "within": "within_residues/per_atom_loss_sum",
    "within_mask": "within_residues/per_atom_violations",
    "residues_mask": "total_per_residue_violations_mask",
}
T = TypeVar("T")
HEAD, TAIL = slice(3), slice(3, None)
CYSTEINE = RESTYPES.index("C")


def chain(residues: int, *, b: int = 1, seed: int = 0, noise: float = 0.6) -> dict[str, Tensor]:
    """A crowded random chain with a gap in its numbering; in float64, so that a reference can be held to the digits."""
    generator = torch.Generator().manual_seed(seed)
    aatype = torch.randint(0, 21, (b, residues), generator=generator)
    steps = torch.randn(b, residues, 1, 3, generator=generator, dtype=torch.float64).cumsum(1)
    atoms = steps + noise * torch.randn(b, residues, 14, 3, generator=generator, dtype=torch.float64)
    index = torch.arange(residues) + 3 * (torch.arange(residues) > residues // 2)
    exists = torch.tensor(ATOM14_MASK)[aatype].double()
    exists *= torch.rand(exists.shape, generator=generator) > 0.1
    return {
        "atoms": atoms,
        "exists": exists,
        "aatype": aatype,
        "residue_index": index.expand(b, -1).clone(),
    }


def holding(kind: type[T], **values: Tensor) -> T:
    """An object of which these fields alone are asked for."""
    made = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def loss(found: Violations) -> Tensor:
    """Everything that has a gradient, each with a weight of its own."""
    total = found.bond_c_n + 2 * found.angle_ca_c_n + 3 * found.angle_c_n_ca
    weights = torch.linspace(0.5, 1.5, 14)
    return total + (weights * (found.clashes + 0.7 * found.within)).sum((1, 2))


def plain_clashes(given: dict[str, Tensor], tolerance: float = 1.5) -> Tensor:
    """Sum of each atom's overlaps, pair by pair, of the first sample."""
    atoms, exists = given["atoms"][0], given["exists"][0]
    aatype, index = given["aatype"][0].tolist(), given["residue_index"][0].tolist()
    sums = [[torch.zeros((), dtype=atoms.dtype) for _ in range(14)] for _ in aatype]
    for i in range(len(aatype)):
        for j in range(len(aatype)):
            for a in range(14):
                for c in range(14):
                    is_bond = index[i] + 1 == index[j] and (a, c) == (2, 0)
                    if not index[i] < index[j] or is_bond or (a, c) == (5, 5) or not exists[i, a] * exists[j, c]:
                        continue
                    radii = sum(
                        float(module.norms.VAN_DER_WAALS_RADIUS[ATOM14_TO_ATOM37[aatype[k], slot]])
                        for k, slot in ((i, a), (j, c))
                    )
                    overlap = torch.relu(radii - tolerance - torch.linalg.vector_norm(atoms[i, a] - atoms[j, c]))
                    sums[i][a], sums[j][c] = sums[i][a] + overlap, sums[j][c] + overlap
    return torch.stack([torch.stack(row) for row in sums])


def assert_equals_alphafold(found: Violations, expected: dict[str, np.ndarray]) -> None:
    for ours, theirs in ALPHAFOLD.items():
        value = getattr(found, ours)[0].numpy()
        assert value.shape == expected[theirs].shape, ours
        assert np.abs(value - expected[theirs]).max() <= 1e-6 * max(1, np.abs(expected[theirs]).max()), ours


@pytest.mark.parity
@pytest.mark.parametrize("name", ["find_structural_violations", "find_structural_violations_perturbed"])
def test_violations_equal_alphafolds(name: str) -> None:
    function = Function(name)
    given = [function.given[key] for key in ("atom14_pred_positions", "atom14_atom_exists", "aatype")]
    found = violations(*given, function.given["residue_index"])
    assert_equals_alphafold(found, function.returned)
    variants = Function("angles_ca_c_n_loss_mean_variants").returned
    if name.endswith("perturbed"):
        assert float(found.angle_ca_c_n) == pytest.approx(float(variants["released"]))
        assert found.clashes_mask.sum() > 20
        assert found.within_mask.sum() > 100


@pytest.mark.parametrize(
    ("sequence", "norm"),
    [("AA", module.norms.C_N_LENGTH), ("PA", module.norms.C_N_LENGTH), ("AP", module.norms.C_N_LENGTH_TO_PROLINE)],
)
@pytest.mark.parametrize(("deviations", "violates"), [(11.5, False), (12.5, True)])
def test_a_bond_to_proline_has_its_own_length_and_tolerance(
    sequence: str, norm: module.norms.MeanAndDeviation, deviations: float, violates: bool
) -> None:
    atoms, exists = torch.zeros(1, 2, 14, 3, dtype=torch.float64), torch.zeros(1, 2, 14, dtype=torch.float64)
    atoms[0, 1, 0, 0] = norm.mean + deviations * norm.deviation  # N; C of the residue before is at the origin
    exists[0, 0, 2] = exists[0, 1, 0] = 1
    aatype = torch.tensor([[RESTYPES.index(letter) for letter in sequence]])
    assert bool(violations(atoms, exists, aatype, torch.tensor([[0, 1]])).bond_c_n > 0) == violates


@pytest.mark.parity
def test_violations_of_a_prediction_equal_alphafolds(reference: Path) -> None:
    folder = reference / "cases" / "monomer_ptm_loss"
    outputs, features = np.load(folder / "outputs.npz"), np.load(folder / "features.npz")
    given = {name: torch.from_numpy(features[name]) for name in ("aatype", "residue_index", "seq_mask")}
    atoms = torch.from_numpy(outputs["structure_module/final_atom14_positions"])[None]
    exists = torch.from_numpy(features["atom14_atom_exists"])
    found = violations(atoms, exists, given["aatype"].long(), given["residue_index"].long())
    prefix = "structure_module/violations/"
    expected = {name.removeprefix(prefix): outputs[name] for name in outputs.files if name.startswith(prefix)}
    assert_equals_alphafold(found, expected)
    kinds = {
        "between_residue_bond": found.connections_mask,
        "between_residue_clash": found.clashes_mask.amax(-1),
        "within_residue": found.within_mask.amax(-1),
        "per_residue": found.residues_mask,
    }
    for kind, mask in kinds.items():
        share = float((given["seq_mask"] * mask).sum() / given["seq_mask"].sum())
        assert share == pytest.approx(float(outputs[f"structure_module/metrics/violations_{kind}"])), kind


def connections_by_loops(given: dict[str, Tensor], asym_id: Tensor, factor: float) -> tuple[list[float], list[bool]]:
    """Suppl. Eq. 44 and 45 for the first sample: the three means, and which residues are at a violated connection."""
    atoms, exists = given["atoms"][0].tolist(), given["exists"][0].tolist()
    sequence = "".join("ARNDCQEGHILKMFPSTWYVX"[kind] for kind in given["aatype"][0].tolist())
    numbers, chains = given["residue_index"][0].tolist(), asym_id[0].tolist()
    floor = 1e-6  # of squared lengths and errors
    sums, counts = [0.0] * 3, [0] * 3
    violated = [False] * len(sequence)
    for i in range(len(sequence) - 1):
        if chains[i] != chains[i + 1] or numbers[i] + 1 != numbers[i + 1]:
            continue
        (_, alpha, carbon), (nitrogen, next_alpha) = atoms[i][:3], atoms[i + 1][:2]
        (_, has_alpha, has_carbon), (has_nitrogen, has_next_alpha) = exists[i][:3], exists[i + 1][:2]

        def between(one: list[float], other: list[float]) -> tuple[list[float], float]:
            step = [b - a for a, b in zip(one, other, strict=True)]
            return step, math.sqrt(sum(x * x for x in step) + floor)

        (bond, length), (back, back_length), (on, on_length) = (
            between(carbon, nitrogen),
            between(carbon, alpha),
            between(nitrogen, next_alpha),
        )
        at_carbon = sum(x * y for x, y in zip(bond, back, strict=True)) / length / back_length
        at_nitrogen = -sum(x * y for x, y in zip(bond, on, strict=True)) / length / on_length
        ideal, spread = (1.341, 0.016) if sequence[i + 1] == "P" else (1.329, 0.014)
        # The released code tolerates an angle at C by the spread of the bond's length.
        errors = (
            (length - ideal, spread, has_carbon and has_nitrogen),
            (at_carbon - (-0.4473), 0.014, has_alpha and has_carbon and has_nitrogen),
            (at_nitrogen - (-0.5203), 0.0353, has_carbon and has_nitrogen and has_next_alpha),
        )
        for place, (error, deviation, counted) in enumerate(errors):
            if counted:
                excess = max(0.0, math.sqrt(error * error + floor) - factor * deviation)
                sums[place] += excess
                counts[place] += 1
                if excess > 0:
                    violated[i] = violated[i + 1] = True
    return [total / count if count else 0.0 for total, count in zip(sums, counts, strict=True)], violated


@pytest.mark.parametrize("seed", range(4))
def test_connections_of_uneven_chains_equal_loops_over_their_definitions(seed: int) -> None:
    """Chains of one, two and many residues, whose numbers begin at 0, restart, continue the last chain's or have gaps;
    a residue in the middle, which no mask counts, has the numbers of its neighbour."""
    given = chain(18, seed=seed)
    given["aatype"][0, [3, 7, 13]] = RESTYPES.index("P")
    numbers = [0, 1, 2, 3, 4, 4, 5, 0, 1, 2, 3, 4, 6, 7, 0, 1, 2, 5]
    chains = [1, 1, 1, 1, 1, 1, 1, 2, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5]
    given["residue_index"], asym_id = torch.tensor([numbers]), torch.tensor([chains])
    # Near to the ideal, so that some are violated and others are not.
    atoms = given["atoms"]
    for i in range(17):
        atoms[0, i + 1, 0] = atoms[0, i, 2] + torch.nn.functional.normalize(atoms[0, i + 1, 0], dim=0) * (
            1.2 + 0.03 * i
        )
    given["exists"][0, 5] = 0
    # No atom of glycine is required.
    given["exists"][0, 9, 1] = given["exists"][0, 12, 2] = 0
    found = violations(**given, asym_id=asym_id, tolerance_factor=4.0)
    means, violated = connections_by_loops(given, asym_id, 4.0)
    assert [float(each) for each in (found.bond_c_n, found.angle_ca_c_n, found.angle_c_n_ca)] == pytest.approx(
        means, rel=1e-5
    )
    assert all(each > 0 for each in means)
    assert found.connections_mask[0].bool().tolist() == violated
    assert 0 < sum(violated) < 18


@pytest.mark.parametrize("residues", [1, 2])
def test_chains_of_one_residue_have_no_connections(residues: int) -> None:
    given = chain(residues)
    found = violations(**given, asym_id=torch.arange(1, residues + 1)[None], tolerance_factor=0.0)
    assert [float(each) for each in (found.bond_c_n, found.angle_ca_c_n, found.angle_c_n_ca)] == [0, 0, 0]
    assert not found.connections_mask.any()


@pytest.mark.parametrize("seed", range(3))
def test_distances_within_residues_equal_loops_over_their_bounds(seed: int) -> None:
    given = chain(9, b=2, seed=seed)
    # A residue of which nothing is there, in the middle, with the atoms of no residue.
    given["exists"][0, 4] = 0
    given["atoms"][0, 4] = 1e4
    least, most = module.distance_bounds(6.0, 1.0)
    found = violations(**given, tolerance_factor=6.0, overlap_tolerance=1.0)
    for sample, residue in itertools.product(range(2), range(9)):
        kind = int(given["aatype"][sample, residue])
        there = [atom for atom in range(14) if given["exists"][sample, residue, atom]]
        for atom in range(14):
            total = 0.0
            for other in there if atom in there else []:
                if other != atom:
                    places = [given["atoms"][sample, residue, each].tolist() for each in (atom, other)]
                    distance = math.dist(*places)
                    total += max(0.0, float(least[kind, atom, other]) - distance)
                    total += max(0.0, distance - float(most[kind, atom, other]))
            assert float(found.within[sample, residue, atom]) == pytest.approx(2 * total, rel=1e-5, abs=1e-6)
            assert bool(found.within_mask[sample, residue, atom]) == (total > 0)
    named = found.within_mask.amax(-1), found.clashes_mask.amax(-1), found.connections_mask
    assert torch.equal(found.residues_mask, torch.stack(named).amax(0))


def test_overlaps_between_chains_count_though_numbers_are_equal_or_consecutive() -> None:
    """An atom pair that is a bond within a chain is an overlap between chains, and a residue has no number of another.

    Pairs with masked residues, which have the numbers of real ones, do not count.
    """
    given = chain(6, seed=2)
    given["residue_index"] = torch.tensor([[0, 1, 2, 3, 3, 9]])
    asym_id = torch.tensor([[1, 1, 1, 2, 2, 3]])
    given["exists"][0, 4] = 0
    given["atoms"][0, 4] = given["atoms"][0, 3]
    found = violations(**given, asym_id=asym_id).clashes
    kept = [0, 1, 2, 3, 5]
    small = {name: value[:, kept] for name, value in given.items()}
    alone = violations(**small, asym_id=asym_id[:, kept]).clashes
    torch.testing.assert_close(found[:, kept], alone, rtol=0, atol=1e-12)
    assert not found[:, 4].any()
    # Numbers far apart, so that no pair between chains is a bond.
    far = small | {"residue_index": torch.tensor([[0, 1, 2, 50, 90]])}
    torch.testing.assert_close(alone, violations(**far).clashes, rtol=0, atol=1e-12)


def test_clashes_and_their_gradients_equal_a_plain_loop() -> None:
    given = chain(7)
    given["atoms"].requires_grad_()
    found = violations(**given)
    sums = plain_clashes(given)
    assert 10 < int(found.clashes_mask.sum()) < int(given["exists"].sum())
    assert torch.allclose(found.clashes[0], sums, rtol=0, atol=1e-8)
    weights = torch.rand(7, 14, dtype=torch.float64)
    (ours,) = torch.autograd.grad((weights * found.clashes[0]).sum(), given["atoms"])
    (theirs,) = torch.autograd.grad((weights * sums).sum(), given["atoms"])
    assert float((ours - theirs).abs().max()) < 1e-7


def test_bonds_are_within_chains() -> None:
    """A crop may end one chain with the residue number before that of the next chain's first residue."""
    given = chain(6)
    given["residue_index"] = torch.arange(6)[None]
    given["exists"] = torch.tensor(ATOM14_MASK)[given["aatype"]].double()
    asym_id = torch.tensor([[1, 1, 1, 2, 2, 2]])
    found, alone = violations(**given, asym_id=asym_id), violations(**given)
    halves = [violations(**{name: value[:, part] for name, value in given.items()}) for part in (HEAD, TAIL)]
    torch.testing.assert_close(found.bond_c_n, sum(each.bond_c_n for each in halves) / 2, rtol=1e-5, atol=0)
    assert not torch.allclose(alone.bond_c_n, found.bond_c_n)
    # The C of one chain and the N of the next overlap as any other atoms do.
    near = {**given, "atoms": 20 * given["atoms"]}
    near["atoms"][0, 3, 0] = near["atoms"][0, 2, 2] + 0.5
    overlap = violations(**near, asym_id=asym_id).clashes - violations(**near).clashes
    assert overlap.nonzero().tolist() == [[0, 2, 2], [0, 3, 0]]


def test_the_loss_has_the_gradient_of_its_own_differences() -> None:
    given = chain(5)

    def of_atoms(atoms: Tensor) -> Tensor:
        return loss(violations(**{**given, "atoms": atoms}))

    assert torch.autograd.gradcheck(of_atoms, given["atoms"].requires_grad_(), eps=1e-7, atol=1e-4, fast_mode=True)


@pytest.mark.parametrize("spread", [0.0, 1e-8, 1e-3])
@pytest.mark.parametrize("residues", [1, 2, 6])
def test_gradients_are_finite_where_atoms_coincide(residues: int, spread: float) -> None:
    given = {name: value.float() if value.is_floating_point() else value for name, value in chain(residues).items()}
    atoms = (given["atoms"] * spread).requires_grad_()
    found = violations(**{**given, "atoms": atoms})
    loss(found).sum().backward()
    assert atoms.grad is not None
    assert torch.isfinite(atoms.grad).all()
    assert all(torch.isfinite(getattr(found, field.name)).all() for field in fields(found))


def test_without_atoms_there_is_nothing_wrong() -> None:
    given = chain(4)
    atoms = given["atoms"].requires_grad_()
    found = violations(**{**given, "exists": torch.zeros_like(given["exists"])})
    assert all(not getattr(found, field.name).any() for field in fields(found))
    loss(found).sum().backward()
    assert atoms.grad is not None
    assert not atoms.grad.any()


def test_a_batch_gives_what_its_samples_give_alone() -> None:
    given = chain(9, b=3)
    whole = violations(**given)
    for sample in range(3):
        alone = violations(**{name: value[sample : sample + 1] for name, value in given.items()})
        for field in fields(whole):
            difference = getattr(whole, field.name)[sample] - getattr(alone, field.name)[0]
            assert float(difference.abs().max()) < 1e-6, field.name


def test_padding_changes_nothing() -> None:
    given = chain(9)
    plain = violations(**given)
    padded = {name: torch.cat([value, value.new_zeros(1, 4, *value.shape[2:])], 1) for name, value in given.items()}
    # What a network makes of padding is anything.
    padded["atoms"][:, 9:] = given["atoms"][:, :4]
    padded["atoms"].requires_grad_()
    found = violations(**padded)
    for field in fields(plain):
        value, expected = getattr(found, field.name).detach(), getattr(plain, field.name)
        if value.ndim > 1:
            assert not value[:, 9:].any(), field.name
            value = value[:, :9]
        assert float((value - expected).abs().max()) < 1e-9, field.name
    loss(found).sum().backward()
    assert padded["atoms"].grad is not None
    assert not padded["atoms"].grad[:, 9:].any()


def test_blocks_and_left_out_pairs_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few atoms at a time or all, and with pairs that do not overlap (as on a GPU) or without."""
    given = chain(11, b=2)
    given["atoms"].requires_grad_()
    weights = torch.rand(2, 11, 14, dtype=torch.float64)
    results = []
    for size, everything in ((2**20, False), (1, False), (5_000, True), (2**20, True)):
        monkeypatch.setattr("helixfold.losses.violations._CPU_BLOCK", size)
        if everything:
            monkeypatch.setattr("helixfold.losses.violations.unmasked", lambda _: slice(None))
        found = violations(**given).clashes
        results.append((found.detach(), *torch.autograd.grad((weights * found).sum(), given["atoms"])))
    for result in results[1:]:
        for found, expected in zip(result, results[0], strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_a_padding_residue_with_the_index_of_a_real_one_overlaps_with_it_no_more_than_with_itself() -> None:
    given = chain(4)
    given["residue_index"][:] = 7
    assert not violations(**given).clashes.any()


def test_memory_does_not_grow_with_all_pairs_of_atoms() -> None:
    """On a GPU 64 MiB for each tensor of pairs, whatever the crop."""
    peaks = []
    for residues in (512, 1024):
        atoms = torch.empty(1, residues, 14, 3, device="meta", requires_grad=True)
        with simulated_device(DEVICE_MODELS["h100"]), Counter() as counter:
            index = torch.empty(1, residues, dtype=torch.int64, device="meta")
            clashes(atoms, torch.empty(1, residues, 14, device="meta"), index, 1.5).sum().backward()
        peaks.append(counter.peak)
    assert max(peaks) < 1.1 * min(peaks) < 500 * 2**20


def test_ideal_residues_break_no_rule_within_and_stretched_ones_do() -> None:
    aatype = torch.arange(20)[None]
    torsions = torch.nn.functional.normalize(torch.randn(1, 20, 7, 2), dim=-1)
    # Far apart, so that there is nothing between residues.
    where = torch.arange(20.0)[None, :, None] * torch.tensor([50.0, 0.0, 0.0])
    backbone = Rigid(rotation=torch.eye(3).expand(1, 20, 3, 3), translation=where)
    atoms = atom14_from_rigid_groups(aatype, rigid_groups_from_torsions(aatype, backbone, torsions))
    exists, index = torch.tensor(ATOM14_MASK)[aatype], 2 * aatype
    # Of random torsions some bring atoms of one side chain together; bonds and angles are right whatever they are.
    stretched = where[:, :, None] + 1.6 * (atoms - where[:, :, None])
    few, many = (violations(each, exists, aatype, index).within_mask.sum() for each in (atoms, stretched))
    assert few <= 6
    assert many >= 100
    assert not violations(atoms, exists, aatype, index).clashes.any()


def test_a_disulphide_bond_is_no_clash_and_any_other_contact_so_close_is() -> None:
    aatype, index = torch.tensor([[CYSTEINE, CYSTEINE]]), torch.tensor([[1, 9]])
    atoms = torch.zeros(1, 2, 14, 3)
    atoms[0, :, :, 0] = 100 * torch.arange(28.0).view(2, 14)
    exists = torch.tensor(ATOM14_MASK)[aatype]
    atoms[0, 1, 5] = atoms[0, 0, 5] + torch.tensor([2.0, 0.0, 0.0])
    assert not violations(atoms, exists, aatype, index).clashes.any()
    atoms[0, 1, 4] = atoms[0, 0, 5] + torch.tensor([0.0, 1.0, 0.0])
    clashes = violations(atoms, exists, aatype, index).clashes[0]
    assert clashes[0, 5] == pytest.approx(1.8 + 1.7 - 1.5 - 1)
    assert clashes[1, 4] == pytest.approx(1.8 + 1.7 - 1.5 - 1)
    assert int((clashes > 0).sum()) == 2


def test_only_neighbours_in_the_numbering_are_bonded_and_proline_has_its_own_bond() -> None:
    atoms = torch.zeros(1, 2, 14, 3)
    atoms[0, 1, 0, 0] = 1.335  # N of the second residue from C of the first
    exists = torch.zeros(1, 2, 14)
    exists[0, 0, 2] = exists[0, 1, 0] = 1

    def bond(second: str, number: int) -> Violations:
        aatype = torch.tensor([[0, RESTYPES.index(second)]])
        return violations(atoms, exists, aatype, torch.tensor([[1, number]]), tolerance_factor=0.0)

    # 1e-6 under the root keeps what is off by nothing from 0.
    assert float(bond("A", 2).bond_c_n) == pytest.approx(np.hypot(0.006, 1e-3), abs=1e-5)
    assert float(bond("P", 2).bond_c_n) == pytest.approx(np.hypot(-0.006, 1e-3), abs=1e-5)
    assert bond("A", 2).connections_mask.tolist() == [[1, 1]]
    assert not bond("A", 2).clashes.any()
    gap = bond("A", 3)
    assert not gap.bond_c_n.any()
    assert not gap.connections_mask.any()
    assert gap.clashes[0, 0, 2] == pytest.approx(1.7 + 1.55 - 1.5 - 1.335, abs=1e-5)


def test_real_structures_break_few_rules(real_data: Path) -> None:
    """Crambin has three disulphide bonds and five prolines."""
    (observed,) = read_structure(real_data / "core" / "1crn.cif.gz").chains
    slots = ATOM14_TO_ATOM37[observed.aatype]
    rows = np.arange(len(slots))[:, None]
    exists = torch.from_numpy(observed.atom_mask[rows, slots] * ATOM14_MASK[observed.aatype])[None]
    atoms = torch.from_numpy(observed.atom_positions[rows, slots])[None]
    aatype, index = torch.from_numpy(observed.aatype).long()[None], torch.arange(len(slots))[None]
    assert aatype.eq(CYSTEINE).sum() == 6
    found = violations(atoms, exists, aatype, index)
    assert not found.residues_mask.any()
    moved = atoms + torch.tensor([0.0, 0.0, 5.0]) * (index >= 20)[..., None, None]
    assert violations(moved, exists, aatype, index).connections_mask.sum() == 2


def test_the_loss_is_of_the_last_iteration_and_by_existing_atoms() -> None:
    given = chain(6, b=2)
    structure = holding(
        PredictedStructure, atom14=torch.stack([given["atoms"] + 7 * given["atoms"].sign(), given["atoms"]])
    )
    labels = holding(Labels, aatype=given["aatype"], atom14_atom_exists=given["exists"])
    batch = holding(Batch, residue_index=given["residue_index"], seq_mask=torch.ones(2, 6))
    found = violations(**given, tolerance_factor=9.0, overlap_tolerance=1.0)
    per_atom = (found.clashes + found.within).sum((1, 2)) / given["exists"].sum((1, 2))
    expected = found.bond_c_n + found.angle_ca_c_n + found.angle_c_n_ca + per_atom
    result = violation_loss(structure, labels, batch, tolerance_factor=9.0, overlap_tolerance=1.0)
    assert result.shape == (2,)
    assert torch.allclose(result, expected, rtol=0, atol=1e-6)
