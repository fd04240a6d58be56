"""From one structure file to records: names, summaries, and keys that change with every input."""

from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.features.schema import Features
from data_pipeline.parse.structures import read_structure
from data_pipeline.structure import Structure
from data_pipeline.templates.filters import TemplateOptions
from data_pipeline.templates.structure_directory import StructureDirectory
from data_pipeline.training_sets.build_cache import file_digest
from data_pipeline.training_sets.chain_record import ChainRecord
from data_pipeline.training_sets.chains import ChainFilter
from data_pipeline.training_sets.record_builder import RecordBuilder, StructureSummary, TemplateLibrary, chain_name
from data_pipeline.training_sets.source_files import AlignmentDirectory
from tests.data_pipeline.training_sets.training_files import sequence, write_a3m, write_pdb, write_training_files


def structure(directory: Path, entry: str, *chains: str) -> Structure:
    path = directory / f"{entry}.pdb"
    write_pdb(path, entry, {chain: sequence(index) for index, chain in enumerate(chains)})
    return read_structure(path)


def test_chains_are_named_after_entry_and_chain(tmp_path: Path) -> None:
    one, two = structure(tmp_path, "1abc", "A"), structure(tmp_path, "2abc", "A", "B")
    assert chain_name(one, "A", Path("x/1abc.cif.gz")) == "1abc_A"
    assert chain_name(one, "A", Path("pdb1abc.ent")) == "1abc_A"
    assert chain_name(two, "B", Path("2abc_B.cif")) == "2abc_B"
    assert chain_name(two, "A", Path("other_A.cif")) == "2abc_A"
    assert chain_name(one, "_", Path("1abc.pdb")) == "1abc"


def test_a_file_of_one_chain_that_is_called_after_it_gives_its_own_name(tmp_path: Path) -> None:
    one = structure(tmp_path, "1abc", "A")
    for name in ("1ABC_A", "1abc_A_v2", "xyz_A"):
        assert chain_name(one, "A", Path(f"{name}.pdb.gz")) == name
    assert chain_name(one, "A", Path("A_x.pdb")) == "1abc_A"
    assert chain_name(one, "A", Path("xyz_a.pdb")) == "1abc_A"


def test_a_survey_comes_back(tmp_path: Path) -> None:
    summary = RecordBuilder(filter=ChainFilter(min_length=41)).summary(
        structure(tmp_path, "1abc", "A"), tmp_path / "1abc.pdb"
    )
    assert summary.refused == {"1abc_A": "its sequence has 40 residues, and 41 are needed"}
    summary = RecordBuilder(filter=ChainFilter()).summary(structure(tmp_path, "1abc", "A", "B"), tmp_path / "1abc.pdb")
    assert [chain.name for chain in summary.chains] == ["1abc_A", "1abc_B"]
    assert summary.release_date == date(2018, 4, 30)
    for known in (summary, replace(summary, release_date=None, resolution=None, chains=(), refused={"a": "b"})):
        assert StructureSummary.unpack(known.pack()) == known
    with pytest.raises(ValueError, match="damaged"):
        StructureSummary.unpack(summary.pack()[:-1])


def test_names_that_a_table_cannot_hold_are_refused(tmp_path: Path) -> None:
    odd = replace(structure(tmp_path, "1abc", "A"), name="=1abc")
    summary = RecordBuilder(filter=ChainFilter()).summary(odd, tmp_path / "1abc.pdb")
    assert summary.refused == {"=1abc_A": "its name begins with '=', '+', '-', '@' or a quotation mark"}


def record_key(root: Path, builder: RecordBuilder) -> str:
    path = root / "structures/0abc.pdb"
    summary = builder.summary(read_structure(path), path)
    return builder.record_key(path, file_digest(path), summary.chains[0], builder.results(summary.chains[0]))


