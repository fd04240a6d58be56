"""Scores of structures equal those of the programs they are named after, and of plain loops."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from data_pipeline.parse.structures import read_structure
from data_pipeline.residues import ATOM_ORDER, THREE_LETTER
from data_pipeline.structure import Chain
from helixfold.analysis import metrics
from helixfold.analysis.metrics import Superposed, superposed_scores
from helixfold.losses.heads import lddt_ca
from tests.parity.test_functions import Function

CA = ATOM_ORDER["CA"]
LIMITS = (0.5, 1.0, 2.0, 4.0)
CORE = ("1crn.cif.gz", "1orc.cif.gz", "1a8o.cif.gz", "1pga.cif.gz")


def walk(residues: int, seed: int = 0) -> np.ndarray:
    """A chain whose neighbours are 3.8 Angstrom apart."""
    steps = np.random.default_rng(seed).normal(size=(residues, 3))
    return np.cumsum(3.8 * steps / np.linalg.norm(steps, axis=1, keepdims=True), 0)


def rotation(rng: np.random.Generator) -> np.ndarray:
    matrix, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    return matrix * np.linalg.det(matrix)


def like(true: np.ndarray, kind: int, rng: np.random.Generator) -> np.ndarray:
    """A prediction of a kind, anywhere in space: noisy, drifting, with a turned domain, wrong altogether, threaded."""
    n = len(true)
    if kind == 0:
        found = true + rng.normal(size=true.shape) * rng.choice([0.5, 2, 5])
    elif kind == 1:
        found = true + np.cumsum(0.6 * rng.normal(size=true.shape), 0)
    elif kind == 2:
        found = true + 0.7 * rng.normal(size=true.shape)
        found[n // 2 :] = (found[n // 2 :] - found[n // 2]) @ rotation(rng) + found[n // 2]
    elif kind == 3:
        found = walk(n, int(rng.integers(1000)))
    else:
        found = np.roll(true, int(rng.integers(1, 8)), axis=0)
    return found @ rotation(rng) + 20 * rng.normal(size=3)


def plain_lddt(predicted: np.ndarray, true: np.ndarray, residue: np.ndarray) -> float:
    kept, count = 0.0, 0
    for i in range(len(true)):
        for j in range(len(true)):
            distance = np.linalg.norm(true[i] - true[j])
            if residue[i] != residue[j] and distance < 15:
                off = abs(np.linalg.norm(predicted[i] - predicted[j]) - distance)
                kept += sum(off < limit for limit in LIMITS) / 4
                count += 1
    return kept / count


def pdb(points: np.ndarray, aatype: np.ndarray, numbers: np.ndarray) -> str:
    lines = [
        f"ATOM  {serial:5d}  CA  {THREE_LETTER[kind]} A{number:4d}    {x:8.3f}{y:8.3f}{z:8.3f}  1.00  0.00           C"
        for serial, ((x, y, z), kind, number) in enumerate(zip(points, aatype, numbers, strict=True), 1)
    ]
    return "\n".join([*lines, "TER", "END", ""])


def program(predicted: np.ndarray, true: np.ndarray, chain: Chain, observed: np.ndarray, folder: Path) -> Superposed:
    """The TM-score program's answer; it is given the whole prediction and what was observed of the truth."""
    numbers = np.arange(len(predicted)) + 1
    (folder / "model.pdb").write_text(pdb(predicted, chain.aatype, numbers))
    (folder / "native.pdb").write_text(pdb(true[observed], chain.aatype[observed], numbers[observed]))
    run = ["TMscore", str(folder / "model.pdb"), str(folder / "native.pdb")]
    printed = subprocess.run(run, capture_output=True, text=True, check=True).stdout

    def number(label: str) -> float:
        found = re.search(rf"^{label}\s*=\s*([\d.]+)", printed, re.MULTILINE)
        assert found is not None, printed
        return float(found[1])

    return Superposed(
        tm_score=number("TM-score"),
        gdt_ts=number("GDT-TS-score"),
        gdt_ha=number("GDT-HA-score"),
        rmsd=number("RMSD of  the common residues"),
    )


