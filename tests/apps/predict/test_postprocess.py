"""A slim target keeps the files that identify its results, by value, and no others."""

from pathlib import Path

import pytest

from helixfold.apps.predict.postprocess import slim_down

KEPT = (
    *("ranked_0.pdb", "ranked_12.cif", "confidence_model_1_ptm.json", "pae_model_1_ptm.json"),
    *("pae_model_1_ptm.bcif.gz", "logits_model_1_ptm.npz", "representations_model_1_ptm.npz"),
    *("representations_model_1_ptm.safetensors", "ranking_debug.json", "settings.json", "relax_metrics.json"),
)
REMOVED = (
    *("unrelaxed_model_1_ptm.pdb", "relaxed_model_1_ptm.cif", "features.npz", "timings.json", "templates.json"),
    *("plddt.png", "report.html", "T1_plddt.tsv", "distances_model_1_ptm.npz", "recycles_model_1_ptm.pdb"),
    *("ranked_x.pdb", "ranked_0.pdb.bak", "my_settings.json"),
)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    for name in (*KEPT, *REMOVED, "msas/H/rows.a3m"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"content of {name}")
    return tmp_path


def test_a_slim_target_has_its_ranked_structures_confidences_and_records(target: Path) -> None:
    slim_down(target)
    files = {str(path.relative_to(target)): path.read_text() for path in target.rglob("*") if path.is_file()}
    assert files == {name: f"content of {name}" for name in (*KEPT, "msas/H/rows.a3m")}
