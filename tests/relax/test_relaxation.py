"""Relaxation takes away what breaks the rules of chemistry, and leaves everything else where and as it was."""

import importlib.util
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from data_pipeline.io.config import ConfigError
from data_pipeline.parse.structures import read_structure
from data_pipeline.protein import Protein
from data_pipeline.residues import ATOM37_MASK, ATOM_ORDER, UNKNOWN
from helixfold.apps.predict.relaxation import relax_files
from helixfold.relax import flaws, problem
from helixfold.relax.flaws import Flaws, cis, mirrored, misplaced
from helixfold.relax.pieces import pieces_of
from helixfold.relax.problem import RelaxationError
from helixfold.relax.relaxation import relax, where
from helixfold.relax.result import Relaxed, RelaxOptions
from helixfold.results.mmcif import to_mmcif
from helixfold.results.pdb import to_pdb
from tests.relax.perturbed import collapsed, native, part, perturbed
from tests.support.residue_arrays import RESIDUE_ARRAYS

EXAMPLES = Path(__file__).parents[2] / "examples" / "structures"
CA, CB, C, OXT = (ATOM_ORDER[name] for name in ("CA", "CB", "C", "OXT"))
TEN = (
    *("1crn.cif.gz", "1pga.cif.gz", "1orc.cif.gz", "1a8o.cif.gz", "T1031-D1.pdb.gz", "T1033-D1.pdb.gz"),
    *("5trv.pdb.gz", "1stp.cif.gz", "2dfb.pdb.gz", "5zyh.cif.gz"),
)
needs_openmm = pytest.mark.skipif(
    importlib.util.find_spec("pdbfixer") is None, reason="needs OpenMM and PDBFixer (the extra relax)"
)


@pytest.fixture(scope="module")
def hairpin() -> Protein:
    """A small protein that comes with the package."""
    return native(EXAMPLES / "helical_hairpin.pdb")


@pytest.fixture(scope="module")
def relaxed_hairpin(hairpin: Protein) -> Relaxed:
    return relax(perturbed(hairpin, off=0.3, clashes=0))


def superposed_on(protein: Protein, given: Protein) -> float:
    """Root mean square distance of the atoms that both have."""
    both = (protein.atom_mask > 0.5) & (given.atom_mask > 0.5)
    return float(np.sqrt(np.square((protein.atom_positions - given.atom_positions)[both]).sum(-1).mean()))


@pytest.mark.integration
@needs_openmm
@pytest.mark.parametrize("name", TEN[:1])
def test_violations_are_removed_and_atoms_stay_near(real_data: Path, name: str) -> None:
    given = perturbed(native(real_data / "core" / name), off=0.3, clashes=10)
    found = relax(given)
    assert found.before.residues > len(given.aatype) // 2
    assert found.before.clashes >= 3
    assert found.after.residues == 0
    assert found.flawed == ()
    assert found.rmsd < 0.6
    assert found.rmsd == pytest.approx(superposed_on(found.protein, given), abs=1e-4)
    assert found.final_energy < min(0, found.initial_energy)


@needs_openmm
@pytest.mark.long
@pytest.mark.parametrize("name", TEN)
def test_ten_structures_are_relaxed(real_data: Path, name: str) -> None:
    given = perturbed(native(real_data / "core" / name), off=0.3, clashes=8)
    found = relax(given)
    print(
        f"{name}: {int(given.atom_mask.any(-1).sum())} residues, with violations {found.before.residues} -> "
        f"{found.after.residues}, with clashes {found.before.clashes} -> {found.after.clashes}, "
        f"moved {found.rmsd:.2f} A, {found.initial_energy:.3g} -> {found.final_energy:.0f} kcal/mol, "
        f"{found.rounds} rounds, {found.seconds:.1f} s"
    )
    assert found.after.residues == 0
    assert found.rmsd < 1


@needs_openmm
def test_sequence_numbers_and_confidence_survive(hairpin: Protein, relaxed_hairpin: Relaxed) -> None:
    found = relaxed_hairpin.protein
    for name in ("aatype", "residue_index", "chain_index"):
        assert (getattr(found, name) == getattr(hairpin, name)).all()
    assert (found.b_factors[found.atom_mask > 0.5] == 87.5).all()
    # Nothing but the second oxygen of the chain's end was missing.
    added = np.argwhere((found.atom_mask > 0.5) & (hairpin.atom_mask < 0.5)).tolist()
    assert all(atom == OXT and residue == len(hairpin.aatype) - 1 for residue, atom in added)
    assert relaxed_hairpin.added == len(added)


