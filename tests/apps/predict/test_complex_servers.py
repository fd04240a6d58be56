"""Complexes are folded from what a server answered, homologs and pairs; a bad answer costs one complex a sentence."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.features.complexes.feature_file import load_features
from data_pipeline.features.complexes.feature_set import ComplexFeatureSet
from data_pipeline.search.server_archive import ENVIRONMENTAL_FILE, PAIRED_FILE, UNIREF_FILE
from helixfold.cli.main import main
from tests.data_pipeline.search.mock_server import Handler, MockServer, archive

FIRST, SECOND, THIRD = "MKTAYIAKQR", "GSHMLEDPVA", "MAEEWLDKVR"


pytestmark = pytest.mark.usefixtures("asks_at_once")


def fold(directory: Path, records: dict[str, str], url: str, *more: str) -> int:
    """Fold complexes with random parameters into a directory."""
    fasta = directory / "complexes.fasta"
    fasta.write_text("".join(f">{name}\n{sequence}\n" for name, sequence in records.items()))
    model = ("--models", "tiny", "--models-to-relax", "none", "--num-recycles", "0", "--max-extra-rows", "16")
    return main(["predict", str(fasta), "--msa-server", url, "--output", str(directory / "out"), *model, *more])


def features(directory: Path, name: str) -> ComplexFeatureSet:
    found = load_features(directory / "out" / name / "features.npz")
    assert isinstance(found, ComplexFeatureSet)
    return found


class StoredAnswers:
    """What ColabFold's server answered for the two chains of 3G5O."""

    def __init__(self, real_data: Path) -> None:
        with gzip.open(real_data / "colabfold" / "server_answers__complex.json.gz") as file:
            unpaired, paired = json.load(file)
        self.sequences: list[str] = unpaired["config"]["query"]
        self.uniref, self.environmental = zip(*map(self._split, unpaired["response"]), strict=True)
        self.paired = ["\n".join(lines) for lines in paired["response"]]

    @staticmethod
    def _split(lines: list[str]) -> tuple[str, str]:
        """The rows of both databases, each below the target."""
        second = lines.index(lines[0], 1)
        return "\n".join(lines[:second]), "\n".join(lines[second:])

    def answer(self, handler: Handler) -> None:
        files = {UNIREF_FILE: self.uniref, ENVIRONMENTAL_FILE: self.environmental}
        if handler.server.endpoints[-1] == "/ticket/pair":
            files = {PAIRED_FILE: self.paired}
        assert list(handler.server.asked().values()) == self.sequences
        handler.send(archive({name: "\n\0".join([*parts, ""]).encode() for name, parts in files.items()}))


def test_a_heterodimer_is_folded_from_stored_answers(server: MockServer, real_data: Path, tmp_path: Path) -> None:
    stored = StoredAnswers(real_data)
    server.answers["download"] = [stored.answer]
    for _ in range(2):  # finished the second time
        assert fold(tmp_path, {"3G5O": ":".join(stored.sequences)}, server.url) == 0
    assert server.endpoints == ["/ticket/msa", "/ticket/pair"]
    assert [query["mode"] for query in server.queries] == ["env", "pairgreedy"]
    found = features(tmp_path, "3G5O")
    assert found.multimer.paired_rows == len(stored.paired[0].splitlines()) // 2 == 15
    ours = {row.tobytes() for row in found.residue_gap.msa.astype(np.int32)}
    # The rows that ColabFold handed to the network for these answers.
    with np.load(real_data / "colabfold" / "complex_ptm__3G5O_A_3G5O_B_features.npz") as colabfold:
        drawn = np.concatenate([colabfold["true_msa"], colabfold["extra_msa"]], axis=1)
    assert all(row.tobytes() in ours for row in drawn.reshape(-1, 180))
    assert (tmp_path / "out" / "3G5O" / "ranked_0.cif").is_file()
    files = sorted(path.name for path in (tmp_path / "out" / "3G5O" / "msas").glob("*/*.a3m"))
    assert files == ["paired_hits.a3m"] * 2 + ["server_hits.a3m"] * 2


def test_a_sequence_is_sent_once_and_pairs_once_for_each_complex(server: MockServer, tmp_path: Path) -> None:
    records = {"abb": f"{FIRST}:{SECOND}*2", "bc": f"{SECOND}:{THIRD}", "cc": f"{THIRD}:{THIRD}", "c": THIRD}
    options = ("--pair-strategy", "complete", "--msa-mode", "mmseqs2_uniref_env_envpair")
    assert fold(tmp_path, records, server.url, *options) == 0
    homologs, *pairs = [query["q"].split()[1::2] for query in server.queries]
    assert sorted(homologs) == sorted([FIRST, SECOND, THIRD])
    assert sorted(pairs) == sorted([[FIRST, SECOND], [SECOND, THIRD]])
    assert [query["mode"] for query in server.queries] == ["env", "paircomplete-env", "paircomplete-env"]
    assert features(tmp_path, "abb").multimer.paired_rows == 4


@pytest.mark.parametrize("mode", ["paired", "unpaired"])
def test_only_what_a_mode_needs_is_asked_for(server: MockServer, tmp_path: Path, mode: str) -> None:
    assert fold(tmp_path, {"ab": f"{FIRST}:{SECOND}"}, server.url, "--pair-mode", mode) == 0
    assert server.endpoints == ["/ticket/pair" if mode == "paired" else "/ticket/msa"]
    assert features(tmp_path, "ab").multimer.paired_rows == (3 if mode == "paired" else 1)


def test_a_bad_answer_costs_one_complex_a_sentence(server: MockServer, tmp_path: Path) -> None:
    def answer(handler: Handler) -> None:
        results = server.results()
        if PAIRED_FILE in results and THIRD in server.asked().values():
            results[PAIRED_FILE] = results[PAIRED_FILE].replace(b">P101_1\t99\n-" + SECOND[1:].encode() + b"\n", b"")
        handler.send(archive(results))

    server.answers["download"] = [answer]
    assert fold(tmp_path, {"good": f"{FIRST}:{SECOND}", "bad": f"{SECOND}:{THIRD}"}, server.url) == 1
    failures = json.loads((tmp_path / "out" / "failures.json").read_text())
    assert failures == {
        "bad": "SearchError: pair.a3m of the server's answer has 1 rows for sequence 101 but 2 for sequence 102; "
        "paired rows need equal numbers"
    }
    assert (tmp_path / "out" / "good" / "ranked_0.cif").is_file()
    server.answers["download"] = [lambda handler: handler.send(archive(server.results()))]
    asked = len(server.endpoints)
    assert fold(tmp_path, {"good": f"{FIRST}:{SECOND}", "bad": f"{SECOND}:{THIRD}"}, server.url) == 0
    assert server.endpoints[asked:] == ["/ticket/pair"]


def test_what_complexes_lack_in_alphafolds_directory_is_said_if_there_are_some(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "databases" / "uniref90").mkdir(parents=True)
    (tmp_path / "databases" / "uniref90" / "uniref90.fasta").write_text(f">a\n{FIRST}\n")
    for sequence, said in ((f"{FIRST}:{SECOND}", True), (f"{FIRST}*2", False), (FIRST, False)):
        (tmp_path / "one.fasta").write_text(f">one\n{sequence}\n")
        files = (str(tmp_path / "one.fasta"), "--databases", str(tmp_path / "databases"))
        assert main(["predict", *files, "--models", "tiny", "--output", str(tmp_path / "out"), "--dry-run"]) == 0
        assert ("there is no uniprot/uniprot.fasta" in capsys.readouterr().err) == said
