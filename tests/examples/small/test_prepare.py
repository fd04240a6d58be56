"""The small model's training set and its trial: template hits, simulated homologs, copies and differences."""

from pathlib import Path

import numpy as np
import pytest

from data_pipeline.parse.structures import read_structure
from data_pipeline.residues import RESTYPES
from helixfold.cli.main import main
from tests.examples.small.scripts import small_script

prepare, simulated, verdicts = (small_script(name) for name in ("prepare", "simulated_homologs", "verdicts"))
copy_templates, split = small_script("copy_templates"), small_script("split")
PEPTIDES = Path(__file__).parents[3] / "examples" / "structures"


def test_template_hits_name_the_librarys_files_and_nothing_is_learnt_from_copyleft() -> None:
    library_chain, relation = small_script("library").LibraryChain, small_script("families").Relation
    files = {
        "own": "mmcif/1abc.cif.gz",
        "copy": "pdb/1abc.pdb.gz",
        "free": "pdb/2def.pdb.gz",
        "left": "pdb/3ghi.pdb.gz",
    }
    library = {
        name: library_chain(
            name=name, entry=file[-11:-7], file=file, chain="A", sequence="A" * 40, is_copyleft=name == "left"
        )
        for name, file in files.items()
    }
    hits = [relation(query="own", target=name, identity=0.4, bits=50, columns=("0.4", "x")) for name in files]
    chain = split.SplitChain(
        name="own", file=files["own"], chain="A", length=40, family="f", protein="p", set=split.TRAIN, target="",
        template="", identity=None,
    )  # fmt: skip
    assert prepare.hit_lines(chain, hits[1:], library, learnt=True) == ["own\tpdb-2def_A\t0.4\tx"]
    assert len(prepare.hit_lines(chain, hits[1:], library, learnt=False)) == 2


def test_residues_in_contact_change_together_in_simulated_homologs() -> None:
    rng = np.random.default_rng(0)
    charge = {RESTYPES.index("K"): 1.0, RESTYPES.index("E"): -1.0}
    charges = np.array([charge.get(kind, 0.0) for kind in range(20)])
    aatype = np.array([RESTYPES.index(letter) for letter in "KAQEAQRAND"])
    sampled = simulated.sample_rows(aatype, np.array([[0, 9], [3, 7]]), -charges[:, None] * charges[None], 400, rng)
    assert sampled.shape == (400, 10)
    identity = (sampled == aatype).mean(axis=1)
    assert identity.min() < 0.5 < identity.max()
    value = charges[sampled]
    together = [(value[:, one] * value[:, other]).mean() for one, other in ((0, 9), (3, 7))]
    apart = (value[:, 0] * value[:, 3]).mean() - value[:, 0].mean() * value[:, 3].mean()
    assert max(together) < -0.05
    assert abs(apart) < 0.1
    gaps = simulated.missing(200, 60, rng)
    assert 0.02 < gaps.mean() < 0.3
    assert not gaps.all(axis=1).any()


def test_the_contact_potential_is_symmetric_and_counts_contacts() -> None:
    chain = read_structure(PEPTIDES / "hairpin_long.pdb").chains[0]
    pairs = simulated.contacts_of(chain)
    assert len(pairs) > 3
    assert ((pairs[:, 1] - pairs[:, 0]) >= simulated.MIN_SEPARATION).all()
    potential = simulated.contact_potential([chain] * 50)
    np.testing.assert_allclose(potential, potential.T)
    first, second = chain.aatype[pairs].T
    assert potential[first, second].mean() > potential[np.ix_(chain.aatype, chain.aatype)].mean()


def test_an_alignment_of_a_whole_chain_is_cut_to_the_target(tmp_path: Path) -> None:
    path, cut = tmp_path / "0_whole.a3m", tmp_path / "cut"
    path.write_text(">whole\nMKTAYIAKQR\n>row\nMKT-YaIAKQR\n>before\nMK--------\n")
    assert prepare.fitted(path, "MKTAYIAKQR", cut) == path
    assert not cut.exists()
    found = prepare.fitted(path, "TAYIAKQR", cut)
    assert found == cut / "0_whole.a3m"
    assert found.read_text() == ">whole\nTAYIAKQR\n>row\nxxT-YxIAKQR\n"