@needs_openmm
def test_hydrogens_are_where_chemistry_has_them(relaxed_hairpin: Relaxed) -> None:
    protein, hydrogens = relaxed_hairpin.protein, relaxed_hairpin.hydrogens
    assert (np.diff(hydrogens.residue) >= 0).all()
    heavy = protein.atom_positions[hydrogens.residue]
    distance = np.linalg.norm(heavy - hydrogens.positions[:, None], axis=-1)
    nearest = np.where(protein.atom_mask[hydrogens.residue] > 0.5, distance, np.inf).min(-1)
    assert ((nearest > 0.9) & (nearest < 1.4)).all()
    first = [name for name, residue in zip(hydrogens.names, hydrogens.residue.tolist(), strict=True) if residue == 0]
    assert {"H2", "H3"} <= set(first) or {"H2"} <= set(first)


@pytest.mark.integration
@needs_openmm
def test_the_same_structure_relaxes_the_same_with_one_thread(hairpin: Protein) -> None:
    given, threads = perturbed(hairpin, off=0.3, clashes=0), torch.get_num_threads()
    # Relaxations use the threads that they are told to use, whatever PyTorch does.
    torch.set_num_threads(max(2, threads))
    try:
        first = relax(given, threads=1)
        random.seed(5)  # which OpenMM draws from
        second = relax(given, threads=1)
    finally:
        torch.set_num_threads(threads)
    assert (first.protein.atom_positions == second.protein.atom_positions).all()
    assert (first.hydrogens.positions == second.hydrogens.positions).all()


@needs_openmm
def test_residues_that_are_still_flawed_are_freed(hairpin: Protein, monkeypatch: pytest.MonkeyPatch) -> None:
    from helixfold.relax import amber  # noqa: PLC0415  # needs OpenMM
    from helixfold.relax.amber import Simulation  # noqa: PLC0415

    given = perturbed(part(hairpin, slice(0, 6)), off=0.1, clashes=0)
    held: list[list[int]] = []
    still = [[], [1, 2], [2, 4], [4], [0], [4], [5], [3]]  # before, after each round, and at the end

    def found(positions: np.ndarray, _: object) -> tuple[Flaws, np.ndarray]:
        flawed = np.isin(np.arange(len(positions)), still[len(held)])
        return Flaws(residues=int(flawed.sum()), bonds=0, clashes=0, within=0), flawed

    class Watched(Simulation):
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **settings)
            self.is_soft = "disentangling" in settings

        def minimised(self, start: np.ndarray, freed: np.ndarray, deadline: Any) -> np.ndarray:
            if not self.is_soft:
                held.append(np.flatnonzero(freed).tolist())
            return start

    monkeypatch.setattr(amber, "flaws", found)
    monkeypatch.setattr(amber, "Simulation", Watched)
    result = relax(given, RelaxOptions(max_rounds=6))
    # AlphaFold's three rounds, and then with the neighbours of what is still flawed.
    assert held == [[], [1, 2], [1, 2, 4], [1, 2, 3, 4, 5], *[[0, 1, 2, 3, 4, 5]] * 3]
    assert (result.rounds, result.flawed) == (6, (given.residue_index[3],))
    assert where(torch.device("cpu")) == "CPU"


@pytest.mark.integration
@needs_openmm
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_residues_in_one_place_come_apart_with_their_handedness_and_trans(hairpin: Protein, seed: int) -> None:
    given = collapsed(hairpin, range(10, 16), seed=seed)
    pieces = pieces_of(given)
    assert not mirrored(given.atom_positions, pieces).any()
    found = relax(given)
    assert found.after.residues == 0
    assert not mirrored(found.protein.atom_positions, pieces).any()
    assert not cis(found.protein.atom_positions, pieces).any()
    # What was in order stays where it was.
    moved = np.linalg.norm((found.protein.atom_positions - given.atom_positions)[:, CA], axis=-1)
    assert moved[:6].max() < 1.5 < moved[10:16].max()


