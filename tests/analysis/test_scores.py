"""Scores of whole comparisons equal those of the programs they are named after, and of plain loops."""

import math
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from biotite import structure

from data_pipeline.features.ground_truth import ATOM14_ALTERNATIVE
from data_pipeline.parse.structures import read_structure
from data_pipeline.residues import ATOM14_TO_ATOM37, ATOM37_MASK, ATOM_ORDER, RESTYPES
from data_pipeline.structure import Chain
from helixfold.analysis.metrics import superposed_scores, superposition
from helixfold.analysis.residues import Pairing, best_pairing, paired
from helixfold.analysis.scores import Scores, compared
from tests.analysis.uneven_chains import displaced, uneven_chains, without_backbone, without_residues

CA, CB = ATOM_ORDER["CA"], ATOM_ORDER["CB"]
# Two structures each of one protein, or of relatives: bound and free, mutants, other crystals, other numbers.
RELATIVES = (
    *(("1mgr", "1rgg"), ("1shf", "1srl"), ("1y4y", "2hpr"), ("3ptb", "3tgi"), ("1c9o", "1csp"), ("1ycc", "1yea")),
    *(("2igd", "2qmt"), ("1hvr", "1k6p"), ("1bpi", "1g6x"), ("1ab1", "1ejg"), ("1cbn", "2fd7"), ("3tki", "5opb")),
    *(("6btc", "T0958-D1"), ("1g2b", "1shg"), ("2bbm", "3cln"), ("160l", "1l00"), ("1f86", "2qgb"), ("4hw3", "7nb4")),
    *(("1prw", "4cln"), ("2hnp", "2qbs"), ("1axb", "1fqg"), ("1fgu", "1jmc"), ("1orc", "5cro"), ("1dyj", "4dfr")),
    *(("1a22", "3hhr"), ("1cfd", "1cll")),
)
# Unlike ones, of which the n-th residues are compared.
STRANGERS = (
    *(("1mgr", "1shf"), ("1y4y", "3ptb"), ("1c9o", "1ycc"), ("2igd", "1hvr"), ("1bpi", "1ab1"), ("3tki", "1srl")),
    *(("1g2b", "2bbm"), ("160l", "1f86"), ("4hw3", "1prw"), ("2hnp", "1axb"), ("1fgu", "1orc"), ("1dyj", "1a22")),
    *(("1cfd", "1rgg"), ("2hpr", "3tgi"), ("1csp", "1yea"), ("2qmt", "1k6p"), ("1g6x", "1ejg"), ("5opb", "2fd7")),
    *(("1shg", "3cln"), ("1l00", "2qgb"), ("7nb4", "4cln"), ("2qbs", "1fqg"), ("1jmc", "5cro"), ("4dfr", "3hhr")),
)
needs_program = pytest.mark.skipif(shutil.which("TMscore") is None, reason="needs the TM-score program")


def chain_of(real_data: Path, name: str) -> Chain:
    return read_structure(real_data / "pdb" / f"{name}.pdb.gz").chains[0]


def threaded(predicted: Chain, reference: Chain) -> Pairing:
    """Residues of two unlike chains in the order of their observed ones."""
    own = np.flatnonzero(predicted.atom_mask[:, CA] > 0)
    place = np.full(len(reference.aatype), -1, np.int64)
    there = np.flatnonzero(reference.atom_mask[:, CA] > 0)[: len(own)]
    place[there] = own[: len(there)]
    return Pairing(predicted=predicted, reference=reference, place=place)


def written(path: Path, points: np.ndarray, numbers: np.ndarray) -> Path:
    lines = [
        f"ATOM  {serial:5d}  CA  ALA A{number:4d}    {x:8.3f}{y:8.3f}{z:8.3f}  1.00  0.00           C"
        for serial, ((x, y, z), number) in enumerate(zip(points, numbers.tolist(), strict=True), 1)
    ]
    path.write_text("\n".join([*lines, "TER", "END", ""]))
    return path