def test_a_key_changes_with_everything_that_goes_into_the_record(tmp_path: Path) -> None:
    write_training_files(tmp_path, 2)
    hits = tmp_path / "alignments/0abc_A/hhr/pdb70_hits.hhr"
    hits.parent.mkdir()
    hits.write_text(">1abc_A something\n")

    def builder(**options: object) -> RecordBuilder:
        return RecordBuilder(filter=ChainFilter(), alignments=AlignmentDirectory(tmp_path / "alignments"), **options)

    def library(**options: object) -> TemplateLibrary:
        return TemplateLibrary(source=StructureDirectory(tmp_path / "structures"), options=TemplateOptions(**options))

    keys = [record_key(tmp_path, builder())]
    assert record_key(tmp_path, builder()) == keys[0]
    assert record_key(tmp_path, replace(builder(), filter=ChainFilter(below_resolution=3))) == keys[0]
    keys.append(record_key(tmp_path, replace(builder(), alignments=None)))
    keys.append(record_key(tmp_path, builder(is_distillation=True)))
    keys.append(record_key(tmp_path, builder(templates=library())))
    keys.append(record_key(tmp_path, builder(templates=library(max_templates=4))))
    write_pdb(tmp_path / "structures/9abc.pdb", "9abc", {"A": sequence(9)})
    assert record_key(tmp_path, builder(templates=library())) == keys[3]  # no hit of it
    write_pdb(tmp_path / "structures/1abc.pdb.gz", "1abc", {"A": sequence(9)})
    keys.append(record_key(tmp_path, builder(templates=library())))
    hits.write_text(">1abc_B something\n")
    keys.append(record_key(tmp_path, builder(templates=library())))
    own = tmp_path / "alignments/0abc_A/a3m"
    (own / "mgnify_hits.a3m").rename(own / "bfd_hits.a3m")
    keys.append(record_key(tmp_path, builder()))
    write_a3m(own / "bfd_hits.a3m", sequence(0))
    keys.append(record_key(tmp_path, builder()))
    write_pdb(tmp_path / "structures/0abc.pdb", "0abc", {"A": sequence(0)})
    keys.append(record_key(tmp_path, builder()))
    assert len(set(keys)) == len(keys)


HHR = """Query         q
Match_columns {length}
No_of_seqs    1 out of 1
Neff          1
Searched_HMMs 1
Date          Mon Jan  1 00:00:00 2018
Command       hhsearch

 No Hit                             Prob E-value P-value  Score    SS Cols Query HMM  Template HMM
{table}

{hits}
"""


def hhr(target: str, *hits: tuple[str, str]) -> str:
    """An .hhr file whose hits are aligned from residue 1 of the target without gaps."""
    length = len(target)
    table, blocks = [], []
    for number, (name, row) in enumerate(hits, start=1):
        size = len(row)
        table.append(
            f"{number:3d} {name:<30} 100.0 1E-30 1E-35  100.0   0.0 {size:4d}    1-{size}      1-{size} ({size})"
        )
        blocks.append(
            f"No {number}\n>{name} a protein\nProbab=100.00  E-value=1e-30  Score=100.0  Aligned_cols={size}  "
            f"Identities=90%  Similarity=1.0  Sum_probs={40 - number}.0  Template_Neff=1.0\n\n"
            f"Q query             1 {target[:size]} {size:4d} ({length})\n"
            f"Q Consensus         1 {target[:size].lower()} {size:4d} ({length})\n"
            f"                      {'|' * size}\n"
            f"T Consensus         1 {row.lower()} {size:4d} ({size})\nT {name:<17} 1 {row} {size:4d} ({size})\n\n"
        )
    return HHR.format(length=length, table="\n".join(table), hits="\n".join(blocks))


def stored_features(root: Path, entry: str, builder: RecordBuilder) -> Features:
    path = root / f"structures/{entry}.pdb"
    found = read_structure(path)
    chain_summary = builder.summary(found, path).chains[0]
    return ChainRecord(
        builder.record("0" * 32, found, chain_summary, builder.results(chain_summary)), "here"
    ).features()


def test_templates_are_those_released_before_and_never_the_entry_itself(tmp_path: Path) -> None:
    own = sequence(0)
    piece = own[:30]
    write_pdb(tmp_path / "structures/0abc.pdb", "0abc", {"A": own})
    write_pdb(tmp_path / "structures/1old.pdb", "1old", {"A": piece}, released="01-JAN-10")
    write_pdb(tmp_path / "structures/1new.pdb", "1new", {"A": piece}, released="01-JAN-20")
    write_a3m(tmp_path / "alignments/0abc_A/uniref90_hits.a3m", own)
    hits = hhr(own, ("0ABC_A", piece), ("1NEW_A", piece), ("1OLD_A", piece))
    (tmp_path / "alignments/0abc_A/pdb70_hits.hhr").write_text(hits)
    library = TemplateLibrary(source=StructureDirectory(tmp_path / "structures"), options=TemplateOptions())
    builder = RecordBuilder(
        filter=ChainFilter(), alignments=AlignmentDirectory(tmp_path / "alignments"), templates=library
    )
    features = stored_features(tmp_path, "0abc", builder)
    assert features.template_domain_names == ("1old_A",)
    assert features.template_all_atom_masks[0].any(axis=1).tolist() == [True] * 30 + [False] * 10
    assert stored_features(tmp_path, "0abc", replace(builder, templates=None)).template_domain_names == ()