@pytest.mark.parametrize("at_once", [flaws._AT_ONCE, 7])
def test_residues_that_cannot_stay_are_those_of_broken_bonds_and_the_less_sure_of_two_in_one_place(
    hairpin: Protein, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flaws, "_AT_ONCE", at_once)

    def found(positions: np.ndarray, b_factors: np.ndarray = hairpin.b_factors) -> list[int]:
        return np.flatnonzero(misplaced(positions, b_factors, pieces_of(hairpin))).tolist()

    assert found(hairpin.atom_positions) == []
    torn = hairpin.atom_positions.copy()
    torn[9:] += [0, 0, 30]
    assert found(torn) == [8, 9]
    crowded, sure = hairpin.atom_positions.copy(), hairpin.b_factors.copy()
    crowded[20] += crowded[3, CA] + [2.0, 0, 0] - crowded[20, CA]
    sure[20] = 50
    assert found(crowded, sure) == [19, 20, 21]  # and the bonds of residue 20
    sure[3], sure[20] = 40, 90
    assert found(crowded, sure) == [3, 19, 20, 21]
    later = hairpin.atom_positions.copy()
    later[20] += later[12, CA] + [2.0, 0, 0] - later[20, CA]
    sure[12], sure[20] = 40, 90
    assert found(later, sure) == [12, 19, 20, 21]


@pytest.mark.integration
@needs_openmm
def test_a_residue_that_was_mirrored_before_stays_so(hairpin: Protein) -> None:
    residue = 5
    x = hairpin.atom_positions[residue]
    normal = np.cross(x[ATOM_ORDER["N"]] - x[CA], x[C] - x[CA])
    normal /= np.linalg.norm(normal)
    side = np.ones(37, bool)
    side[[ATOM_ORDER[name] for name in ("N", "CA", "C", "O")]] = False
    positions = hairpin.atom_positions.copy()
    positions[residue, side] -= 2 * ((x[side] - x[CA]) @ normal)[:, None] * normal
    given = replace(hairpin, atom_positions=positions * hairpin.atom_mask[..., None])
    found, pieces = relax(given), pieces_of(given)
    for protein in (given, found.protein):
        assert np.flatnonzero(mirrored(protein.atom_positions, pieces)).tolist() == [residue]


@needs_openmm
def test_unknown_residues_are_put_back_as_unknown(hairpin: Protein) -> None:
    aatype = hairpin.aatype.copy()
    aatype[4:7] = UNKNOWN
    mask, positions = hairpin.atom_mask.copy(), hairpin.atom_positions.copy()
    mask[5, CB] = 0  # one that can only be glycine
    mask[6, ATOM_ORDER["CG"]], positions[6, ATOM_ORDER["CG"]] = 1, positions[6, CB] + [1.5, 0, 0]
    found = relax(replace(hairpin, aatype=aatype, atom_mask=mask, atom_positions=positions))
    assert (found.protein.aatype == aatype).all()
    assert (found.protein.atom_mask[4:7] == mask[4:7]).all()
    assert not np.isin(found.hydrogens.residue, [4, 5, 6]).any()
    assert found.left_out == ()
    # What an alanine has no place for comes along with the C-alpha.
    before, after = positions[6], found.protein.atom_positions[6]
    cg = ATOM_ORDER["CG"]
    assert np.allclose(after[cg] - after[CA], before[cg] - before[CA], atol=1e-4)


@needs_openmm
def test_a_broken_chain_stays_broken_and_ends_as_it_ended(hairpin: Protein) -> None:
    gap = np.r_[0:8, 12 : len(hairpin.aatype)]
    given = part(hairpin, gap)
    found = relax(given)
    assert found.protein.atom_mask[7, OXT] == 0
    at_the_break = {
        name for name, where in zip(found.hydrogens.names, found.hydrogens.residue.tolist(), strict=True) if where == 8
    }
    assert not at_the_break & {"H2", "H3"}
    n, c = ATOM_ORDER["N"], ATOM_ORDER["C"]
    for protein in (given, found.protein):
        assert np.linalg.norm(protein.atom_positions[8, n] - protein.atom_positions[7, c]) > 3
    assert found.rmsd < 0.5