def program(pairing: Pairing, folder: Path) -> dict[str, float]:
    """What the TM-score program says; it finds residues by their numbers, which are the reference's positions here."""
    both, observed = pairing.both, pairing.observed
    numbers = np.arange(len(both)) + 1
    centre = pairing.predicted.atom_positions[pairing.place[both], CA].mean(0)
    points = pairing.predicted.atom_positions[pairing.place[both], CA] - centre
    model = written(folder / "model.pdb", points, numbers[both])
    native = written(folder / "native.pdb", pairing.reference.atom_positions[observed, CA], numbers[observed])
    printed = subprocess.run(["TMscore", model, native], capture_output=True, text=True, check=True).stdout

    def number(label: str) -> float:
        found = re.search(rf"^{label}\s*=\s*([\d.]+)", printed, re.MULTILINE)
        assert found is not None, printed
        return float(found[1])

    return {
        "tm_score": number("TM-score"),
        "gdt_ts": number("GDT-TS-score"),
        "gdt_ha": number("GDT-HA-score"),
        "rmsd": number("RMSD of  the common residues"),
    }


def aligner(pairing: Pairing, folder: Path) -> float:
    """What TM-align says, which prints more digits, when it is told which residues are aligned."""
    both, observed = pairing.both, pairing.observed
    numbers = np.arange(len(both)) + 1
    found = pairing.predicted.atom_positions[pairing.place[both], CA]
    model = written(folder / "model.pdb", found - found.mean(0), numbers[both])
    true = pairing.reference.atom_positions[observed, CA]
    native = written(folder / "native.pdb", true - true.mean(0), numbers[observed])
    alignment = folder / "alignment.fasta"
    rows = "".join("A" if there else "-" for there in both[observed]), "A" * int(observed.sum())
    alignment.write_text(">model\n{}\n>native\n{}\n".format(*rows))
    run = ["TMalign", model, native, "-I", alignment]
    printed = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    # The second is normalised by the length of the second structure.
    return float(re.findall(r"TM-score=\s*([\d.]+)", printed)[1])


def largest_deviations(pairings: list[Pairing], folder: Path) -> dict[str, float]:
    largest: dict[str, float] = {}
    for pairing in pairings:
        scores, _ = compared(pairing)
        for name, value in program(pairing, folder).items():
            largest[name] = max(largest.get(name, 0), abs(getattr(scores, name) - value))
    return largest


@needs_program
def test_scores_equal_the_programs_on_real_pairs(real_data: Path, tmp_path: Path) -> None:
    names = [*RELATIVES[:10:2], *RELATIVES[12:14]]
    pairings = [best_pairing(*((chain_of(real_data, name),) for name in pair)) for pair in names]
    pairings += [threaded(*(chain_of(real_data, name) for name in pair)) for pair in STRANGERS[:4]]
    found = largest_deviations(pairings, tmp_path)
    # Half of the last digit that the program prints.
    assert found.pop("rmsd") < 6e-4
    assert max(found.values()) < 6e-5, found


@needs_program
@pytest.mark.long
def test_scores_equal_the_programs_on_fifty_real_pairs(real_data: Path, tmp_path: Path) -> None:
    relatives = [best_pairing(*((chain_of(real_data, name),) for name in pair)) for pair in RELATIVES]
    strangers = [threaded(*(chain_of(real_data, name) for name in pair)) for pair in STRANGERS]
    assert len(relatives) + len(strangers) == 50
    for what, pairings in (("relatives", relatives), ("strangers", strangers)):
        found = largest_deviations(pairings, tmp_path)
        found["TM-align"] = max(abs(compared(pairing)[0].tm_score - aligner(pairing, tmp_path)) for pairing in pairings)
        print(what, {name: round(value, 6) for name, value in found.items()})
        assert max(found.values()) < 1e-3
        assert found["TM-align"] < 2e-5