@pytest.mark.skipif(shutil.which("TMscore") is None, reason="needs the TM-score program")
def test_scores_equal_the_programs_on_real_pairs(real_data: Path, tmp_path: Path) -> None:
    # The shorter ones, for time.
    paths = sorted((real_data / "train_mmcif").glob("*.cif.gz"), key=lambda path: (path.stat().st_size, path.name))
    for number, path in enumerate(paths[:640:20]):
        rng = np.random.default_rng(number)
        chain = read_structure(path).chains[0]
        observed = chain.atom_mask[:, CA] > 0
        if number % 3 == 0:
            observed &= rng.random(len(observed)) > 0.2
        # As a PDB file has them.
        true = np.round(chain.atom_positions[:, CA].astype(np.float64), 3)
        predicted = np.round(like(true, number % 5, rng), 3)
        predicted = np.round(predicted - predicted.mean(0), 3)
        found = superposed_scores(predicted[observed], true[observed])
        expected = program(predicted, true, chain, observed, tmp_path)
        # Half of the last digit that the program prints.
        for score, limit in (("tm_score", 6e-5), ("gdt_ts", 6e-5), ("gdt_ha", 6e-5), ("rmsd", 6e-4)):
            assert abs(getattr(found, score) - getattr(expected, score)) < limit, (path.name, score)


def test_an_identical_structure_has_the_best_scores_wherever_it_lies() -> None:
    for residues in (1, 2, 3, 4, 5, 16, 70):
        true = walk(residues)
        found = superposed_scores(true @ rotation(np.random.default_rng(residues)) + 30, true)
        assert found.tm_score == pytest.approx(1, abs=1e-6)
        assert found.gdt_ts == found.gdt_ha == 1
        assert found.rmsd < 1e-4


def test_a_mirror_image_is_not_the_same_structure() -> None:
    true = walk(60)
    found = superposed_scores(true * np.array([1, 1, -1]), true)
    assert found.tm_score < 0.6
    assert found.rmsd > 2


def test_scores_count_what_lies_within_the_limits() -> None:
    """Half of a chain is right and the other half far away: it scores a half."""
    true = walk(80)
    predicted = true.copy()
    predicted[40:] += np.arange(40)[:, None] * np.array([0.0, 0.0, 50.0]) + 500
    found = superposed_scores(predicted, true)
    assert found.gdt_ts == found.gdt_ha == 0.5
    assert found.tm_score == pytest.approx(0.5, abs=1e-3)


def test_the_scale_of_the_tm_score_is_that_of_the_chains_length() -> None:
    """One residue of many is 3 Angstrom off: the others hardly move, and it scores 1 / (1 + (3 / d0)^2)."""
    true = walk(200)
    predicted = true.copy()
    predicted[100, 2] += 3.0
    scale = 1.24 * 185 ** (1 / 3) - 1.8
    expected = (199 + 1 / (1 + (3 / scale) ** 2)) / 200
    assert superposed_scores(predicted, true).tm_score == pytest.approx(expected, abs=1e-4)
    assert superposed_scores(predicted, true).gdt_ts == pytest.approx((199.0 * 2 + 200 * 2) / 800)


def test_gdt_counts_residues_within_its_own_four_limits() -> None:
    """Half of a chain is where it should be, the other half 3 Angstrom away, in different directions."""
    true = np.cumsum(np.random.default_rng(0).normal(size=(100, 3)) * 2, 0)
    predicted = true.copy()
    directions = np.random.default_rng(1).normal(size=(50, 3))
    predicted[50:] += 3 * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    found = superposed_scores(predicted, true)
    assert found.gdt_ts == pytest.approx((0.5 + 0.5 + 1 + 1) / 4, abs=0.03)  # 1, 2, 4 and 8 Angstrom
    assert found.gdt_ha == pytest.approx((0.5 + 0.5 + 0.5 + 1) / 4, abs=0.03)  # 0.5, 1, 2 and 4 Angstrom


def test_many_superpositions_at_a_time_are_those_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    true = walk(50)
    predicted = like(true, 1, rng)
    together = superposed_scores(predicted, true)
    monkeypatch.setattr(metrics, "_BATCH_ELEMENTS", 1)
    alone = superposed_scores(predicted, true)
    assert alone.tm_score == pytest.approx(together.tm_score, abs=1e-9)
    assert (alone.gdt_ts, alone.gdt_ha) == (together.gdt_ts, together.gdt_ha)


def test_what_is_not_finite_scores_nothing() -> None:
    true = walk(20)
    predicted = true.copy()
    predicted[3, 1] = np.nan
    found = superposed_scores(predicted, true)
    assert (found.tm_score, found.gdt_ts, found.gdt_ha) == (0, 0, 0)
    assert np.isnan(found.rmsd)
    assert metrics.lddt(np.full_like(true, np.nan), true, np.arange(20)) == 0


