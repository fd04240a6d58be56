"""From a sequence and alignment files to features, on made-up and on real input."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.io.errors import InputError, SearchError
from data_pipeline.parse.alignment import read_alignment
from data_pipeline.pipeline import Target, prepare, search_ahead
from data_pipeline.sampling.sample import SamplingConfig, draw_sample
from data_pipeline.search.plan import AlignmentStep, SearchPlan, TemplateStep
from data_pipeline.search.tool import FileFormat
from data_pipeline.templates.filters import TemplateOptions
from data_pipeline.templates.structure_directory import StructureDirectory


class FakeSearch:
    """A search that knows its result and counts its calls."""

    file_format: FileFormat = "a3m"

    def __init__(self, rows: bytes = b"", *, version: str = "1") -> None:
        self.rows, self.version, self.searched = rows, version, list[str]()

    def identity(self) -> str:
        return f"fake {self.version}"

    def search(self, sequence: str) -> bytes:
        self.searched.append(sequence)
        if sequence.startswith("W"):
            raise SearchError("fake: exit code 1: no such luck")
        return b">query\n" + sequence.encode() + b"\n" + self.rows


class FakeBatchSearch(FakeSearch):
    targets_per_pass = 16

    def __init__(self, rows: bytes = b"") -> None:
        super().__init__(rows)
        self.batches: list[list[str]] = []

    def search_many(self, sequences: Sequence[str]) -> list[bytes]:
        self.batches.append(list(sequences))
        return [FakeSearch(self.rows).search(sequence) for sequence in sequences]


class FakeTemplateSearch:
    input_format: FileFormat = "sto"
    file_format: FileFormat = "sto"

    def __init__(self, hits: bytes, input_format: FileFormat = "sto") -> None:
        self.hits, self.input_format, self.queries = hits, input_format, list[bytes]()

    def identity(self) -> str:
        return "fake templates"

    def search(self, alignment: bytes) -> bytes:
        self.queries.append(alignment)
        return self.hits


def step(tool: FakeSearch, name: str = "some_hits.a3m", max_rows: int | None = None) -> AlignmentStep:
    return AlignmentStep(result_file=name, tool=tool, max_rows=max_rows)


def target(sequence: str = "ACDE", **files: tuple[Path, ...]) -> Target:
    return Target(name="T1", sequence=sequence, **files)


def test_target_without_alignment_is_its_own_msa() -> None:
    prepared = prepare(target("ACDU"))
    features = prepared.features
    assert (features.domain_name, features.sequence) == ("T1", "ACDU")
    assert features.aatype.tolist() == [0, 4, 3, 20]
    assert features.msa.tolist() == [[0, 4, 3, 4]]
    assert features.deletion_matrix.tolist() == [[0, 0, 0, 0]]
    assert features.template_aatype.shape == (0, 4)
    assert prepared.templates is None
    assert prepared.alignment_rows == {}


def test_files_are_merged_in_order_and_kept(tmp_path: Path) -> None:
    contents = {"a.a3m": b">q\nACX\n>h\nA-U\n", "b.a3m": b">q\nACU\n>i\nWcWW\n>h\nA-U\n"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    prepared = prepare(target("ACU", alignments=tuple(tmp_path / name for name in contents)))
    assert prepared.features.msa.tolist() == [[0, 4, 4], [0, 21, 4], [17, 17, 17]]
    assert prepared.features.deletion_matrix.tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 0]]
    assert list(prepared.alignment_rows.values()) == [1, 2]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == contents


@pytest.mark.parametrize(
    ("content", "count"),
    [(b">101\nACU\n>101\nACU\n", 0), (b">101\nACU\n>h\nACU\n>101\nACU\n>101\nA-U\n", 2), (b"ACU\nACD\n", 1)],
)
def test_the_target_is_not_counted_where_an_alignment_repeats_it(content: bytes, count: int, tmp_path: Path) -> None:
    path = tmp_path / "colabfold_hits.a3m"
    path.write_bytes(content)
    assert prepare(target("ACU", alignments=(path,))).alignment_rows == {str(path): count}


@pytest.mark.parametrize(("sequence", "message"), [("", "is empty"), ("AC1", "residue 3: '1' is not an amino acid")])
def test_wrong_sequence_is_told(sequence: str, message: str) -> None:
    with pytest.raises(InputError, match=f"sequence of 'T1'.* {message}"):
        prepare(target(sequence))


def test_a_target_without_a_known_residue_is_named() -> None:
    with pytest.raises(InputError, match=r"^'T1' cannot be predicted: it has no known residue, only U, X"):
        prepare(Target(name="T1", sequence="XXUX"))
    assert prepare(Target(name="T1", sequence="XXUM")).features.sequence == "XXUM"


def test_alignment_of_another_target_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.a3m").write_bytes(b">q\nACD\n")
    with pytest.raises(InputError, match=r"a\.a3m, line 1, record 'q': the first row is not the target"):
        prepare(target("ACE", alignments=(tmp_path / "a.a3m",)))


def test_searches_follow_the_users_alignments_in_the_plans_order(tmp_path: Path) -> None:
    (tmp_path / "own.a3m").write_bytes(b">q\nACDE\n>own\nAAAA\n")
    plan = SearchPlan(
        alignments=(
            step(FakeSearch(b">one\nCCCC\n>two\nAAAA\n"), "first.a3m"),
            step(FakeSearch(b">three\nDDDD\n>four\nEEEE\n"), "second.a3m", max_rows=2),
        )
    )
    prepared = prepare(target(alignments=(tmp_path / "own.a3m",)), plan, tmp_path / "msas")
    assert prepared.features.msa.tolist() == [[0, 4, 3, 6], [0] * 4, [4] * 4, [3] * 4]
    assert list(prepared.alignment_rows.values()) == [1, 2, 1]
    assert (tmp_path / "msas" / "first.a3m").read_bytes().endswith(b"AAAA\n")


def test_a_search_is_made_once_until_it_or_the_target_changes(tmp_path: Path) -> None:
    tool = FakeSearch()
    plan = SearchPlan(alignments=(step(tool),))
    for sequence in ("ACDE", "ACDE", "ACDF", "ACDF"):
        prepare(target(sequence), plan, tmp_path)
    assert tool.searched == ["ACDE", "ACDF"]
    newer = FakeSearch(version="2")
    prepare(target("ACDF"), SearchPlan(alignments=(step(newer),)), tmp_path)
    assert newer.searched == ["ACDF"]


def test_searches_need_a_directory() -> None:
    with pytest.raises(ValueError, match="directory"):
        prepare(target(), SearchPlan(alignments=(step(FakeSearch()),)))


def test_many_targets_share_one_search_and_find_its_results(tmp_path: Path) -> None:
    tool = FakeBatchSearch(b">hit\nAAAA\n")
    plan = SearchPlan(alignments=(step(tool),))
    targets = [Target(name=f"T{index}", sequence="ACD" + letter) for index, letter in enumerate("ACDEFGHIKLMNPQRSTVWY")]
    prepare(targets[3], plan, tmp_path / "T3")
    search_ahead(targets, plan, lambda each: tmp_path / each.name)
    assert [len(batch) for batch in tool.batches] == [16, 3]
    assert tool.searched == ["ACDE"]
    for each in targets:
        assert prepare(each, plan, tmp_path / each.name).features.msa.shape == (2, 4)
    assert tool.searched == ["ACDE"]


def test_only_searches_for_many_targets_are_made_ahead_and_each_by_its_own_size(tmp_path: Path) -> None:
    alone, failing, tool = FakeSearch(b">hit\nAAAA\n"), FakeBatchSearch(), FakeBatchSearch(b">hit\nCCCC\n")
    tool.targets_per_pass = 2
    steps = (step(alone, "one.a3m"), step(failing, "two.a3m"), step(tool, "three.a3m"))
    targets = [Target(name=letter, sequence=f"{letter}CDE") for letter in "AWDEF"]
    search_ahead(targets, SearchPlan(alignments=steps), lambda each: tmp_path / each.name)
    assert alone.searched == []
    assert tool.batches == [["ACDE", "WCDE"], ["DCDE", "ECDE"], ["FCDE"]]
    # A batch that fails stops neither the next one nor the next search.
    assert sorted(path.parent.name for path in tmp_path.glob("*/three.a3m")) == list("DEF")
    assert not list(tmp_path.glob("*/two.a3m"))


def test_a_batch_that_fails_leaves_each_target_to_its_own_search(tmp_path: Path) -> None:
    tool = FakeBatchSearch()
    plan = SearchPlan(alignments=(step(tool),))
    targets = [Target(name="bad", sequence="WWWW"), Target(name="good", sequence="ACDE")]
    search_ahead(targets, plan, lambda each: tmp_path / each.name)
    with pytest.raises(SearchError, match="no such luck"):
        prepare(targets[0], plan, tmp_path / "bad")
    assert prepare(targets[1], plan, tmp_path / "good").features.msa.shape == (1, 4)


def test_a_bad_answer_is_not_kept_and_asked_for_again(tmp_path: Path) -> None:
    bad, good = FakeBatchSearch(b">hit\nAA\n"), FakeBatchSearch(b">hit\nAAAA\n")
    for files in (tmp_path / "alone", tmp_path / "ahead"):
        plan = SearchPlan(alignments=(step(bad),))
        if files.name == "ahead":
            search_ahead([target()], plan, lambda _, files=files: files)  # type: ignore[misc]
        with pytest.raises(SearchError, match=r"some_hits\.a3m, line 3, record 'hit': the row has 2 columns"):
            prepare(target(), plan, files)
        assert not files.exists()
        assert prepare(target(), SearchPlan(alignments=(step(good),)), files).features.msa.shape == (2, 4)


def test_one_bad_answer_of_a_batch_leaves_the_others(tmp_path: Path) -> None:
    tool = FakeBatchSearch(b">hit\nAAAA\n")
    targets = [Target(name=f"T{index}", sequence=sequence) for index, sequence in enumerate(["ACDE", "ACD", "ACDF"])]
    search_ahead(targets, SearchPlan(alignments=(step(tool),)), lambda each: tmp_path / each.name)
    assert sorted(path.parent.name for path in tmp_path.glob("*/some_hits.a3m")) == ["T0", "T2"]


def test_bad_template_hits_are_not_kept(tmp_path: Path, structures: Path) -> None:
    bad = FakeTemplateSearch(HITS.replace(b"1-11 ", b"1-12 ").replace(b"1-11\t", b"1-12 "))
    results = tmp_path / "msas"
    with pytest.raises(SearchError, match=r"cannot be read and is not stored: .*pdb_hits\.sto"):
        prepare(target(TEMPLATE_SEQUENCE), template_plan(bad, structures), results)
    assert not results.exists()
    good = FakeTemplateSearch(HITS)
    assert prepare(target(TEMPLATE_SEQUENCE), template_plan(good, structures), results).templates is not None
    assert len(good.queries) == 1


def test_a_damaged_record_of_one_target_leaves_the_others_alone(tmp_path: Path) -> None:
    tool = FakeBatchSearch()
    plan = SearchPlan(alignments=(step(tool),))
    targets = [Target(name="bad", sequence="ACDE"), Target(name="good", sequence="ACDF")]
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "searches.json").write_text("[]")
    search_ahead(targets, plan, lambda each: tmp_path / each.name)
    assert tool.batches == [["ACDF"]]
    with pytest.raises(InputError, match="not a record of searches"):
        prepare(targets[0], plan, tmp_path / "bad")


NAMES = ("ALA", "CYS", "ASP", "GLU", "PHE", "GLY", "HIS", "ILE", "LYS", "LEU", "MET")


def atom_line(serial: int, atom: str, residue: str, number: int) -> str:
    place = f"{number * 3.8:8.3f}{serial * 0.1:8.3f}{0:8.3f}"
    return f"ATOM  {serial:5d}  {atom:<3s} {residue} A{number:4d}    {place}  1.00  0.00           {atom[0]}"


STRUCTURE_LINES = [
    atom_line(serial, atom, residue, number)
    for number, residue in enumerate(NAMES, start=1)
    for serial, atom in enumerate(("N", "CA", "C", "O"), start=number * 4 - 3)
]
TEMPLATE_SEQUENCE = "ACDEFGHIKLM"


@pytest.fixture
def structures(tmp_path: Path) -> Path:
    directory = tmp_path / "structures"
    directory.mkdir()
    (directory / "1abc.pdb").write_text("\n".join([*STRUCTURE_LINES, "END"]) + "\n")
    return directory


def template_plan(tool: FakeTemplateSearch, structures: Path, *searches: AlignmentStep) -> SearchPlan:
    templates = TemplateStep(
        result_file="pdb_hits.sto", tool=tool, source=StructureDirectory(structures), options=TemplateOptions()
    )
    return SearchPlan(alignments=searches, templates=templates)


HITS = (
    b"# STOCKHOLM 1.0\n\n#=GS 1abc_A/1-11 DE [subseq from] mol:protein length:11  MADE UP\n\n"
    b"1abc_A/1-11         ACDEFGHIKLM\n#=GC RF             xxxxxxxxxxx\n//\n"
)


def test_templates_are_searched_with_the_first_alignment_and_placed(tmp_path: Path, structures: Path) -> None:
    sequence = "ACDEFGHIKLMWW"
    tool = FakeTemplateSearch(HITS.replace(b"LM\n", b"LM--\n").replace(b"xx\n", b"xxxx\n"))
    plan = template_plan(tool, structures, step(FakeSearch(b">hit\nACDEFGHIKLaaMWV\n")))
    prepared = prepare(target(sequence), plan, tmp_path / "msas")
    (query,) = tool.queries
    assert query.startswith(b"# STOCKHOLM")
    assert prepared.templates is not None
    assert [used.name for used in prepared.templates.used] == ["1abc_A"], prepared.templates.rejected
    assert prepared.features.template_domain_names == ("1abc_A",)
    assert prepared.features.template_all_atom_masks.sum(axis=(0, 2)).tolist() == [4.0] * 11 + [0.0] * 2


class FakeStockholmSearch(FakeSearch):
    file_format: FileFormat = "sto"

    def search(self, sequence: str) -> bytes:
        # The third column is empty in all rows but the last, which is beyond the limit.
        rows = {"query": "AC-DEFGHIKLM", "one": "AC-DEFGHIKLV", "same": "AC-DEFGHIKLV", "last": "ACWDEFGHIKLW"}
        lines = [f"{name:20}{row}" for name, row in rows.items()]
        return "\n".join(["# STOCKHOLM 1.0", "", *lines, f"{'#=GC RF':20}xx.xxxxxxxxx", "//", ""]).encode()


def test_a_stockholm_result_is_cut_to_its_limit_and_cleaned_up_for_the_template_search(
    tmp_path: Path, structures: Path
) -> None:
    tool = FakeTemplateSearch(HITS)
    searches = (step(FakeStockholmSearch(), "first.sto", max_rows=3), step(FakeSearch(b">x\nWWWWWWWWWWW\n")))
    prepared = prepare(target(TEMPLATE_SEQUENCE), template_plan(tool, structures, *searches), tmp_path / "msas")
    assert prepared.alignment_rows == {"first.sto": 2, "some_hits.a3m": 1}
    assert prepared.features.msa.shape == (3, 11)
    (query,) = tool.queries
    rows = dict(line.split() for line in query.decode().splitlines() if line and line[0] not in "#/")
    assert rows == {"query": "ACDEFGHIKLM", "one": "ACDEFGHIKLV"}


def test_without_a_search_templates_are_looked_for_with_the_users_alignment(tmp_path: Path, structures: Path) -> None:
    (tmp_path / "own.a3m").write_bytes(b">q\nACDEFGHIKLM\n>own\nACDEFGHIKLV\n")
    tool = FakeTemplateSearch(HITS, input_format="a3m")
    own = target(TEMPLATE_SEQUENCE, alignments=(tmp_path / "own.a3m",))
    prepare(own, template_plan(tool, structures), tmp_path / "msas")
    assert tool.queries == [b">query\nACDEFGHIKLM\n>own\nACDEFGHIKLV\n"]
    prepare(own, template_plan(tool, structures), tmp_path / "msas")
    assert len(tool.queries) == 1


def test_the_users_own_templates_take_the_place_of_the_search(tmp_path: Path, structures: Path) -> None:
    tool = FakeTemplateSearch(HITS)
    own = target("ACDEFGHIKLMWW", templates=(structures,))
    prepared = prepare(own, template_plan(tool, structures), tmp_path / "msas")
    assert not tool.queries
    assert prepared.features.template_domain_names == ("1abc_A",)


def test_templates_of_the_user_that_cannot_be_used_are_told(tmp_path: Path, structures: Path) -> None:
    (path,) = (path for path in structures.iterdir() if path.is_file())
    unlike = target("WWWWHHHHWWWW", templates=(path,))
    with pytest.warns(UserWarning, match="gives no template: .* can be aligned to the target, no better than by"):
        alone = prepare(unlike)
    prepared = prepare(unlike, SearchPlan(), tmp_path / "msas")  # recorded with the results instead
    assert prepared.notes == alone.notes
    assert len(prepared.notes) == 1
    assert prepared.features.template_aatype.shape == (0, 12)


def test_templates_are_searched_with_the_target_alone_where_there_is_nothing_else(
    tmp_path: Path, structures: Path
) -> None:
    tool = FakeTemplateSearch(HITS, input_format="a3m")
    prepare(target(TEMPLATE_SEQUENCE), template_plan(tool, structures), tmp_path / "msas")
    assert tool.queries == [f">query\n{TEMPLATE_SEQUENCE}\n".encode()]


def dated_plan(plan: SearchPlan, latest: date | None) -> SearchPlan:
    assert plan.templates is not None
    return replace(
        plan,
        user_templates=replace(plan.user_templates, latest_release=latest),
        templates=replace(plan.templates, options=replace(plan.templates.options, latest_release=latest)),
    )


@pytest.mark.parametrize("is_searched", [False, True])
def test_templates_are_no_newer_than_the_targets_own_date_and_the_plans(
    is_searched: bool, tmp_path: Path, structures: Path
) -> None:
    released = "REVDAT   1   02-FEB-01"
    (structures / "1abc.pdb").write_text("\n".join([released, *STRUCTURE_LINES, "END"]) + "\n")
    tool = FakeTemplateSearch(HITS.replace(b"LM\n", b"LM--\n").replace(b"xx\n", b"xxxx\n"))
    plan = template_plan(tool, structures)
    before, same, later = date(2001, 2, 1), date(2001, 2, 2), date(2001, 2, 3)
    # The earlier date of target and plan counts.
    dates = (
        (before, None, 0),
        (same, None, 1),
        (before, later, 0),
        (later, before, 0),
        (later, same, 1),
        (None, same, 1),
    )
    for number, (latest, of_plan, count) in enumerate(dates):
        plan = dated_plan(plan, of_plan)
        own = replace(target("ACDEFGHIKLMWW", templates=() if is_searched else (structures,)), latest_template=latest)
        prepared = prepare(own, plan, tmp_path / f"msas{number}")
        assert prepared.templates is not None
        assert len(prepared.templates.used) == count
        reasons = [hit.reason.name for hit in prepared.templates.rejected]
        assert ("RELEASED_LATER" in reasons) == (count == 0)


@pytest.mark.parametrize(
    ("name", "rows"),
    [("T1034_D1__T1034", 10265), ("5trv_A__5trv", 1122), ("7zzx_B__3", 8356), ("5zyh_A__2", 1004)],
)
def test_real_alignments_become_samples(real_data: Path, name: str, rows: int) -> None:
    path = real_data / "msa" / f"{name}.a3m.gz"
    alignment = read_alignment(path)
    assert len(alignment.letters) == rows
    features = prepare(Target(name="target", sequence=alignment.query, alignments=(path,))).features
    assert 0.5 * rows < len(features.msa) <= rows
    sample = draw_sample(features, SamplingConfig(max_msa_clusters=508), np.random.default_rng(0))
    assert sample.msa_feat.shape == (508, len(alignment.query), 49)
    assert np.isfinite(sample.msa_feat).all()
    assert sample.extra_msa.shape[0] == min(1024, len(features.msa) - 508)