def plain_lddt(predicted: np.ndarray, true: np.ndarray, residue: np.ndarray) -> float:
    """Without any library; atoms that the prediction lacks are NaN."""
    kept = count = 0.0
    for i in range(len(true)):
        for j in range(len(true)):
            distance = np.linalg.norm(true[i] - true[j])
            if residue[i] != residue[j] and distance < 15:
                off = abs(np.linalg.norm(predicted[i] - predicted[j]) - distance)
                kept += sum(bool(off < limit) for limit in (0.5, 1.0, 2.0, 4.0)) / 4
                count += 1
    return kept / count


Atoms = dict[tuple[int, int], np.ndarray]  # by residue of the reference and atom37 slot
# Atoms that half a turn of a planar group exchanges.
EXCHANGED = {"D": [("OD1", "OD2")], "E": [("OE1", "OE2")], "F": [("CD1", "CD2"), ("CE1", "CE2")]}
EXCHANGED["Y"] = EXCHANGED["F"]


def lddt_by_loops(predicted: Atoms, true: Atoms) -> tuple[dict[int, float], float]:
    """LDDT of each residue that has distances, and of all (Mariani et al. 2013); a missing atom preserves nothing."""
    kept: dict[int, list[float]] = {}
    for one, here in true.items():
        for other, there in true.items():
            distance = math.dist(here, there)
            if one[0] == other[0] or distance >= 15:
                continue
            share = 0.0
            if one in predicted and other in predicted:
                off = abs(math.dist(predicted[one], predicted[other]) - distance)
                share = sum(off < limit for limit in (0.5, 1, 2, 4)) / 4
            kept.setdefault(one[0], []).append(share)
    every = [share for shares in kept.values() for share in shares]
    return {residue: sum(shares) / len(shares) for residue, shares in kept.items()}, sum(every) / len(every)


def with_better_names(predicted: Atoms, true: Atoms, sequence: str) -> Atoms:
    """The predicted atoms, of which those with exchangeable names have the names under which more distances fit.

    Distances to all atoms that have one name only decide, and both names must be there.
    """
    slots = {
        row: [(ATOM_ORDER[one], ATOM_ORDER[other]) for one, other in EXCHANGED.get(letter, [])]
        for row, letter in enumerate(sequence)
    }
    two_names = {(row, slot) for row, pairs in slots.items() for pair in pairs for slot in pair}
    renamed = dict(predicted)
    for row, pairs in slots.items():
        own = [(row, slot) for pair in pairs for slot in pair]
        if not pairs or not all(atom in predicted and atom in true for atom in own):
            continue
        exchange = {(row, a): (row, b) for pair in pairs for a, b in (pair, pair[::-1])}
        fits = [0, 0]
        for atom in own:
            for other in true.keys() & predicted.keys():
                distance = math.dist(true[atom], true[other])
                if other not in two_names and other[0] != row and distance < 15:
                    for place, name in enumerate((atom, exchange[atom])):
                        off = abs(math.dist(predicted[name], predicted[other]) - distance)
                        fits[place] += sum(off < limit for limit in (0.5, 1, 2, 4))
        if fits[1] > fits[0]:
            renamed |= {atom: predicted[exchange[atom]] for atom in own}
    return renamed