def test_templates_of_another_version_of_the_sequence_move_with_its_columns(tmp_path: Path) -> None:
    searched = sequence(0)
    chain = "GSGSGS" + searched
    template = searched[:20] + ("A" if searched[20] != "A" else "G") + searched[21:]
    write_pdb(tmp_path / "structures/0abc.pdb", "0abc", {"A": chain})
    write_pdb(tmp_path / "structures/1old.pdb", "1old", {"A": template}, released="01-JAN-10")
    write_a3m(tmp_path / "alignments/0abc_A/uniref90_hits.a3m", searched)
    (tmp_path / "alignments/0abc_A/pdb70_hits.hhr").write_text(hhr(searched, ("1OLD_A", template)))
    library = TemplateLibrary(source=StructureDirectory(tmp_path / "structures"), options=TemplateOptions())
    builder = RecordBuilder(
        filter=ChainFilter(), alignments=AlignmentDirectory(tmp_path / "alignments"), templates=library
    )
    features = stored_features(tmp_path, "0abc", builder)
    has_atoms = features.template_all_atom_masks[0].any(axis=1)
    assert has_atoms.tolist() == [False] * 6 + [True] * 40
    same = features.template_aatype[0] == features.aatype
    assert np.flatnonzero(~same).tolist() == [0, 1, 2, 3, 4, 5, 26]
    assert features.template_aatype[0, :6].tolist() == [21] * 6


def hit_table(target: str, *names: str) -> str:
    """Hits of MMseqs2 that are aligned from residue 1 to 30 without gaps."""
    return "".join(f"{target}\t{name}\t0.9\t30\t3\t0\t1\t30\t1\t30\t1e-9\t50\t30M\n" for name in names)


def test_hits_of_mmseqs_are_read_and_may_be_of_any_date(tmp_path: Path) -> None:
    own = sequence(0)
    changed = [own[:place] + "W" + own[place + 1 : 30] for place in (3, 7)]
    write_pdb(tmp_path / "structures/0abc.pdb", "0abc", {"A": own})
    write_pdb(tmp_path / "structures/1old.pdb", "1old", {"A": changed[0]}, released="01-JAN-10")
    write_pdb(tmp_path / "structures/1new.pdb", "1new", {"A": changed[1]}, released="01-JAN-20")
    folder = tmp_path / "alignments/0abc_A"
    folder.mkdir(parents=True)
    (folder / "library.m8").write_text(hit_table("0abc_A", "0abc_A", "1new_A", "1old_A"))
    source = StructureDirectory(tmp_path / "structures")
    library = TemplateLibrary(source=source, options=TemplateOptions())
    builder = RecordBuilder(
        filter=ChainFilter(), alignments=AlignmentDirectory(tmp_path / "alignments"), templates=library
    )
    assert stored_features(tmp_path, "0abc", builder).template_domain_names == ("1old_A",)
    anytime = replace(builder, templates=replace(library, any_date=True))
    assert stored_features(tmp_path, "0abc", anytime).template_domain_names == ("1new_A", "1old_A")
    assert record_key(tmp_path, anytime) != record_key(tmp_path, builder)
    before = record_key(tmp_path, builder)
    write_pdb(tmp_path / "structures/1old.pdb", "1old", {"A": sequence(0, 20)}, released="01-JAN-10")
    assert record_key(tmp_path, builder) != before  # a file of a hit has changed


def test_only_the_chains_asked_for_are_taken(tmp_path: Path) -> None:
    found, path = structure(tmp_path, "1abc", "A", "B"), tmp_path / "1abc.pdb"
    every, some = (RecordBuilder(filter=ChainFilter(), only=only) for only in (None, frozenset({"1abc_B"})))
    summary = some.summary(found, path)
    assert [chain.name for chain in summary.chains] == ["1abc_B"]
    assert summary.refused == {"1abc_A": "it is not one of the chains to take"}
    assert some.summary_key(path, "x") != every.summary_key(path, "x")
    assert every.summary_key(path, "x") == RecordBuilder(filter=ChainFilter()).summary_key(path, "x")