@pytest.fixture
def benchmark(tmp_path: Path) -> Path:
    """A target whose template is its own structure with half of the sequence replaced, and one without."""
    path = PEPTIDES / "meander.pdb"
    sequence = read_structure(path).chains[0].sequence
    table = tmp_path / "template.tsv"
    other = read_structure(PEPTIDES / "helix_long.pdb").chains[0].sequence
    table.write_text(
        "id\tsequence\treferences\ttemplates\n"
        f"meander_A\t{sequence}\t{path}\t{path}\n"
        f"helix_long_A\t{other}\t{PEPTIDES / 'helix_long.pdb'}\t{path}\n"
    )
    return table


def test_a_copied_template_is_scored_and_a_missing_one_counts_as_nothing(benchmark: Path, tmp_path: Path) -> None:
    assert copy_templates.copy_templates(benchmark, tmp_path / "copies") == (1, 2)
    copies = tmp_path / "copies"
    evaluated = [
        "evaluate",
        str(copies / "structures"),
        str(copies / "references"),
        "--output",
        str(copies / "evaluation"),
    ]
    assert main(evaluated) == 0
    scores = verdicts.read_scores(copies / "evaluation", "lddt_ca")
    assert scores == {"meander_A": pytest.approx(1.0)}
    own, other, gain = verdicts.difference({"meander_A": 0.9, "helix_long_A": 0.5}, scores, {})
    assert (own.value, other.value, gain.value) == pytest.approx((0.7, 0.5, 0.2))
    assert gain.low < gain.value < gain.high
    together = verdicts.difference({"meander_A": 0.9, "helix_long_A": 0.5}, scores, dict.fromkeys(scores, "one"))[2]
    assert together.low < gain.value
    of_one = dict.fromkeys(("meander_A", "helix_long_A"), "family")
    assert verdicts.difference({"meander_A": 0.9, "helix_long_A": 0.5}, scores, of_one)[2].low == pytest.approx(0.2)
    lines = verdicts.violation_lines(copies / "structures")
    assert lines[-1].startswith("all\t")


def test_targets_are_grouped_by_identity() -> None:
    def chain(name: str, identity: float | None) -> object:
        return split.SplitChain(
            name=name, file="", chain="A", length=1, family=name, protein=name, set=split.SET_ASIDE,
            target=split.TEMPLATE, template="x", identity=identity,
        )  # fmt: skip

    table = [chain("near", 0.55), chain("far", 0.22), chain("middle", 0.33), chain("alone", None)]
    found = verdicts.groups(["alone", "far", "middle", "near"], table)
    assert found["all"] == ["alone", "far", "middle", "near"]
    assert found["template 25-60 %"] == ["middle", "near"]
    assert found["template below 25 %"] == ["far"]
    assert found["bin from 50 %"] == ["near"]


def test_calibration_says_how_far_plddt_is_above_the_truth(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = ["target\trank\tplddt\tlddt_ca"]
    for target in range(6):
        for true in rng.uniform(0.2, 0.9, 30):
            lines.append(f"t{target}\t0\t{100 * true + 10:.1f}\t{true:.3f}")
    lines.append("t0\t0\tNA\t0.5")
    (tmp_path / "residues.tsv").write_text("".join(f"{line}\n" for line in lines))
    _, line = verdicts.calibration_lines([tmp_path], tmp_path / "plot.png")
    assert "1.000 [1.000, 1.000]\t10.0" in line
    assert (tmp_path / "plot.png").stat().st_size > 5000


def test_shuffled_columns_keep_their_composition_and_the_target(tmp_path: Path) -> None:
    shuffled = small_script("shuffled_columns")
    (tmp_path / "one.a3m").write_text(
        ">query\nACDE\n" + "".join(f">r\n{row}\n" for row in ("AAAA", "CCCC", "DD-D", "EE-E"))
    )
    (tmp_path / "alignment.tsv").write_text(f"id\tmsa\none\t{tmp_path / 'one.a3m'}\n")
    assert shuffled.shuffle_benchmark(tmp_path / "alignment.tsv", tmp_path / "out") == 1
    rows = (tmp_path / "out/one.a3m").read_text().split("\n")[1::2]
    assert rows[0] == "ACDE"
    assert [sorted(column) for column in zip(*rows[1:], strict=True)] == [list("ACDE")] * 2 + [
        list("--AC"),
        list("ACDE"),
    ]
    assert any(row not in ("AAAA", "CCCC", "DD-D", "EE-E") for row in rows[1:])
    assert (tmp_path / "out/alignment.tsv").read_text() == f"id\tmsa\none\t{(tmp_path / 'out/one.a3m').resolve()}\n"
