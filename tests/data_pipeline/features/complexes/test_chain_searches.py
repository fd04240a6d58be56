"""Every sequence of a complex is searched once, and rows are paired as the user, the server or the species say."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.features.complexes.alignments import PairMode
from data_pipeline.features.complexes.complex_input import ChainAlignmentFiles, ComplexInput
from data_pipeline.features.complexes.pipeline import PreparedComplex, prepare_complex
from data_pipeline.features.complexes.target import ComplexTarget
from data_pipeline.io.errors import InputError
from data_pipeline.search.database_profile import read_database_profile
from data_pipeline.search.plan import AlignmentStep, PairingStep, SearchPlan, plan_searches
from tests.data_pipeline.features.complexes.test_paired_search import Pairing
from tests.data_pipeline.search.families import random_protein, relative
from tests.data_pipeline.search.test_plan import backbone
from tests.data_pipeline.templates.structures import QUERY, make_chain, make_structure, write
from tests.data_pipeline.test_pipeline import FakeBatchSearch, FakeSearch

HETEROMER = ComplexTarget.of("x", ["MKV", "ACDE", "MKV"])
HOMOMER = ComplexTarget.of("x", ["MKV", "MKV"])


class Searches:
    """A plan of searches that count what they are asked for."""

    def __init__(self, *, pairs: bool) -> None:
        self.homologs, self.uniprot, self.pairing = FakeSearch(), FakeBatchSearch(), Pairing()
        homologs = AlignmentStep(result_file="some_hits.a3m", tool=self.homologs, max_rows=None)
        uniprot = AlignmentStep(result_file="uniprot_hits.a3m", tool=self.uniprot, max_rows=None)
        pairing = PairingStep(result_file="paired_hits.a3m", tool=self.pairing)
        self.plan = SearchPlan(
            alignments=(homologs,), uniprot=None if pairs else uniprot, pairing=pairing if pairs else None
        )

    def asked(self) -> tuple[list[str], list[str], list[list[str]]]:
        return self.homologs.searched, self.uniprot.searched, self.pairing.asked


def test_each_sequence_is_searched_once_and_paired_with_the_others(tmp_path: Path) -> None:
    searches = Searches(pairs=True)
    for _ in range(2):
        found = prepare_complex(ComplexInput(target=HETEROMER), searches.plan, tmp_path)
    assert searches.asked() == (["MKV", "ACDE"], [], [["MKV", "ACDE"]])
    assert found.features.multimer.paired_rows == 2
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.a3m"))
    assert files == ["A/paired_hits.a3m", "A/some_hits.a3m", "B/paired_hits.a3m", "B/some_hits.a3m"]


@pytest.mark.parametrize("mode", ["unpaired_paired", "paired", "unpaired"])
@pytest.mark.parametrize("pairs", [False, True])
def test_only_what_a_mode_needs_is_searched(tmp_path: Path, mode: PairMode, *, pairs: bool) -> None:
    searches = Searches(pairs=pairs)
    searches.uniprot.rows = b">tr|A0A000|A0A000_HUMAN\n---\n"
    target = ComplexTarget.of("x", ["MKV", "ACD"])
    prepare_complex(ComplexInput(target=target, pair_mode=mode), searches.plan, tmp_path)
    homologs, uniprot, asked = searches.asked()
    assert homologs == ([] if mode == "paired" else ["MKV", "ACD"])
    assert uniprot == ([] if mode == "unpaired" or pairs else ["MKV", "ACD"])
    assert asked == ([] if mode == "unpaired" or not pairs else [["MKV", "ACD"]])


@pytest.mark.parametrize("pairs", [False, True])
def test_a_single_sequence_is_paired_with_none(tmp_path: Path, *, pairs: bool) -> None:
    searches = Searches(pairs=pairs)
    searches.homologs.rows = b">a\nM-V\n>b\nM-V\n"
    found = prepare_complex(ComplexInput(target=HOMOMER), searches.plan, tmp_path)
    assert searches.asked() == (["MKV"], [], [])
    # Rows of a server are taken as they stand, as in ColabFold; other rows that come twice are left out.
    assert len(found.features.multimer.msa) == (3 if pairs else 2)


def test_the_users_pairs_take_the_place_of_a_search(tmp_path: Path) -> None:
    for name, row in (("A", "MKV"), ("B", "ACD")):
        (tmp_path / f"{name}.a3m").write_text(f">q\n{row}\n>pair\n{row[:2]}-\n")
    files = tuple(ChainAlignmentFiles(paired=tmp_path / f"{name}.a3m") for name in "AB")
    given = ComplexInput(target=ComplexTarget.of("x", ["MKV", "ACD"]), files=files)
    for pairs in (False, True):
        searches = Searches(pairs=pairs)
        found = prepare_complex(given, searches.plan, tmp_path / str(pairs))
        assert found.features.multimer.paired_rows == 2
        assert searches.asked() == (["MKV", "ACD"], [], [])


def test_a_search_for_pairs_that_finds_none_leaves_the_other_rows(tmp_path: Path) -> None:
    searches = Searches(pairs=False)
    searches.uniprot.rows = b""
    found = prepare_complex(ComplexInput(target=ComplexTarget.of("x", ["MKV", "ACD"])), searches.plan, tmp_path)
    assert searches.asked() == (["MKV", "ACD"], ["MKV", "ACD"], [])
    assert found.features.multimer.paired_rows == 1
    only_pairs = ComplexInput(target=ComplexTarget.of("x", ["MKV", "ACD"]), pair_mode="paired")
    with pytest.raises(InputError, match="has a species in its name"):
        prepare_complex(only_pairs, searches.plan, tmp_path)


def test_results_are_shared_where_complexes_name_the_same_directories(tmp_path: Path) -> None:
    searches = Searches(pairs=True)
    shared = {sequence: tmp_path / "chains" / sequence for sequence in ("MKV", "ACDE", "GHI")}
    for name, sequences in (("x", ["MKV", "ACDE"]), ("y", ["MKV", "GHI"]), ("z", ["GHI", "GHI"])):
        target = ComplexTarget.of(name, sequences)
        places = tuple(shared[entity.sequence] for entity in target.entities)
        prepare_complex(ComplexInput(target=target, shared_results=places), searches.plan, tmp_path / name)
    assert searches.asked() == (["MKV", "ACDE", "GHI"], [], [["MKV", "ACDE"], ["MKV", "GHI"]])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chains", "x", "y"]


def test_directories_differ_on_every_file_system(tmp_path: Path) -> None:
    target = ComplexTarget.of("x", ["MKV", "ACDE", "GHI"], ["A", "a", "B"])
    places = ComplexInput(target=target).search_directories(tmp_path)
    assert [each.name for each in places] == ["A", "a_2", "B"]


SPECIES = ("HUMAN", "MOUSE", "YEAST", "ECOLI")


def write_databases(directory: Path, chains: Sequence[str], rng: np.random.Generator) -> Path:
    """A profile of UniProt with relatives of each chain in four species, and of the PDB with one of each chain."""
    entries = [
        f">{'sp' if number else 'tr'}|P{number}000{place}|X{number}{place}_{species}\n{relative(rng, chain, 0.8)}\n"
        for number, chain in enumerate(chains)
        for place, species in enumerate(SPECIES)
    ]
    strangers = [f">tr|Q000{place}|Q000{place}_HUMAN\n{random_protein(rng, 60)}\n" for place in range(5)]
    (directory / "uniprot.fasta").write_text("".join(entries + strangers))
    (directory / "mmcif").mkdir()
    structures = {f"{number}abc": relative(rng, chain, 0.8) for number, chain in enumerate(chains, start=1)}
    for name, chain in structures.items():
        (directory / "mmcif" / f"{name}.pdb").write_text(backbone(chain))
    (directory / "seqres.txt").write_text(
        "".join(f">{name}_A mol:protein length:{len(chain)}  X\n{chain}\n" for name, chain in structures.items())
    )
    (directory / "profile.toml").write_text(
        '[uniprot]\npath = "uniprot.fasta"\n'
        '[complex_templates]\ntool = "hmmsearch"\npath = "seqres.txt"\nstructures = "mmcif"\n'
    )
    return directory / "profile.toml"


def test_uniprot_pairs_by_species_and_every_chain_has_its_own_templates(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    chains = [random_protein(rng, 60), random_protein(rng, 70)]
    profile = read_database_profile(write_databases(tmp_path, chains, rng), ())
    plan = plan_searches(profile, cpus=1, cache=None)
    target = ComplexTarget.of("x", [chains[0], chains[1], chains[0]])
    found = prepare_complex(ComplexInput(target=target), plan, tmp_path / "msas")
    assert (tmp_path / "msas" / "B" / "uniprot_hits.sto").is_file()
    assert templates_by_chain(found) == {"A": ["1abc_A"], "B": ["2abc_A"]}
    features = found.features.multimer
    assert features.paired_rows == 5
    pair = features.msa[1]
    assert all(
        (pair[features.asym_id == chain] == features.aatype[features.asym_id == chain]).mean() > 0.6
        for chain in (1, 2, 3)
    )
    # Chains of one sequence have the same templates.
    assert features.chain_names == ("A", "C", "B")
    first, second = (features.template_all_atom_masks[0, features.asym_id == chain] for chain in (1, 2))
    assert first.any()
    np.testing.assert_array_equal(first, second)


def test_chains_of_a_users_structure_are_templates_of_the_sequences_that_they_fit(tmp_path: Path) -> None:
    other = "GSGWPDNCGTYMPDNWCGHTGGSPNDWYCMTPGGNDHW"
    write(tmp_path, make_structure(make_chain("H", other[2:]), make_chain("L", QUERY[:30])))
    target = ComplexTarget.of("x", [QUERY, other, "MKTAYIAKQRQISFVK"[::-1] * 2])
    found = prepare_complex(ComplexInput(target=target, templates=(tmp_path,)))
    assert templates_by_chain(found) == {"A": ["1abc_L"], "B": ["1abc_H"], "C": []}
    features = found.features.multimer
    has_template = features.template_all_atom_masks[0].any(axis=1)
    assert [has_template[features.asym_id == chain].any() for chain in (1, 2, 3)] == [True, True, False]


def templates_by_chain(found: PreparedComplex) -> dict[str, list[str]]:
    return {
        chain: [each.name for each in homologs.templates.used]
        for chain, homologs in found.homologs.items()
        if homologs.templates is not None
    }