def test_rmsd_is_that_of_the_best_rotation() -> None:
    rng = np.random.default_rng(0)
    true = walk(30)
    predicted = like(true, 0, rng)
    x, y = predicted - predicted.mean(0), true - true.mean(0)
    singular = np.linalg.svd(x.T @ y)[1]
    singular[2] *= np.sign(np.linalg.det(x.T @ y))
    expected = np.sqrt(((x**2).sum() + (y**2).sum() - 2 * singular.sum()) / 30)
    assert metrics.rmsd(predicted, true) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", CORE)
def test_lddt_of_all_atoms_equals_a_plain_loop(real_data: Path, name: str) -> None:
    chain = read_structure(real_data / "core" / name).chains[0]
    residue, atom = (chain.atom_mask[:30] > 0).nonzero()
    true = chain.atom_positions[residue, atom]
    predicted = true + np.random.default_rng(0).normal(size=true.shape).astype(np.float32)
    found = metrics.lddt(predicted, true, residue)
    assert found == pytest.approx(plain_lddt(predicted, true, residue), abs=2e-5)
    assert 0.2 < found < 0.9


def test_lddt_without_any_distance_is_nothing() -> None:
    assert metrics.lddt(walk(1), walk(1), np.arange(1)) == 0
    far = 100 * np.arange(9.0).reshape(3, 3)
    assert metrics.lddt(far, far, np.arange(3)) == 0


def test_distances_within_a_residue_do_not_count() -> None:
    points = walk(10)
    assert metrics.lddt(points, points, np.zeros(10, np.int64)) == 0
    moved = points.copy()
    moved[1] += 9
    residue = np.array([0, 0, *range(1, 9)])
    assert metrics.lddt(moved, points, residue) == pytest.approx(plain_lddt(moved, points, residue))


@pytest.mark.parity
def test_lddt_equals_deepminds() -> None:
    function = Function("lddt_per_residueFalse")
    predicted, true = (function.given[f"{name}_points"][0, 0].numpy() for name in ("predicted", "true"))
    mask = function.given["true_points_mask"][0, 0, :, 0].numpy() > 0
    found = metrics.lddt(predicted[mask], true[mask], np.flatnonzero(mask))
    assert found == pytest.approx(float(function.returned["result"][0]), abs=1e-6)


@pytest.mark.parametrize("kind", range(5))
def test_the_losses_lddt_is_this_one(kind: int) -> None:
    rng = np.random.default_rng(kind)
    true = walk(40)
    predicted, observed = like(true, kind, rng), rng.random(40) > 0.2
    tensors = (torch.tensor(points, dtype=torch.float32)[None] for points in (predicted, true, observed))
    of_residues = lddt_ca(*tensors)[0].numpy()
    # The whole score is over distances, the residues' are each over its own.
    distances = np.linalg.norm(true[:, None] - true[None], axis=-1)
    counts = ((distances < 15) & observed[:, None] & observed[None]).sum(1) - 1
    mean = (of_residues * counts)[observed].sum() / counts[observed].sum()
    assert metrics.lddt(predicted[observed], true[observed], np.flatnonzero(observed)) == pytest.approx(mean, abs=1e-5)


def test_a_superposition_undoes_any_turn_and_shift() -> None:
    random = np.random.default_rng(0)
    true = random.normal(size=(20, 3)) * 10
    turn = np.linalg.qr(random.normal(size=(3, 3)))[0]
    turn *= np.sign(np.linalg.det(turn))
    moved = true @ turn.T + [5, -3, 40]
    found = metrics.superposition(moved, true)
    np.testing.assert_allclose(found.apply(moved), true, atol=1e-9)
    assert np.linalg.det(found.rotation) == pytest.approx(1)
    # All atoms go with those that were superposed.
    assert found.apply(moved.reshape(4, 5, 3)).shape == (4, 5, 3)


def test_a_superposition_is_the_one_of_least_rmsd_and_no_reflection() -> None:
    random = np.random.default_rng(1)
    true = random.normal(size=(15, 3)) * 5
    for predicted in (true + random.normal(size=true.shape), true * [1, 1, -1]):
        laid = metrics.superposition(predicted, true).apply(predicted)
        assert np.sqrt(np.square(laid - true).sum(-1).mean()) == pytest.approx(metrics.rmsd(predicted, true), rel=1e-5)


def test_distance_differences_need_no_superposition() -> None:
    true = np.array([[0.0, 0, 0], [3, 0, 0], [3, 4, 0]])
    predicted = true[:, [1, 2, 0]] * [1, 1, 1] + 7
    np.testing.assert_allclose(metrics.distance_difference(predicted, true), 0, atol=1e-12)
    longer = true.copy()
    longer[1, 0] = 6
    assert metrics.distance_difference(longer, true)[0, 1] == 3
