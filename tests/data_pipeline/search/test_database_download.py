"""ColabFold's databases are downloaded in parts that can be resumed, unpacked whole or not at all, and checked."""

import gzip
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.io.errors import InputError
from data_pipeline.io.remote_file import DownloadError, RetryPolicy
from data_pipeline.search.database_check import check_databases
from data_pipeline.search.database_download import DOWNLOADS, download_databases
from data_pipeline.search.database_profile import read_database_profile
from helixfold.cli.main import main
from tests.data_pipeline.search.families import needed_program, random_protein, relative
from tests.data_pipeline.search.recording_program import RecordingProgram
from tests.weights.server import Behaviour, serving

NAME = "colabfold_envdb_202108"
HASTY = RetryPolicy(timeout=60, attempts=2, pause=0.01)
_KINDS = {"": 0, "_h": 12, "_seq": 0, "_seq_h": 12, "_aln": 5}


def database_files(name: str) -> dict[str, bytes]:
    """Return the files of a database with one entry in each part, which are not searched."""
    content = np.random.default_rng(1).bytes(200_000)
    files: dict[str, bytes] = {}
    for ending, kind in _KINDS.items():
        files |= {f"{name}_db{ending}": content, f"{name}_db{ending}.index": b"0\t0\t200000\n"}
        files[f"{name}_db{ending}.dbtype"] = bytes([kind, 0, 8, 0])
    return files


def packed(files: dict[str, bytes], **other: str) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", compresslevel=1) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for name, target in other.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)
    return stream.getvalue()


ARCHIVE = packed(database_files(NAME))


def download(behaviour: Behaviour, directory: Path, name: str = NAME) -> Path:
    with serving(behaviour) as url:
        (path,) = download_databases([name], directory, url=url, retry=HASTY, progress=False)
    return path


def names(directory: Path) -> Iterator[str]:
    return (path.name for path in directory.iterdir())


def test_a_database_is_downloaded_unpacked_and_found_once(tmp_path: Path) -> None:
    path = download(Behaviour(content=ARCHIVE), tmp_path / "deep")
    assert path == tmp_path / "deep" / f"{NAME}_db"
    assert set(names(tmp_path / "deep")) == {*database_files(NAME), "downloads.json"}
    assert path.read_bytes() == database_files(NAME)[path.name]
    again = Behaviour(content=b"")
    assert download(again, tmp_path / "deep") == path
    assert again.ranges == []


def test_archives_of_several_databases_are_downloaded_once_each(tmp_path: Path) -> None:
    clusters = "uniref30_2302"  # in two archives
    archives = {clusters: packed(database_files(clusters)), NAME: ARCHIVE}
    for name, content in archives.items():
        download(Behaviour(content=content), tmp_path, name)
    for name in archives:
        again = Behaviour(content=b"")
        assert download(again, tmp_path, name) == tmp_path / f"{name}_db"
        assert again.ranges == []
    sizes = {archive: len(archives[name]) for name in archives for archive in DOWNLOADS[name].archives}
    recorded = json.loads((tmp_path / "downloads.json").read_text())
    assert recorded == {archive: {"size": size} for archive, size in sizes.items()}