@needs_openmm
def test_residues_without_a_backbone_are_left_where_they_are(hairpin: Protein) -> None:
    mask = hairpin.atom_mask.copy()
    mask[3, C] = 0
    mask[0] = mask[10] = 0
    mask[12] = 0
    given = replace(hairpin, atom_mask=mask)
    found = relax(given)
    assert found.left_out == tuple(given.residue_index[[0, 3, 10, 11, 12]].tolist())
    unmoved = [3, 11]
    assert (found.protein.atom_positions[unmoved] == given.atom_positions[unmoved]).all()
    assert (found.protein.atom_mask[[0, 3, 10, 12]] == mask[[0, 3, 10, 12]]).all()


@pytest.mark.integration
@needs_openmm
def test_missing_side_chains_are_built(hairpin: Protein) -> None:
    long = int(np.argmax(ATOM37_MASK[hairpin.aatype].sum(-1)))
    mask = hairpin.atom_mask.copy()
    mask[long, [atom for atom in range(37) if atom not in (ATOM_ORDER["N"], CA, C, ATOM_ORDER["O"], CB)]] = 0
    found = relax(replace(hairpin, atom_mask=mask))
    assert (found.protein.atom_mask[long] >= ATOM37_MASK[hairpin.aatype[long]]).all()
    assert (found.protein.b_factors[long][found.protein.atom_mask[long] > 0.5] == 87.5).all()
    assert found.after.residues == 0


@needs_openmm
def test_two_residues_are_enough(hairpin: Protein) -> None:
    found = relax(part(hairpin, slice(0, 2)))
    assert np.isfinite(found.final_energy)
    assert found.rmsd < 0.5


@needs_openmm
def test_chains_are_not_bonded_to_each_other(hairpin: Protein) -> None:
    one, other = part(hairpin, slice(0, 8)), part(hairpin, slice(12, 20))
    both = Protein(
        **{
            name: np.concatenate([getattr(one, name), getattr(other, name)])
            for name in RESIDUE_ARRAYS
            if name not in ("chain_index", "residue_index")
        },
        chain_index=np.repeat([0, 1], 8),
        residue_index=np.arange(1, 17),
    )
    found = relax(both)
    assert found.protein.atom_mask[7, OXT] == 1
    assert found.rmsd < 0.5
    assert found.after.bonds == 0


