"""A pulldown is one command: each chain is searched once, complexes are ranked in one table, failures stay alone."""

import csv
import json
from pathlib import Path

import pytest

from data_pipeline.search.server_archive import PAIRED_FILE
from helixfold.cli.main import main
from tests.data_pipeline.search.mock_server import Handler, MockServer, archive

BAITS = ">b1\nMKTAYIAKQR\n>b2\nGSHMLEDPVA\n"
PREYS = ">p1\nMAEEWLDKVR\n>p2\nMKTAYIAKQR\n"  # p2 has the sequence of b1


pytestmark = pytest.mark.usefixtures("asks_at_once")


class Pulldown:
    """Baits, preys, and the command that predicts them with random parameters."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.output = directory, directory / "out"
        for name, content in (("baits.fasta", BAITS), ("preys.fasta", PREYS)):
            (directory / name).write_text(content)

    def __call__(self, *more: str) -> int:
        files = [str(self.directory / name) for name in ("baits.fasta", "preys.fasta")]
        quick = ("--models", "tiny_multimer", "--models-to-relax", "none", "--num-recycles", "0")
        return main(["predict", "--pulldown", *files, "--output", str(self.output), *quick, *more])

    def table(self) -> list[dict[str, str]]:
        with (self.output / "pulldown.tsv").open() as file:
            return list(csv.DictReader(file, delimiter="\t"))


@pytest.fixture
def pulldown(tmp_path: Path) -> Pulldown:
    return Pulldown(tmp_path)


def test_all_pairs_are_predicted_and_ranked_and_each_chain_is_searched_once(
    pulldown: Pulldown, server: MockServer
) -> None:
    assert pulldown("--msa-server", server.url) == 0
    homologs, *pairs = [query["q"].split()[1::2] for query in server.queries]
    assert sorted(homologs) == ["GSHMLEDPVA", "MAEEWLDKVR", "MKTAYIAKQR"]
    assert len(pairs) == 3  # the fourth complex is a homodimer
    lines = pulldown.table()
    assert sorted((line["bait"], line["prey"]) for line in lines) == [
        (b, p) for b in ("b1", "b2") for p in ("p1", "p2")
    ]
    scores = [float(line["score"]) for line in lines]
    assert scores == sorted(scores, reverse=True)
    for line in lines:
        best = json.loads((pulldown.output / line["complex"] / "confidence_tiny_multimer.json").read_text())
        assert float(line["score"]) == pytest.approx(0.8 * best["iptm"] + 0.2 * best["ptm"], abs=1e-3)
    assert len(list((pulldown.output / "chain_searches").iterdir())) == 3
    assert "b2" in (pulldown.output / "pulldown.html").read_text()
    page = (pulldown.output / "pulldown.html").read_bytes()
    (pulldown.output / "pulldown.html").unlink()
    assert main(["report", str(pulldown.output)]) == 0
    assert (pulldown.output / "pulldown.html").read_bytes() == page
    # Again, with nothing left to do; then with one prey more.
    assert pulldown("--msa-server", server.url) == 0
    assert len(server.queries) == 4
    with (pulldown.directory / "preys.fasta").open("a") as file:
        file.write(">p3\nMVLSEGEWQL\n")
    assert pulldown("--msa-server", server.url) == 0
    assert server.queries[4]["q"].split()[1::2] == ["MVLSEGEWQL"]
    assert len(pulldown.table()) == 6


def test_a_complex_that_fails_has_its_line_and_stops_no_other(pulldown: Pulldown, server: MockServer) -> None:
    def answer(handler: Handler) -> None:
        results = server.results()
        if PAIRED_FILE in results and "GSHMLEDPVA" in server.asked().values():
            results[PAIRED_FILE] = results[PAIRED_FILE].partition(b"\0")[0]
        handler.send(archive(results))

    server.answers["download"] = [answer]
    assert pulldown("--msa-server", server.url) == 1
    lines = {line["complex"]: line for line in pulldown.table()}
    assert [line["status"] for line in lines.values()] == ["finished", "finished", "failed", "failed"]
    assert lines["b2__p1"]["problem"] == "SearchError: pair.a3m of the server's answer lacks 1 of 2 sequences"


def test_a_table_names_the_complexes_and_alignments_are_taken_by_protein(pulldown: Pulldown) -> None:
    table = pulldown.directory / "table.csv"
    table.write_text("id,bait,prey\nmine,b1*2,p1\n")
    msa = pulldown.directory / "msa"
    msa.mkdir()
    for name, sequence in (("b1", "MKTAYIAKQR"), ("p1", "MAEEWLDKVR")):
        (msa / f"{name}.a3m").write_text(f">{name}\n{sequence}\n>hit\n--{sequence[2:]}\n")
    assert pulldown("--pulldown-table", str(table), "--msa", str(msa)) == 0
    (line,) = pulldown.table()
    assert (line["complex"], line["bait"], line["prey"], line["residues"]) == ("mine", "b1*2", "p1", "30")
    (msa / "p1.a3m").unlink()
    assert pulldown("--pulldown-table", str(table), "--msa", str(msa), "--overwrite") == 2


def test_features_are_made_here_and_ranked_there(pulldown: Pulldown, server: MockServer) -> None:
    features = pulldown.directory / "features"
    files = [str(pulldown.directory / name) for name in ("baits.fasta", "preys.fasta")]
    make = ["features", "--pulldown", *files, "--output", str(features), "--msa-server", server.url]
    for _ in range(2):
        assert main(make) == 0
    assert len(server.queries) == 4  # three chains in one, three pairs; none the second time
    quick = ("--models", "tiny_multimer", "--models-to-relax", "none", "--num-recycles", "0")
    assert main(["predict", "--features", str(features), "--output", str(pulldown.output), *quick]) == 0
    staged = pulldown.table()
    assert sorted(line["complex"] for line in staged) == ["b1__p1", "b1__p2", "b2__p1", "b2__p2"]
    assert {line["status"] for line in staged} == {"finished"}
    pulldown.output = pulldown.directory / "at_once"
    assert pulldown("--msa-server", server.url) == 0
    assert pulldown.table() == staged
    # One of them alone is ranked alone.
    pulldown.output = pulldown.directory / "one"
    (features / "b1__p1/pulldown.json").write_bytes((features / "pulldown.json").read_bytes())
    one = str(features / "b1__p1")
    assert main(["predict", "--features", one, "--output", str(pulldown.output), *quick]) == 0
    assert [line["complex"] for line in pulldown.table()] == ["b1__p1"]


def test_features_of_a_pulldown_have_no_other_targets(
    pulldown: Pulldown, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(pulldown.directory / name) for name in ("baits.fasta", "preys.fasta")]
    structures = ["--structures", str(tmp_path)]
    for more, problem in (
        ([files[0]], "--pulldown cannot be combined with"),
        (structures, "targets cannot be combined with --structures"),
    ):
        command = ["features", *more, "--pulldown", *files, "--output", str(pulldown.output)]
        assert main(command) == 2
        assert problem in capsys.readouterr().err
    assert main(["features", "--pulldown-table", files[0], "--output", str(pulldown.output)]) == 2
    assert "pass --pulldown" in capsys.readouterr().err
    assert not pulldown.output.exists()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["x.fasta"], "--pulldown cannot be combined with x.fasta"),
        (["--example"], "--pulldown and --example cannot be combined"),
        (["--chain-ids", "H"], "--pulldown and --chain-ids cannot be combined"),
        (["--pulldown-table", "none.csv"], "none.csv"),
        (["--msa", "one.a3m"], "one alignment for several targets"),
    ],
)
def test_wrong_options_are_one_sentence(
    pulldown: Pulldown, capsys: pytest.CaptureFixture[str], options: list[str], problem: str
) -> None:
    assert pulldown(*options) == 2
    said = capsys.readouterr().err
    assert problem in said
    assert "Traceback" not in said
    assert not pulldown.output.exists()


def test_a_table_needs_a_pulldown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--pulldown-table", "x.csv"]) == 2
    assert "pass --pulldown" in capsys.readouterr().err


def test_a_complex_cannot_take_the_place_of_the_searches(
    pulldown: Pulldown, capsys: pytest.CaptureFixture[str]
) -> None:
    table = pulldown.directory / "table.csv"
    table.write_text("id,bait,prey\nChain_Searches,b1,p1\n")
    assert pulldown("--pulldown-table", str(table)) == 2
    assert "is used for results of searches" in capsys.readouterr().err