@pytest.mark.parametrize(("name", "missing"), [("B", (0, 6)), ("C", (14,)), ("D", (3, 4)), ("A", ())])
def test_lddt_of_a_chain_with_gaps_unknown_residues_and_missing_atoms_is_that_of_loops(
    name: str, missing: tuple[int, ...]
) -> None:
    (reference,) = uneven_chains(name, seed=4)
    reference = without_backbone(reference, 5)
    whole = displaced(reference, 0.7, seed=1)
    # Names of a planar group are exchanged in every second residue that has one.
    positions = whole.atom_positions.copy()
    for row, letter in enumerate(reference.sequence):
        for pair in EXCHANGED.get(letter, []) if row % 2 else []:
            slots = [ATOM_ORDER[each] for each in pair]
            positions[row, slots] = positions[row, slots[::-1]]
    predicted = without_residues(replace(whole, atom_positions=positions), *missing)
    kept = [row for row in range(len(reference.sequence)) if row not in missing]
    place = np.array([kept.index(row) if row in kept else -1 for row in range(len(reference.sequence))])
    # The types of two residues differ: only atoms of both count.
    aatype = predicted.aatype.copy()
    aatype[[2, -1]] = RESTYPES.index("A"), RESTYPES.index("G")
    mask = predicted.atom_mask * ATOM37_MASK[aatype] if name != "D" else predicted.atom_mask
    predicted = replace(predicted, aatype=aatype, atom_mask=np.where(aatype[:, None] == 20, predicted.atom_mask, mask))
    true: Atoms = {}
    ours: Atoms = {}
    for row, own in enumerate(place.tolist()):
        for slot in range(37):
            if not reference.atom_mask[row, slot] or not ATOM37_MASK[reference.aatype[row], slot]:
                continue
            if own < 0 or aatype[own] == 20 or ATOM37_MASK[aatype[own], slot]:
                true[row, slot] = reference.atom_positions[row, slot].astype(np.float64)
                if own >= 0 and predicted.atom_mask[own, slot]:
                    ours[row, slot] = predicted.atom_positions[own, slot].astype(np.float64)
    by_residue, expected = lddt_by_loops(with_better_names(ours, true, reference.sequence), true)
    found, residues = compared(Pairing(predicted=predicted, reference=reference, place=place))
    observed = [row for row in range(len(place)) if reference.atom_mask[row, CA]]
    assert found.lddt == pytest.approx(expected, abs=1e-6)
    each = [by_residue.get(row, math.nan) for row in observed]
    np.testing.assert_allclose(residues.lddt, each, atol=1e-6)
    # C-alphas, whatever their residues' types are.
    alphas = {(row, CA): reference.atom_positions[row, CA].astype(np.float64) for row in observed}
    common = {
        (row, CA): predicted.atom_positions[place[row], CA].astype(np.float64) for row in observed if place[row] >= 0
    }
    by_residue, expected = lddt_by_loops(common, alphas)
    assert found.lddt_ca == pytest.approx(expected, abs=1e-6)
    np.testing.assert_allclose(residues.lddt_ca, [by_residue[row] for row in observed], atol=1e-6)
    assert (found.residues, found.compared) == (len(observed), len(common))
    assert residues.number.tolist() == [int(reference.residue_numbers[row]) for row in observed]
    assert residues.letters == "".join(reference.sequence[row] for row in observed)
    assert residues.present.tolist() == [place[row] >= 0 for row in observed]
    own_numbers = [int(predicted.residue_numbers[place[row]]) if place[row] >= 0 else 0 for row in observed]
    assert residues.predicted_number.tolist() == own_numbers
    assert 0.2 < expected < 0.95


def noisy(chain: Chain, off: float, seed: int = 0) -> Chain:
    rng = np.random.default_rng(seed)
    moved = chain.atom_positions + off * rng.normal(size=chain.atom_positions.shape)
    return replace(chain, atom_positions=(moved * chain.atom_mask[..., None]).astype(np.float32))


def without(chain: Chain, residues: slice) -> Chain:
    mask, observed = chain.atom_mask.copy(), chain.observed.copy()
    mask[residues], observed[residues] = 0, False
    return replace(chain, atom_mask=mask, observed=observed)


@pytest.fixture(scope="module")
def hairpin() -> Chain:
    """A real fold that comes with the package."""
    return read_structure(Path(__file__).parents[2] / "examples/structures/helical_hairpin.pdb").chains[0]


def scored(predicted: Chain, reference: Chain) -> Scores:
    return compared(paired(predicted, reference))[0]


