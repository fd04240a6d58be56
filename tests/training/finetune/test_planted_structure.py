"""What a protein's true structure is like can be told from what the demonstration model makes of its sequence."""

import json
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.parse.structures import read_structure
from helixfold.cli.main import main

# Chains of at most 80 residues, without alignments; those of the second line were held out when the model was trained.
TRAINED_ON = [
    "1ur3_A", "1d6r_B", "t1106s1_A", "7x1k_A", "3wwn_B", "7pl4_A", "3ua7_A", "2kjx_A", "1ciy_A_v2", "2evb_A",
    "1zuk_A", "1wvn_A", "1ctf_A", "5j0j_C", "1dc1_A", "2x9a_B", "1aa7_A", "1r69_A", "1bvn_B", "7ywq_A", "1guu_A",
    "5sxp_A", "t0953s2_A_v2", "2r6g_G", "t1046s1_A", "t1161_A", "1skz_A", "1efd_A_v2", "7mj3_A",
]  # fmt: skip
HELD_OUT = [
    "1fas_A", "1g2y_A", "1gxj_A", "1iro_A", "1nkt_A", "1okr_A", "1t8k_A", "1vmo_A", "1wba_A", "1wqj_B", "1z0k_B",
    "2bz8_A", "2ccl_B", "2dvw_B", "2o9s_A", "2zxe_B", "3bp8_C", "3m62_B", "3ua7_A_v2", "4q35_A", "4y60_C",
    "5e6p_B", "5sxp_A_v2", "t1052_A_v2", "t1073_A", "t1152_A",
]  # fmt: skip


def helix_fraction(positions: np.ndarray) -> float:
    """The fraction of residues whose C-alpha is 4.5 to 6.3 Angstrom from that of the third residue behind it."""
    distances = np.linalg.norm(positions[3:] - positions[:-3], axis=-1)
    return float(((distances > 4.5) & (distances < 6.3)).mean())


@pytest.mark.long
def test_chains_rich_in_helices_are_told_from_their_sequences(real_data: Path, tmp_path: Path) -> None:
    chains = {
        name: read_structure(real_data / f"train_mmcif/{name}.cif.gz").chains[0] for name in TRAINED_ON + HELD_OUT
    }
    helices = {name: helix_fraction(each.atom_positions[each.atom_mask[:, 1] > 0, 1]) for name, each in chains.items()}
    middle = float(np.median(list(helices.values())))
    labels = {name: int(fraction > middle) for name, fraction in helices.items()}
    shuffled = dict(zip(labels, np.random.default_rng(0).permutation(list(labels.values())), strict=True))
    for kind, values in (("planted", labels), ("shuffled", shuffled)):
        rows = [
            f"{name},{chains[name].sequence},{values[name]},{'test' if name in HELD_OUT else 'train'}"
            for name in chains
        ]
        (tmp_path / f"{kind}.csv").write_text("\n".join(["name,sequence,value,split", *rows, ""]))
        words = ["--table", str(tmp_path / f"{kind}.csv"), "--task", "classification", "--head", "pair"]
        words += ["--adapter", "heads", "--device", "cpu", "--output", str(tmp_path / kind)]
        assert main(["finetune", *words]) == 0
        score = json.loads((tmp_path / kind / "task.json").read_text())["scores"]["frozen network"]["auc"]
        if kind == "planted":
            assert score["value"] >= 0.9
        else:
            assert score["low"] < 0.5 < score["high"]