def test_an_interrupted_download_goes_on_unless_the_file_has_changed(tmp_path: Path) -> None:
    part = tmp_path / f"{DOWNLOADS[NAME].archives[0]}.part"
    with pytest.raises(DownloadError, match="run the command again"):
        download(Behaviour(content=ARCHIVE, cuts=[None, 400_000, 0, 0]), tmp_path)
    assert 0 < part.stat().st_size < len(ARCHIVE)
    had = part.stat().st_size
    behaviour = Behaviour(content=ARCHIVE)
    assert download(behaviour, tmp_path).is_file()
    assert f"bytes={had}-" in behaviour.ranges
    (tmp_path / "downloads.json").unlink()
    part.write_bytes(b"of another version")
    part.with_name(f"{part.name}.json").write_text(json.dumps({"size": 5, "version": "x"}))
    behaviour = Behaviour(content=ARCHIVE)
    assert download(behaviour, tmp_path).is_file()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (ARCHIVE[:-30_000], "the archive is damaged .* and was deleted; run the command again"),
        (ARCHIVE[:300_000] + bytes(64) + ARCHIVE[300_064:], "the archive is damaged .* and was deleted"),
        (b"<html>not here</html>", "the archive is damaged"),
        (packed({"../evil": b"x"}), r"\.\./evil is not a file of the database colabfold_envdb_202108; nothing was"),
        (packed({f"../{NAME}_db": b"x"}), "is not a file of the database"),
        (packed({"/tmp/other": b"x"}), "is not a file of the database"),
        (packed({}, **{f"{NAME}_db": "/etc/passwd"}), "is not a file of the database"),
    ],
)
def test_a_damaged_or_hostile_archive_leaves_no_database(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(DownloadError, match=message):
        download(Behaviour(content=content), tmp_path / "output")
    assert list(names(tmp_path)) == ["output"]
    assert not [name for name in names(tmp_path / "output") if ".part" not in name]


def test_sequences_are_converted_and_the_conversion_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = ': > members; : > members.index; printf "\\0\\0\\0\\0" > members.dbtype'
    program = RecordingProgram(tmp_path, "mmseqs", script)
    monkeypatch.setattr("data_pipeline.search.database_download.require_mmseqs", lambda _: program.path)
    name, output = "pdb100_230517", tmp_path / "output"
    content = gzip.compress(b">1abc_A\nMKV\n>2abc_A\nMK\n")
    assert download(Behaviour(content=content), output, name) == output / name
    (words,) = program.calls
    assert words == f"createdb {output}/sequences.fasta.gz members --dbtype 1 --shuffle 0 -v 2"
    files = {"downloads.json", *(f"{name}{ending}" for ending in ("", ".index", ".dbtype"))}
    assert set(names(output)) == files
    # A run that was killed after the conversion and before the record of it.
    (output / "downloads.json").unlink()
    (output / "sequences.fasta.gz").touch()
    download(Behaviour(content=content), output, name)
    assert len(program.calls) == 1
    assert set(names(output)) == files


def test_a_file_that_another_program_left_with_holes_is_fetched_again(tmp_path: Path) -> None:
    part = tmp_path / f"{DOWNLOADS[NAME].archives[0]}.part"
    with pytest.raises(DownloadError, match="run the command again"):
        download(Behaviour(content=ARCHIVE, cuts=[None, 400_000, 0, 0]), tmp_path)
    part.write_bytes(bytes(len(ARCHIVE)))
    part.with_name(f"{part.name}.aria2").touch()
    assert download(Behaviour(content=ARCHIVE), tmp_path).is_file()
    assert set(names(tmp_path)) == {*database_files(NAME), "downloads.json"}


def test_a_record_that_is_none_is_said(tmp_path: Path) -> None:
    (tmp_path / "downloads.json").write_text("[]")
    with pytest.raises(
        InputError, match=r"downloads\.json: not a record of downloads; delete it to download everything"
    ):
        download(Behaviour(content=ARCHIVE), tmp_path)


def test_an_archive_that_lacks_a_file_is_said(tmp_path: Path) -> None:
    files = database_files(NAME)
    del files[f"{NAME}_db_aln.index"]
    with pytest.raises(InputError, match=r"_aln\.index: this file of the MMseqs2 database is missing"):
        download(Behaviour(content=packed(files)), tmp_path)


def test_an_unknown_name_and_address_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = ["--output", str(tmp_path / "x")]
    assert main(["databases", "download", "bfd", *output]) == 2
    assert "unknown database bfd; the databases are uniref30_2302, colabfold_envdb_202108" in capsys.readouterr().err
    assert main(["databases", "download", NAME, "--url", "ftp://here", *output]) == 2
    assert "only http and https addresses" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
    assert main(["databases", "download"]) == 0
    assert "https://opendata.mmseqs.org/colabfold/uniref30_2302.db.tar.gz" in capsys.readouterr().out


@pytest.mark.integration
def test_a_database_is_built_from_fasta_checked_and_understood(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    needed_program("mmseqs")
    rng = np.random.default_rng(2)
    ancestor = random_protein(rng, 80)
    records = [f">a{index} OX=9606\n{relative(rng, ancestor, 0.7)}\n" for index in range(5)]
    records += [f">b{index}\n{random_protein(rng, 80)}\n" for index in range(20)]
    fasta, output = tmp_path / "all.fasta.gz", tmp_path / "databases"
    fasta.write_bytes(gzip.compress("".join(records).encode()))
    command = ["databases", "build", str(fasta), "--output", str(output), "--threads", "1"]
    assert main(command) == 0
    assert f"{output}/uniref30_own_db: 25 sequences" in capsys.readouterr().out
    assert read_database_profile(output, ()).alignments[0].paths == (output / "uniref30_own_db",)
    assert main(["databases", "check", str(output)]) == 0
    assert "uniref30_own_db (colabfold): whole" in capsys.readouterr().out
    assert main(command) == 2
    assert "a database of this name exists already" in capsys.readouterr().err
    members = output / "uniref30_own_db_seq"
    members.write_bytes(members.read_bytes()[:-100])
    assert main(["databases", "check", str(output)]) == 1
    assert "its index needs" in capsys.readouterr().out
    for wrong, message in (
        (["--min-identity", "2", "--name", "x"], "min_identity"),
        (["--name", "a/b"], "--name"),
        (["--name", "y"], "No such file"),
    ):
        path = tmp_path / "none.fasta" if "y" in wrong else fasta
        assert main(["databases", "build", str(path), "--output", str(output), *wrong]) == 2
        assert message in capsys.readouterr().err


def test_files_of_other_tools_are_checked_to_the_end(tmp_path: Path) -> None:
    (tmp_path / "good.fasta").write_text(">a\nMKV\n")
    (tmp_path / "bad.fasta").write_text(">a\nMKV\n>b\nMK4V\n")
    for ending, content in (("_a3m.ffdata", ""), ("_a3m.ffindex", "")):
        (tmp_path / f"bfd{ending}").write_text(content)
    tables = [
        f'[[alignments]]\nname = "{name}"\ntool = "{tool}"\npath = "{path}"\n'
        for name, tool, path in (
            ("g", "jackhmmer", "good.fasta"),
            ("b", "mmseqs", "bad.fasta"),
            ("h", "hhblits", "bfd"),
        )
    ]
    tables.append('[uniprot]\npath = "good.fasta"\n')
    tables.append('[templates]\ntool = "hmmsearch"\npath = "bad.fasta"\nstructures = "mmcif"\n')
    (tmp_path / "mmcif").mkdir()
    (tmp_path / "mmcif" / "1abc.cif").touch()
    (tmp_path / "profile.toml").write_text("".join(tables))
    checked = list(check_databases(read_database_profile(tmp_path / "profile.toml", ())))
    assert [place.removeprefix(f"{tmp_path}/") for place, _ in checked] == [
        *("good.fasta (jackhmmer)", "bad.fasta (mmseqs)", "bfd (hhblits)"),
        *("bad.fasta (hmmsearch)", "good.fasta (jackhmmer)"),
    ]
    good, bad, empty, searched, uniprot = (problem for _, problem in checked)
    assert searched == bad
    assert uniprot is None
    assert good is None
    assert bad is not None
    assert "bad.fasta, line 4" in bad
    assert empty is not None
    assert "all its files are empty" in empty


def test_every_part_of_a_database_of_clusters_is_checked(tmp_path: Path) -> None:
    parts = ("", "_h", "_seq", "_seq_h", "_aln")
    for name, content in database_files("uniref30_1").items():
        (tmp_path / name).write_bytes(content)
    profile = read_database_profile(tmp_path, ())
    assert [problem for _, problem in check_databases(profile)] == [None]
    for part in parts:
        index = tmp_path / f"uniref30_1_db{part}.index"
        index.write_text("0\t0\t200001\n")
        (problem,) = (problem for _, problem in check_databases(profile))
        assert problem is not None
        assert f"uniref30_1_db{part}: its index needs 200,001 bytes, but the data has 200,000" in problem
        index.write_text("0\t0\t200000\n")
    # What an index of MMseqs2's holds is not needed.
    (tmp_path / "uniref30_1_db.idx.index").touch()
    for path in [*tmp_path.glob("uniref30_1_db_seq*"), *tmp_path.glob("uniref30_1_db_aln*")]:
        path.unlink()
    assert [problem for _, problem in check_databases(profile)] == [None]