def test_lddt_equals_biotites_and_a_plain_loop(hairpin: Chain) -> None:
    predicted = noisy(hairpin, 0.8)
    found, residues = compared(paired(predicted, hairpin))
    there = hairpin.atom_mask[:, CA] > 0
    arguments = predicted.atom_positions[there, CA], hairpin.atom_positions[there, CA], np.arange(int(there.sum()))
    assert found.lddt_ca == pytest.approx(plain_lddt(*arguments), abs=1e-6)
    atoms = structure.AtomArray(int(there.sum()))
    atoms.coord, atoms.res_id = arguments[1], arguments[2]
    assert found.lddt_ca == pytest.approx(float(structure.lddt(atoms, arguments[0])), abs=1e-6)
    each = structure.lddt(atoms, arguments[0], aggregation="residue")
    np.testing.assert_allclose(residues.lddt_ca, each, atol=1e-6)


def test_lddt_of_all_atoms_equals_a_plain_loop(hairpin: Chain) -> None:
    predicted = noisy(hairpin, 0.8)
    mask = (hairpin.atom_mask > 0) & (ATOM37_MASK[hairpin.aatype] > 0)
    residue, _ = mask.nonzero()
    expected = plain_lddt(predicted.atom_positions[mask], hairpin.atom_positions[mask], residue)
    # No side chain of it can be named in two ways.
    assert not set(hairpin.sequence) & set("DEFY") or scored(predicted, hairpin).lddt >= expected - 1e-6
    if not set(hairpin.sequence) & set("DEFY"):
        assert scored(predicted, hairpin).lddt == pytest.approx(expected, abs=1e-6)


