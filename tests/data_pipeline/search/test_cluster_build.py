"""A database of clusters is built in steps of MMseqs2, and is none before its last file is in place."""

import gzip
from pathlib import Path

import pytest

from data_pipeline.io.errors import InputError, SearchError
from data_pipeline.search.cluster_build import ClusterBuild, move_database
from data_pipeline.search.colabfold_databases import ClusterDatabase
from tests.data_pipeline.search.recording_program import RecordingProgram

# Makes the files that MMseqs2 makes, with its kinds of sequences, headers and alignments, and nothing in them.
MAKES = """files() { for end in "" .index .lookup .source; do : > "$1$end"; done; printf "$2\\0\\0\\0" > "$1.dbtype"; }
case "$1" in
createdb) files members "\\0"; files members_h "\\14" ;;
cluster) files clusters "\\6" ;;
createsubdb) case "$4" in *_h) files "$4" "\\14" ;; *) files "$4" "\\0" ;; esac ;;
align) files "$5" "\\5" ;;
esac"""
FASTA = ">a OX=9606 GN=X\nMKV\n>b no species\nMKV\n>c TaxID=562 RepID=OX\nMK\n>d OX=1\nMA\n>e BOX=7 OX=0\nMA\n"


def test_clusters_are_made_in_the_steps_of_mmseqs2(tmp_path: Path) -> None:
    program = RecordingProgram(tmp_path, "mmseqs", MAKES)
    one, two, output = tmp_path / "one.fasta", tmp_path / "two.fasta.gz", tmp_path / "databases" / "own_db"
    one.write_text(FASTA)
    two.write_bytes(gzip.compress(b">f OX=562\nMK\n"))
    build = ClusterBuild(program=program.path, min_identity=0.5, coverage=0.9, cpus=3)
    assert build.clusters([one, two], output) == 6
    assert program.calls == [
        f"createdb {one} {two} members --dbtype 1 --shuffle 0 -v 2",
        "cluster members clusters steps --min-seq-id 0.5 -c 0.9 --single-step-clustering 0 --threads 3 -v 2",
        "createsubdb clusters members new -v 2",
        "createsubdb clusters members_h new_h -v 2",
        "align new members clusters new_aln -a -e inf --threads 3 -v 2",
    ]
    database = ClusterDatabase(output)
    assert database.has_taxonomy
    names = {path.name.removeprefix("own_db") for path in output.parent.iterdir()}
    assert names >= {"", ".index", "_h", "_seq", "_seq_h", "_aln", "_seq.lookup", "_mapping", "_merged.dmp"}
    assert names.isdisjoint({".lookup", ".source", "members", "clusters"})
    # The keys are the numbers of the records; MMseqs2 wants no line where the species is not known.
    assert output.with_name("own_db_mapping").read_text() == "0\t9606\n2\t562\n3\t1\n5\t562\n"
    assert output.with_name("own_db_nodes.dmp").read_text() == (
        "1\t|\t1\t|\tno rank\t|\n562\t|\t1\t|\tspecies\t|\n9606\t|\t1\t|\tspecies\t|\n"
    )
    assert output.with_name("own_db_names.dmp").read_text().splitlines() == [
        "1\t|\troot\t|\t\t|\tscientific name\t|",
        "562\t|\tspecies 562\t|\t\t|\tscientific name\t|",
        "9606\t|\tspecies 9606\t|\t\t|\tscientific name\t|",
    ]
    with pytest.raises(InputError, match="own_db: a database of this name exists already; choose another name"):
        build.clusters([one], output)


def test_sequences_without_clusters_and_species_have_neither(tmp_path: Path) -> None:
    program = RecordingProgram(tmp_path, "mmseqs", MAKES)
    fasta, output = tmp_path / "pdb.fasta", tmp_path / "databases" / "pdb100"
    fasta.write_text(">1abc_A\nMKV\n>2abc_A\nMKV\n")
    assert ClusterBuild(program=program.path).sequences([fasta], output) == 2
    assert [line.split()[0] for line in program.calls] == ["createdb"]
    endings = ("", ".dbtype", ".index", ".lookup", ".source")
    files = sorted(f"pdb100{part}{ending}" for part in ("", "_h") for ending in endings)
    assert sorted(path.name for path in output.parent.iterdir()) == files
    single = ClusterBuild(program=program.path, single_step=True)
    single.clusters([fasta], output.with_name("x_db"))
    assert "cluster members clusters steps --min-seq-id 0.3 -c 0.8 --single-step-clustering 1" in program.calls[2]
    assert not ClusterDatabase(output.with_name("x_db")).has_taxonomy
    assert not list(output.parent.glob("*_mapping"))


def test_what_cannot_be_built_leaves_nothing(tmp_path: Path) -> None:
    good, empty, output = tmp_path / "good.fasta", tmp_path / "empty.fasta", tmp_path / "databases" / "x"
    good.write_text(FASTA)
    empty.touch()
    program = RecordingProgram(tmp_path, "mmseqs", f"{MAKES}\n[ $1 != align ]")
    build = ClusterBuild(program=program.path)
    with pytest.raises(InputError, match=r"empty\.fasta: the file has no sequences"):
        build.clusters([good, empty], output)
    assert program.calls == []
    with pytest.raises(SearchError, match="mmseqs failed with exit code 1"):
        build.clusters([good], output)
    assert list(output.parent.iterdir()) == []
    for wrong in ({"min_identity": 1.5}, {"coverage": -0.1}, {"cpus": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
            ClusterBuild(program=program.path, **wrong)  # type: ignore[arg-type]


def test_the_file_that_makes_a_database_is_moved_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target, moved = tmp_path / "source", tmp_path / "target", list[str]()
    for name in ("db", "db.dbtype", "db_seq", "db_seq.dbtype", "other"):
        path = source / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (source / "folder").mkdir()
    target.mkdir()
    monkeypatch.setattr("os.replace", lambda _, path: moved.append(path.name))
    move_database(source, target, "db")
    assert moved == ["db", "db_seq", "db_seq.dbtype", "other", "db.dbtype"]
    moved.clear()
    move_database(source, target, "new", source_name="db")
    assert moved == ["new", "new_seq", "new_seq.dbtype", "new.dbtype"]
