"""One command from a sequence to a structure: databases searched in this process, templates from real mmCIF files."""

import json
from pathlib import Path

import pytest

from data_pipeline.features.schema import Features
from data_pipeline.parse.structures import read_structure
from helixfold.cli.main import main

ENTRIES = ("3u8v", "4i6p", "3zee", "1crn", "1pga")


@pytest.fixture
def profile(real_data: Path, tmp_path: Path) -> Path:
    """A profile of two sequence samples and of the chains of a few entries."""
    structures = [read_structure(real_data / "mmcif" / f"{entry}.cif.gz") for entry in ENTRIES]
    (tmp_path / "pdb_seqres.txt").write_text(
        "".join(
            f">{structure.name}_{chain.name} mol:protein length:{len(chain.sequence)}  X\n{chain.sequence}\n"
            for structure in structures
            for chain in structure.chains
        )
    )
    fasta = real_data / "fasta"
    path = tmp_path / "databases.toml"
    path.write_text(
        f'[[alignments]]\nname = "uniref90"\ntool = "jackhmmer"\nmax_rows = 10000\n'
        f'path = "{fasta / "minidb_uniref90__subsampled_1000.fasta.gz"}"\n'
        f'[[alignments]]\nname = "mgnify"\ntool = "jackhmmer"\nmax_rows = 501\n'
        f'path = "{fasta / "minidb_mgy_clusters__subsampled_1000.fa.gz"}"\n'
        f'[templates]\ntool = "hmmsearch"\npath = "pdb_seqres.txt"\nstructures = "{real_data / "mmcif"}"\n'
        "latest_release = 2013-08-01\n"
    )
    return path


def test_a_sequence_becomes_a_structure_with_real_templates(
    profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("helixfold.weights.find.parameters_directory", lambda: tmp_path / "cache")
    target = "GSEFKVTVCFGKTRVVVPCGDGRMKVFSLIEQAVTRYKKALAKDPNYWIQVHKLEHGDGGILDLDDVLCDVADDKDRLVAVFDEQA"
    (tmp_path / "target.fasta").write_text(f">par3\n{target}\n")
    command = [
        "predict",
        str(tmp_path / "target.fasta"),
        "--databases",
        str(profile),
        "--num-recycles",
        "0",
        "--models",
        "tiny",
    ]
    assert main([*command, "--output", str(tmp_path / "out")]) == 0

    out = tmp_path / "out" / "par3"
    report = json.loads((out / "templates.json").read_text())
    assert "4i6p_A" in [template["name"] for template in report["used"]]
    # 3zee was released in October 2013, after the day that the profile allows.
    assert "3zee_A" in [hit["name"] for hit in report["rejected"] if "released" in hit["reason"]]
    features = Features.load(out / "features.npz")
    place = features.template_domain_names.index("4i6p_A")
    assert (features.template_all_atom_masks[place, :, 1] > 0).sum() > 60
    assert {path.name for path in (out / "msas").iterdir()} == {
        "mgnify_hits.sto",
        "pdb_hits.sto",
        "searches.json",
        "uniref90_hits.sto",
    }
    predicted = read_structure(out / "ranked_0.pdb")
    assert predicted.chains[0].sequence == target
    assert "par3: " in capsys.readouterr().out