def test_what_the_prediction_lacks_counts_as_wrong(hairpin: Chain) -> None:
    length = len(hairpin.aatype)
    half = scored(without(noisy(hairpin, 0.1), slice(length // 2, None)), hairpin)
    assert (half.residues, half.compared) == (length, length // 2)
    assert half.gdt_ts == pytest.approx((length // 2) / length)
    assert half.tm_score < 0.6
    assert half.lddt_ca < 0.6
    assert half.rmsd < 0.3
    points = noisy(hairpin, 0.1).atom_positions[:, CA].copy()
    points[length // 2 :] = np.nan
    assert half.lddt_ca == pytest.approx(plain_lddt(points, hairpin.atom_positions[:, CA], np.arange(length)), abs=1e-6)


def test_a_residue_that_the_prediction_has_not_is_wrong_and_no_other(hairpin: Chain) -> None:
    """Its place is -1, at which arrays have their last residue."""
    gone, length = 4, len(hairpin.aatype)
    rest = np.delete(np.arange(length), gone)
    shorter = replace(
        hairpin,
        sequence="".join(hairpin.sequence[index] for index in rest),
        **{name: getattr(hairpin, name)[rest] for name in ("aatype", "atom_positions", "atom_mask", "b_factors")},
        **{name: getattr(hairpin, name)[rest] for name in ("observed", "residue_numbers")},
        residue_names=tuple(hairpin.residue_names[index] for index in rest),
        insertion_codes=tuple(hairpin.insertion_codes[index] for index in rest),
    )
    pairing = paired(shorter, hairpin)
    assert pairing.place[gone] == -1
    scores, residues = compared(pairing)
    assert (scores.residues, scores.compared) == (length, length - 1)

    def preserved(mask: np.ndarray) -> float:
        """Share of distances within 15 Angstrom that are not of the missing residue."""
        points, (residue, _) = hairpin.atom_positions[mask], mask.nonzero()
        near = np.linalg.norm(points[:, None] - points[None], axis=-1) < 15
        near &= residue[:, None] != residue[None]
        lacking = (residue[:, None] == gone) | (residue[None] == gone)
        return 1 - (near & lacking).sum() / near.sum()

    atoms = (hairpin.atom_mask > 0) & (ATOM37_MASK[hairpin.aatype] > 0)
    assert scores.lddt == pytest.approx(preserved(atoms), abs=1e-6)
    assert scores.lddt_ca == pytest.approx(preserved(atoms & (np.arange(37) == CA)), abs=1e-6)
    assert (residues.lddt[gone], residues.lddt_ca[gone]) == (0, 0)
    assert (np.delete(residues.lddt, gone) > 0.8).all()


def test_what_the_experiment_did_not_see_is_not_asked_for(hairpin: Chain) -> None:
    length = len(hairpin.aatype)
    found = scored(noisy(hairpin, 0.1), without(hairpin, slice(length // 2, None)))
    assert (found.residues, found.compared) == (length // 2, length // 2)
    assert found.gdt_ts == 1
    assert found.lddt_ca > 0.95


def test_half_a_turn_of_a_planar_group_changes_nothing(real_data: Path) -> None:
    true = chain_of(real_data, "1crn")
    turned = true.atom_positions.copy()
    rows = np.arange(len(true.aatype))[:, None]
    slots = ATOM14_TO_ATOM37[true.aatype]
    exists = true.atom_mask[rows, slots] * (slots >= 0)
    others = np.take_along_axis(slots, ATOM14_ALTERNATIVE[true.aatype], axis=1)
    changed = others != slots
    assert changed.any()
    for residue, slot in np.argwhere(changed & (exists > 0)).tolist():
        turned[residue, slots[residue, slot]] = true.atom_positions[residue, others[residue, slot]]
    found = scored(replace(true, atom_positions=turned), true)
    assert found.lddt == pytest.approx(1, abs=1e-6)
    mask = (true.atom_mask > 0) & (ATOM37_MASK[true.aatype] > 0)
    assert plain_lddt(turned[mask], true.atom_positions[mask], mask.nonzero()[0]) < 0.9999


def test_a_mutated_side_chain_is_compared_as_far_as_both_go(hairpin: Chain) -> None:
    aatype = hairpin.aatype.copy()
    long = int(np.argmax(ATOM37_MASK[aatype].sum(-1)))
    mask = hairpin.atom_mask.copy()
    aatype[long] = RESTYPES.index("A")
    mask[long] *= ATOM37_MASK[aatype[long]]
    letters = [*hairpin.sequence]
    letters[long] = "A"
    found = scored(replace(hairpin, aatype=aatype, atom_mask=mask, sequence="".join(letters)), hairpin)
    assert found.lddt == pytest.approx(1, abs=1e-6)
    assert found.identity == pytest.approx(1 - 1 / len(aatype))
    # An atom that the type has and the prediction has not is missing, though.
    mask = hairpin.atom_mask.copy()
    mask[long, CB] = 0
    assert scored(replace(hairpin, atom_mask=mask), hairpin).lddt < 1


def test_b_factors_are_plddt_only_if_they_can_be(hairpin: Chain) -> None:
    plddt = np.linspace(40, 95, len(hairpin.aatype), dtype=np.float32)
    confident = replace(hairpin, b_factors=plddt[:, None] * hairpin.atom_mask)
    scores, residues = compared(paired(confident, hairpin))
    assert scores.plddt == pytest.approx(plddt.mean(), abs=1e-3)
    assert residues.plddt is not None
    np.testing.assert_allclose(residues.plddt, plddt, atol=1e-4)
    for other in (
        np.random.default_rng(0).uniform(0, 50, hairpin.atom_mask.shape),
        np.full(hairpin.atom_mask.shape, 20.0),
        3 * plddt[:, None] * np.ones(37),
    ):
        assert scored(replace(hairpin, b_factors=(other * hairpin.atom_mask).astype(np.float32)), hairpin).plddt is None


def test_scores_are_normalised_by_the_length_that_is_given() -> None:
    points = np.cumsum(np.random.default_rng(0).normal(size=(60, 3)), 0)
    found = superposed_scores(points, points, length=120)
    assert found.tm_score == pytest.approx(0.5, abs=1e-6)
    assert found.gdt_ts == found.gdt_ha == 0.5
    # The scale of distances is also that of the length, 4.0 Angstrom here and 2.6 for 60 residues.
    moved = points + np.random.default_rng(1).normal(size=points.shape) * 2
    fitted = superposition(moved, points).apply(moved)
    scale = 1.24 * np.cbrt(120 - 15) - 1.8
    expected = (1 / (1 + np.square(fitted - points).sum(-1) / scale**2)).sum() / 120
    assert expected <= superposed_scores(moved, points, length=120).tm_score < 1.05 * expected
