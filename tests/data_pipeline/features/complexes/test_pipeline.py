"""Files and searches of each sequence of a complex become its features; nothing is searched twice or in vain."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.features.complexes.alignments import EntityAlignment
from data_pipeline.features.complexes.complex_input import ChainAlignmentFiles, ComplexInput
from data_pipeline.features.complexes.feature_set import ComplexFeatureSet
from data_pipeline.features.complexes.pipeline import prepare_complex, target_features
from data_pipeline.features.complexes.target import ComplexTarget
from data_pipeline.features.templates import TemplateFeatures
from data_pipeline.io.errors import InputError
from data_pipeline.parse.a3m import Alignment, parse_a3m
from data_pipeline.pipeline import Target, prepare
from data_pipeline.residues import GAP
from data_pipeline.search.plan import AlignmentStep, PairingStep, SearchPlan
from helixfold.folding.templates import templates_read
from helixfold.model.presets import preset
from tests.support.complex_targets import ROWS, alignment_of_species
from tests.support.sources import ROOT

A, B = ROWS
HELIX = ROOT / "examples/structures/helix_short.pdb"


def a3m(sequence: str, name: str) -> str:
    """The sequence, and a row with one other residue at the end, which depends on the name."""
    return f">query\n{sequence}\n>{name}\n{sequence[:-1]}{'CDEFGHIMNP'[len(name) % 10]}\n"


def rows(sequence: str, name: str) -> Alignment:
    return parse_a3m(a3m(sequence, name).encode(), sequence)


@dataclass
class Search:
    """A search of one sequence, and of all for rows that are paired, which remembers what it was asked."""

    name: str
    log: list[str]
    file_format: str = "a3m"

    def identity(self) -> str:
        return self.name

    def search(self, sequence: str) -> bytes:
        self.log.append(f"{self.name} {sequence}")
        return a3m(sequence, self.name).encode()


class Pairing(Search):
    def search(self, sequences: Sequence[str]) -> Iterator[bytes]:  # type: ignore[override]
        self.log.append(f"{self.name} {':'.join(sequences)}")
        return (a3m(sequence, self.name).encode() for sequence in sequences)


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def plan(log: list[str]) -> SearchPlan:
    """One search, and rows that are paired by a search or, without it, by species."""

    def step(name: str) -> AlignmentStep:
        return AlignmentStep(result_file=f"{name}.a3m", tool=Search(name, log), max_rows=None)  # type: ignore[arg-type]

    return SearchPlan(
        alignments=(step("first"),),
        pairing=PairingStep(result_file="paired.a3m", tool=Pairing("pairs", log)),  # type: ignore[arg-type]
        uniprot=step("tr|A0A0A00001|A0A0A00001_HUMAN"),
    )


def complex_of(*sequences: str, **given: object) -> ComplexInput:
    return ComplexInput(target=ComplexTarget.of("x", sequences), **given)  # type: ignore[arg-type]


def require_equal(found: ComplexFeatureSet, expected: ComplexFeatureSet) -> None:
    for part in ("multimer", "residue_gap"):
        for field in fields(getattr(expected, part)):
            one, other = (getattr(getattr(each, part), field.name) for each in (found, expected))
            np.testing.assert_equal(one, other, err_msg=field.name)


def test_each_sequence_is_searched_once_and_pairs_for_all(plan: SearchPlan, log: list[str], tmp_path: Path) -> None:
    given = complex_of(A, B, A)
    found = prepare_complex(given, plan, tmp_path).features
    assert log == [f"first {A}", f"first {B}", f"pairs {A}:{B}"]
    entities = [
        EntityAlignment(sequence=each, unpaired=rows(each, "first"), paired=rows(each, "pairs")) for each in (A, B)
    ]
    require_equal(found, ComplexFeatureSet.of(given.target, entities))
    assert {path.parent.name for path in tmp_path.glob("*/*.a3m")} == {"A", "B"}
    require_equal(prepare_complex(given, plan, tmp_path).features, found)
    assert len(log) == 3


def test_without_a_search_for_pairs_uniprot_is_searched(plan: SearchPlan, log: list[str], tmp_path: Path) -> None:
    given = complex_of(A, B)
    found = prepare_complex(given, replace(plan, pairing=None), tmp_path).features
    assert [line.split("|")[0] for line in log] == [f"first {A}", f"first {B}", "tr", "tr"]
    human = "tr|A0A0A00001|A0A0A00001_HUMAN"
    entities = [
        EntityAlignment(sequence=each, unpaired=rows(each, "first"), uniprot=rows(each, human)) for each in (A, B)
    ]
    require_equal(found, ComplexFeatureSet.of(given.target, entities))
    assert found.multimer.paired_rows == 2


@pytest.mark.parametrize(
    "given",
    [complex_of(A, A), complex_of(A, B, pair_mode="unpaired")],
    ids=["of one sequence", "without pairs"],
)
def test_pairs_that_nobody_needs_are_not_searched(
    given: ComplexInput, plan: SearchPlan, log: list[str], tmp_path: Path
) -> None:
    prepare_complex(given, plan, tmp_path)
    assert log == [f"first {entity.sequence}" for entity in given.target.entities]


def test_pairs_of_files_come_before_those_of_searches(plan: SearchPlan, log: list[str], tmp_path: Path) -> None:
    for chain, sequence in (("A", A), ("B", B)):
        (tmp_path / f"{chain}.a3m").write_text(a3m(sequence, "own"))
        (tmp_path / f"{chain}.paired.a3m").write_text(a3m(sequence, "mine"))
    files = tuple(
        ChainAlignmentFiles(unpaired=(tmp_path / f"{chain}.a3m",), paired=tmp_path / f"{chain}.paired.a3m")
        for chain in "AB"
    )
    given = complex_of(A, B, files=files)
    found = prepare_complex(given, plan, tmp_path / "msas")
    assert log == [f"first {A}", f"first {B}"]
    assert found.features.multimer.paired_rows == 2
    # Rows of the user's alignment come before those of the search.
    last = [(each.unpaired, each.paired) for each in entities_of(found.features)]
    assert last == [([own, f"{own[:-1]}F", f"{own[:-1]}H"], [f"{own[:-1]}G"]) for own in (A, B)]


def entities_of(features: ComplexFeatureSet) -> list["Letters"]:
    """The rows of the two chains of a heterodimer as letters, without the chains themselves."""
    multimer = features.multimer
    letters = np.array(list("ARNDCQEGHILKMFPSTWYVX-"))[multimer.msa]
    found = []
    for number in (1, 2):
        own = ["".join(row) for row in letters[:, multimer.asym_id == number]]
        others = [row for row in own[multimer.paired_rows :] if set(row) != {"-"}]
        found.append(Letters(paired=own[1 : multimer.paired_rows], unpaired=others))
    return found


@dataclass
class Letters:
    paired: list[str]
    unpaired: list[str]


def test_species_in_names_pair_rows_of_ordinary_alignments(tmp_path: Path) -> None:
    files = []
    for sequence in (A, B):
        own = alignment_of_species(sequence)
        path = tmp_path / f"{sequence}.a3m"
        texts = (row.tobytes().decode() for row in own.letters)
        path.write_text("".join(f">{name}\n{row}\n" for name, row in zip(own.names, texts, strict=True)))
        files.append(ChainAlignmentFiles(unpaired=(path,)))
    given = complex_of(A, B, files=tuple(files))
    assert prepare_complex(given).features.multimer.paired_rows == 3
    # Nobody asked for pairs where no row has a species.
    nameless = tmp_path / "nameless.a3m"
    nameless.write_text(a3m(A, "row"))
    given = complex_of(A, B, files=(ChainAlignmentFiles(unpaired=(nameless,)), ChainAlignmentFiles()))
    assert prepare_complex(given).features.multimer.paired_rows == 1
    with pytest.raises(InputError, match="no row to be paired of complex 'x' has a species in its name"):
        prepare_complex(replace(given, pair_mode="paired"))


def test_every_chain_has_its_own_templates() -> None:
    helix = "SAEEAAKALAEAAKALAAGA"
    features = prepare_complex(complex_of(helix, B, helix, templates=(HELIX,))).features.multimer
    masks = features.template_all_atom_masks
    alone = prepare(Target(name="x", sequence=helix, templates=(HELIX,))).features.template_all_atom_masks
    expected = np.zeros((4, len(helix), 37), np.float32)
    expected[: len(alone)] = alone[:4]
    assert features.chain_names == ("A", "C", "B")
    for number in (1, 2):
        np.testing.assert_array_equal(masks[:, features.asym_id == number], expected)


def test_each_template_of_a_monomer_model_covers_one_chain() -> None:
    helix = "SAEEAAKALAEAAKALAAGA"
    features = prepare_complex(complex_of(helix, B, helix, templates=(HELIX,)))
    gap, alone = features.features.residue_gap, prepare(Target(name="x", sequence=helix, templates=(HELIX,))).features
    assert alone.template_domain_names == ("helix_short_A",)
    assert gap.template_domain_names == ("helix_short_A",) * 2
    for slot, start in enumerate((0, len(helix))):  # of chains A and C, which are before B
        span = slice(start, start + len(helix))
        np.testing.assert_array_equal(gap.template_aatype[slot, span], alone.template_aatype[0])
        np.testing.assert_array_equal(gap.template_all_atom_positions[slot, span], alone.template_all_atom_positions[0])
        np.testing.assert_array_equal(gap.template_all_atom_masks[slot, span], alone.template_all_atom_masks[0])
        elsewhere = np.ones(len(gap.aatype), bool)
        elsewhere[span] = False
        assert (gap.template_aatype[slot, elsewhere] == GAP).all()
        assert not gap.template_all_atom_masks[slot, elsewhere].any()


def test_monomer_models_read_the_best_template_of_each_chain_first() -> None:
    of_a, of_b = ("1abc_A", "2abc_A", "3abc_A"), ("1abc_B",)
    alignments = [
        EntityAlignment(
            sequence=sequence,
            templates=TemplateFeatures(
                template_domain_names=names,
                template_aatype=np.full((len(names), len(sequence)), 3, np.int32),
                template_all_atom_positions=np.zeros((len(names), len(sequence), 37, 3), np.float32),
                template_all_atom_masks=np.ones((len(names), len(sequence), 37), np.float32),
                template_sum_probs=np.zeros((len(names), 1), np.float32),
            ),
        )
        for sequence, names in ((A, of_a), (B, of_b))
    ]
    target = ComplexTarget.of("x", (A, B, A), ("H", "L", "M"))
    features = ComplexFeatureSet.of(target, alignments)
    # The published models read four templates.
    assert features.residue_gap.template_domain_names == ("1abc_A", "1abc_A", "1abc_B", "2abc_A")
    labels = [each.label for each in templates_read(features, preset("model_1_ptm"))]
    assert labels == ["chain H: 1abc_A", "chain M: 1abc_A", "chain L: 1abc_B", "chain H: 2abc_A"]
    assert [each.residues for each in templates_read(features, preset("model_1_ptm"))] == ["D" * 8] * 4
    assert templates_read(features, preset("model_3_ptm")) == ()
    assert len(templates_read(features, preset("model_1_multimer_v3"))) == 7


def test_a_single_chain_is_made_as_ever() -> None:
    target = Target(name="x", sequence=A)
    found, expected = target_features(target), prepare(target).features
    assert isinstance(found, type(expected))
    np.testing.assert_array_equal(found.msa, expected.msa)
