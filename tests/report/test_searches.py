"""What files and searches gave is told in one line, and in templates.json with a reason for each unused hit."""

from datetime import date
from pathlib import Path

import pytest

from data_pipeline.features.complexes.pipeline import PreparedComplex
from data_pipeline.pipeline import Homologs, PreparedTarget
from data_pipeline.templates.result import RejectedHit, RejectionReason, TemplateResult, UsedTemplate
from helixfold.report.searches import summary, template_report, templates_of
from tests.data_pipeline.sampling.samples import random_features
from tests.support.complex_targets import feature_set


def template(name: str, rank: int, day: date | None = None) -> UsedTemplate:
    return UsedTemplate(name=name, rank=rank, release_date=day, aligned=7, identity=0.123456, note=f"of {name}")


RESULT = TemplateResult(
    features=None,  # type: ignore[arg-type]
    used=(template("1abc_A", 1, date(2020, 5, 14)), template("2xyz_B", 4)),
    rejected=(RejectedHit.of("3def_C", RejectionReason.SHORT, "has 5 residues", 2),),
)
FIRST = {
    **{"name": "1abc_A", "rank": 1, "release_date": "2020-05-14", "aligned_residues": 7, "identity": 0.123},
    "note": "of 1abc_A",
}
SHORT = {"name": "3def_C", "rank": 2, "reason": "too few residues", "detail": "3def_C: has 5 residues"}


def test_templates_that_no_model_reads_are_rejected_before_the_others() -> None:
    second = FIRST | {"name": "2xyz_B", "rank": 4, "release_date": None, "note": "of 2xyz_B"}
    assert template_report(RESULT) == {"used": [FIRST, second], "rejected": [SHORT]}
    enough, unread = RejectionReason.ENOUGH.value, RejectionReason.UNREAD.value
    later = {"name": "2xyz_B", "rank": 4, "reason": enough, "detail": f"2xyz_B: aligned, but {enough}"}
    assert template_report(RESULT, read={"1abc_A"}) == {"used": [FIRST], "rejected": [later, SHORT]}
    found = template_report(RESULT, read=())
    assert found["used"] == []
    assert [each["reason"] for each in found["rejected"]] == [unread, unread, "too few residues"]


def test_templates_of_a_complex_name_their_chains() -> None:
    found = template_report(RESULT, "B", {"chain B: 2xyz_B", "1abc_A"})
    assert [(each["chain"], each["name"]) for each in found["used"]] == [("B", "2xyz_B")]
    assert [(each["chain"], each["name"]) for each in found["rejected"]] == [("B", "1abc_A"), ("B", "3def_C")]


@pytest.fixture
def prepared_complex() -> PreparedComplex:
    found = {
        name: Homologs(alignments={}, templates=templates)
        for name, templates in (("A", RESULT), ("B", None), ("C", RESULT))
    }
    return PreparedComplex(features=feature_set("ABA"), homologs=found, notes=("a note",))


def test_a_targets_templates_are_those_of_all_chains(prepared_complex: PreparedComplex) -> None:
    features = random_features(4, 9)
    assert templates_of(PreparedTarget(features=features, alignment_rows={}, templates=None)) is None
    single = templates_of(PreparedTarget(features=features, alignment_rows={}, templates=RESULT), {"1abc_A"})
    assert single == template_report(RESULT, read={"1abc_A"})
    found = templates_of(prepared_complex, {"chain C: 1abc_A"})
    assert found is not None
    assert [(each["chain"], each["name"]) for each in found["used"]] == [("C", "1abc_A")]
    assert [each["chain"] for each in found["rejected"]] == ["A", "A", "A", "C", "C"]
    none = {name: Homologs(alignments={}, templates=None) for name in "AB"}
    assert templates_of(PreparedComplex(features=prepared_complex.features, homologs=none)) is None


def test_the_screen_has_rows_by_file_templates_and_notes(prepared_complex: PreparedComplex) -> None:
    rows = {str(Path("some") / "uniref.a3m"): 1234, "bfd.a3m": 5}
    prepared = PreparedTarget(
        features=random_features(4, 9), alignment_rows=rows, templates=RESULT, notes=("x is not used",)
    )
    assert summary(prepared) == (
        "4 rows in the alignment (1,234 from uniref.a3m, 5 from bfd.a3m); 2 templates (1abc_A, 2xyz_B), "
        "1 hit not used, see templates.json; x is not used"
    )
    assert summary(prepared, {"2xyz_B"}).endswith(
        "; 1 template (2xyz_B), 1 (1abc_A) that no model of this run uses, 1 hit not used, see templates.json; "
        "x is not used"
    )
    features = prepared_complex.features.multimer
    whole = f"{len(features.msa)} rows in the alignment, {features.paired_rows - 1 or 'none'} of them paired"
    templates = "2 templates (1abc_A, 2xyz_B), 1 hit not used, see templates.json"
    assert summary(prepared_complex) == f"{whole}; chain A; {templates}; chain C; {templates}; a note"
    same = PreparedComplex(features=feature_set("AA"), homologs={})
    assert summary(same) == f"{len(same.features.multimer.msa)} rows in the alignment"