def test_what_is_no_fold_is_refused_before_anything_is_simulated(
    hairpin: Protein, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("helixfold.relax.amber.relaxed", lambda *_: pytest.fail("it was simulated"))
    nan = hairpin.atom_positions.copy()
    nan[3, CA, 0] = np.nan
    rng = np.random.default_rng(0)
    heap = (rng.normal(size=nan.shape) * 0.5).astype(np.float32)
    for positions, words in (
        (nan, "not all finite"),
        (np.zeros_like(nan), "lie within another residue"),
        (heap, "lie within another residue"),
        (hairpin.atom_positions * np.float32(1e6), "far from the next one"),
    ):
        with pytest.raises(RelaxationError, match=words):
            relax(replace(hairpin, atom_positions=positions))
    for few in (part(hairpin, slice(0, 1)), replace(hairpin, atom_mask=np.zeros_like(hairpin.atom_mask))):
        with pytest.raises(RelaxationError, match="two consecutive residues"):
            relax(few)


@pytest.mark.integration
@needs_openmm
def test_time_is_limited(hairpin: Protein) -> None:
    with pytest.raises(RelaxationError, match=r"not finished within 1e-06 seconds"):
        relax(perturbed(hairpin, off=0.3, clashes=0), RelaxOptions(max_seconds=1e-6))


@pytest.mark.integration
@needs_openmm
def test_an_interrupted_relaxation_is_left_as_any_other_work(hairpin: Protein, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("helixfold.relax.amber.Deadline.check", interrupted)
    with pytest.raises(KeyboardInterrupt):
        relax(hairpin)


@pytest.mark.integration
@needs_openmm
def test_a_gpu_that_fails_leaves_the_work_to_the_cpu(hairpin: Protein, monkeypatch: pytest.MonkeyPatch) -> None:
    from helixfold.relax import amber  # noqa: PLC0415  # needs OpenMM

    cpu = amber.platforms(torch.device("cpu"))
    assert [each.getName() for each in cpu] == ["CPU"]
    import openmm  # noqa: PLC0415

    broken = openmm.Platform.getPlatformByName("Reference")
    calls = []
    completed = amber.completed

    def failing(protein: Protein, pieces: object, where: openmm.Platform) -> object:
        calls.append(where.getName())
        if where.getName() == "Reference":
            raise openmm.OpenMMException("out of memory")
        return completed(protein, pieces, where)

    monkeypatch.setattr(amber, "completed", failing)
    monkeypatch.setattr(amber, "platforms", lambda *_: [broken, *cpu])
    assert relax(part(hairpin, slice(0, 3))).platform == "CPU"
    assert calls == ["Reference", "CPU"]


def test_without_openmm_it_says_what_to_install(hairpin: Protein, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problem, "PACKAGES", ("no_such_openmm", "numpy"))
    assert not problem.installed()
    with pytest.raises(RelaxationError, match=r"needs no_such_openmm, .* pip install 'helixfold\[relax\]'"):
        relax(hairpin)


def test_options_are_checked() -> None:
    for wrong in ({"max_rounds": 0}, {"max_seconds": -1.0}):
        with pytest.raises(ConfigError, match="must be greater than 0"):
            RelaxOptions(**wrong)


def closed(name: str) -> Protein:
    """A structure of the package whose only chain is to be a ring."""
    return replace(native(EXAMPLES / name), cyclic_chains=frozenset({0}))


@pytest.mark.integration
@needs_openmm
@pytest.mark.parametrize("name", [pytest.param("hairpin_long.pdb", marks=pytest.mark.long), "hairpin_short.pdb"])
def test_a_ring_is_closed_by_a_peptide_bond(name: str) -> None:
    given = closed(name)
    found = relax(given)
    n, last = ATOM_ORDER["N"], len(given.aatype) - 1
    atoms = found.protein.atom_positions
    assert np.linalg.norm(given.atom_positions[last, C] - given.atom_positions[0, n]) > 4
    assert np.linalg.norm(atoms[last, C] - atoms[0, n]) == pytest.approx(1.33, abs=0.06)
    assert found.protein.cyclic_chains == {0}
    assert found.before.bonds > 0
    assert found.after.residues == 0
    assert found.protein.atom_mask[last, OXT] == 0
    # No end is charged: the first residue has one hydrogen at its N, as all others have.
    first = {name for name, residue in zip(found.hydrogens.names, found.hydrogens.residue, strict=True) if residue == 0}
    assert "H" in first
    assert not first & {"H2", "H3"}
    # What holds across the bond holds within the chain: the peptide is flat.
    omega = [atoms[last, CA], atoms[last, C], atoms[0, n], atoms[0, CA]]
    normals = [np.cross(omega[k + 1] - omega[k], omega[k + 2] - omega[k + 1]) for k in (0, 1)]
    cosine = np.dot(*normals) / np.prod([np.linalg.norm(each) for each in normals])
    assert abs(cosine) > 0.9
    again = relax(found.protein)
    assert again.before.residues == 0
    assert relax(replace(found.protein, cyclic_chains=frozenset())).before.residues > 0  # its ends overlap


@pytest.mark.parametrize(
    ("protein", "problem"),
    [
        (closed("helical_hairpin.pdb"), r"chain 1, which is cyclic, cannot be closed: its ends are 11\.8 A apart"),
        (replace(part(closed("hairpin_long.pdb"), slice(0, 2)), cyclic_chains=frozenset({0})), "it has 2 residues"),
        (replace(part(closed("hairpin_long.pdb"), np.r_[0:9, 12:24]), cyclic_chains=frozenset({0})), "it is broken"),
    ],
)
def test_a_ring_that_cannot_be_closed_is_refused_in_one_sentence(protein: Protein, problem: str) -> None:
    with pytest.raises(RelaxationError, match=problem):
        relax(protein)


@pytest.mark.integration
@needs_openmm
def test_a_relaxed_ring_is_read_back_from_either_file(tmp_path: Path) -> None:
    given = closed("hairpin_short.pdb")
    for suffix, text in (("pdb", to_pdb(given)), ("cif", to_mmcif(given, name="ring", model="none"))):
        path = tmp_path / f"ring.{suffix}"
        path.write_text(text)
        assert relax_files([path], output=tmp_path / "out") == 0
        (chain,) = read_structure(tmp_path / "out" / f"ring_relaxed.{suffix}").chains
        assert chain.is_cyclic
        ends = chain.atom_positions[-1, C] - chain.atom_positions[0, ATOM_ORDER["N"]]
        assert np.linalg.norm(ends) < 1.4
