"""The table, the sequences and the page of binders have accepted ones by rank, and why others were rejected."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from data_pipeline.parse.structures import read_structure
from data_pipeline.protein import Protein
from data_pipeline.residues import RESTYPES
from data_pipeline.structure import protein_from_chains
from helixfold.report.binders import BinderLine, TrajectoryLine, ranked, table, write_binders
from helixfold.report.structures import alphas_of
from helixfold.results.pdb import to_pdb

EXAMPLES = Path(__file__).parents[2] / "examples" / "structures"

TRAJECTORY = TrajectoryLine(
    design="x_l9_s2",
    directory="x",
    number=2,
    length=9,
    helicity=0.5,
    ended="Trajectory_Clashes",
    sequences=0,
    accepted=0,
    loss_by_step=[3.0, 2.0, 2.5],
)
LINE = BinderLine(
    design="x_l9_s0_mpnn1",
    trajectory=replace(TRAJECTORY, design="x_l9_s0", number=0, helicity=-0.3, loss_by_step=[3.0, 1.0]),
    structure="candidate_0_0_tiny.pdb",
    protocol="4stage",
    seed=0,
    hotspots="A3",
    sequence="ACDEFGHIK",
    interface=[0, 4],
    score=1.25,
    recovery=0.5,
    accepted=True,
    unmet=(),
    values={
        "Average_i_pTM": 0.6,
        "1_i_pTM": 0.7,
        "2_i_pTM": 0.5,
        "Average_ipSAE": 0.1,
        "Average_InterfaceAAs": {"A": 1.5, "C": 0.0},
        "1_ShapeComplementarity": None,
    },
    pae=[[0, 31], [31, 0]],
)
BETTER = replace(LINE, design="x_l9_s1_mpnn1", values={**LINE.values, "Average_i_pTM": 0.9, "Average_ipSAE": 0.05})
REJECTED = replace(LINE, design="x_l9_s1_mpnn2", accepted=False, unmet=("Average_pLDDT", "1_dSASA"), sequence="WWW")


def test_accepted_binders_are_ranked_and_rejected_ones_follow() -> None:
    lines = [REJECTED, LINE, BETTER]
    assert ranked(lines, "i_pTM") == [BETTER, LINE, REJECTED]
    assert ranked(lines, "ipSAE") == [LINE, BETTER, REJECTED]


def test_the_table_has_bindcrafts_columns() -> None:
    names, *rows = [line.split("\t") for line in table([BETTER, REJECTED]).splitlines()]
    first, second = (dict(zip(names, row, strict=True)) for row in rows)
    assert names[:8] == ["Rank", "Design", "Protocol", "Length", "Seed", "Helicity", "Target_Hotspot", "Sequence"]
    assert (first["Rank"], first["Average_i_pTM"], first["2_i_pTM"], first["Unmet"]) == ("1", "0.9", "0.5", "NA")
    assert (first["InterfaceResidues"], first["MPNN_seq_recovery"]) == ("1,5", "0.5")
    assert (first["Average_InterfaceAAs"], first["1_ShapeComplementarity"]) == ("A:1.5", "NA")
    assert (second["Rank"], second["Unmet"]) == ("NA", "Average_pLDDT,1_dSASA")
    assert "3_i_pTM" not in names
    assert not any("dG" in name for name in names)


def test_the_page_says_why_designs_were_rejected(tmp_path: Path) -> None:
    write_binders(tmp_path, [LINE, REJECTED], [TRAJECTORY], {"x 3": "no memory"}, rank_by="i_pTM")
    page = (tmp_path / "designs.html").read_text()
    for text in ("Average_pLDDT, 1_dSASA", "Trajectory_Clashes", "no memory", "ACDEFGHIK", "candidate_0_0_tiny.pdb"):
        assert text in page
    assert page.count("data:image/png;base64,") == 1
    assert (tmp_path / "designs.fasta").read_text() == ">x_l9_s0_mpnn1 rank=1\nACDEFGHIK\n"
    # Without files of structures, the page has no viewer.
    assert 'id="viewer"' not in page
    _, line = (tmp_path / "trajectories.tsv").read_text().splitlines()
    assert line.split("\t") == ["x_l9_s2", "9", "0.5", "3", "Trajectory_Clashes", "0", "0"]


def test_the_page_shows_accepted_binders_on_their_target(tmp_path: Path) -> None:
    helix = protein_from_chains(read_structure(EXAMPLES / "helix_short.pdb").chains)
    count, turned = len(helix.aatype), np.roll(np.eye(3, dtype=np.float32), 1, axis=0)
    lines = []
    for index, length in enumerate((count, count - 2)):
        # The target and a shorter or longer binder 12 Angstrom away, elsewhere in each file.
        joined = {
            each: np.concatenate([getattr(helix, each), getattr(helix, each)[:length]])
            for each in ("aatype", "atom_positions", "atom_mask", "residue_index", "b_factors")
        }
        joined["aatype"][0] = 0 if joined["aatype"][0] else 1  # the target's sequence differs from the binder's
        joined["atom_positions"][count:] += 12
        joined["atom_positions"] = joined["atom_positions"] @ (turned if index else np.eye(3, dtype=np.float32)) + index
        complex_ = Protein(**joined, chain_index=np.repeat([0, 1], [count, length]))
        name = f"candidate_{index}_0_tiny.pdb"
        (tmp_path / "x").mkdir(exist_ok=True)
        (tmp_path / "x" / name).write_text(to_pdb(complex_))
        letters = "".join(RESTYPES[kind] for kind in helix.aatype[:length].tolist())
        lines.append(replace(LINE, design=f"x_s{index}", structure=name, sequence=letters))
    write_binders(tmp_path, lines, [TRAJECTORY], {}, rank_by="i_pTM")
    page = (tmp_path / "designs.html").read_text()
    text = page.partition('<script type="application/json" id="data">')[2].partition("</script>")[0]
    data = json.loads(text)
    assert [model["name"] for model in data["models"]] == ["x_s0", "x_s1"]
    assert data["chains"] == [["A", count], ["B", count]]
    assert [len(model["sequence"]) for model in data["models"]] == [2 * count] * 2
    assert data["models"][1]["sequence"].endswith("--")
    assert ["ipTM", "0.60"] in data["models"][0]["scores"]
    assert data["models"][0]["losses"] == ["3.00", "1.00", 2]
    # Both targets end at the same place.
    ends = []
    for model, line in zip(data["models"], lines, strict=True):
        placed = model["structures"]["relaxed"]
        atoms = alphas_of(path := tmp_path / "x" / str(line.structure), path.read_bytes())[:count]
        ends.append(atoms @ np.reshape(placed["rotation"], (3, 3)).T + placed["shift"])
    assert np.abs(ends[0] - ends[1]).max() < 0.05
