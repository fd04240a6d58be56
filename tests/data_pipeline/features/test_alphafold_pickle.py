"""AlphaFold's features.pkl is converted as AlphaFold reads it, and a hostile file is an error."""

import builtins
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.features.alphafold_pickle import _features, features_from_pickle
from data_pipeline.features.schema import Features
from data_pipeline.io.errors import InputError
from data_pipeline.residues import RESTYPES_WITH_X_AND_GAP
from helixfold.cli.main import main

SEQUENCE, ROW = "MKTAYIAKQX", "MKTAW--RQA"
HHBLITS = "ACDEFGHIKLMNPQRSTVWYX-"


def objects(*values: bytes) -> np.ndarray:
    return np.array(values, dtype=object)


def alphafold_features() -> dict[str, Any]:
    """Return features as AlphaFold's data pipeline makes them, by its own code's description of them."""
    length, rows = len(SEQUENCE), (SEQUENCE, ROW)
    positions = np.arange(length * 37 * 3, dtype=np.float32).reshape(1, length, 37, 3)
    return {
        "aatype": np.eye(21, dtype=np.int32)[[RESTYPES_WITH_X_AND_GAP.index(letter) for letter in SEQUENCE]],
        "between_segment_residues": np.zeros(length, np.int32),
        "domain_name": objects(b"sp|P0CG48|UBC_HUMAN Polyubiquitin"),
        "residue_index": np.arange(length, dtype=np.int32),
        "seq_length": np.full(length, length, np.int32),
        "sequence": objects(SEQUENCE.encode()),
        "deletion_matrix_int": np.asfortranarray([[0] * length, [0, 3] + [0] * (length - 2)], dtype=np.int32),
        "msa": np.array([[HHBLITS.index(letter) for letter in row] for row in rows], np.int32),
        "num_alignments": np.full(length, 2, np.int32),
        "msa_species_identifiers": objects(b"", b"HUMAN"),
        "template_aatype": np.eye(22, dtype=np.float32)[[[HHBLITS.index(letter) for letter in ROW]]],
        "template_all_atom_masks": np.ones((1, length, 37), np.float32),
        "template_all_atom_positions": positions,
        "template_domain_names": objects(b"1abc_A"),
        "template_sequence": objects(ROW.encode()),
        "template_sum_probs": np.array([[7.5]], np.float32),
    }


def written(path: Path, content: object, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


def read_here(content: object, protocol: int = 4) -> Features:
    """What a process with limited memory reads, without the process."""
    arrays = _features("features.pkl", pickle.dumps(content, protocol=protocol))
    return Features.from_arrays(arrays, "features.pkl")


@pytest.mark.parametrize("is_here", [True, pytest.param(False, marks=pytest.mark.integration)])
@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_features_are_those_of_alphafold(tmp_path: Path, protocol: int, is_here: bool) -> None:
    path = written(tmp_path / "features.pkl", alphafold_features(), protocol)
    features = read_here(alphafold_features(), protocol) if is_here else features_from_pickle(path)
    letters = np.array(list(RESTYPES_WITH_X_AND_GAP))
    assert features.domain_name == "sp|P0CG48|UBC_HUMAN"
    assert features.sequence == "".join(letters[features.aatype]) == SEQUENCE
    assert ["".join(letters[row]) for row in features.msa] == [SEQUENCE, ROW]
    assert features.deletion_matrix[1].tolist() == [0, 3, *[0] * 8]
    assert "".join(letters[features.template_aatype[0]]) == ROW
    assert features.template_domain_names == ("1abc_A",)
    assert features.template_all_atom_positions[0, 1, 2].tolist() == [117.0, 118.0, 119.0]
    assert features.template_sum_probs.tolist() == [[7.5]]


def test_no_templates_are_no_templates(tmp_path: Path) -> None:
    content = alphafold_features() | {name: np.array([]) for name in alphafold_features() if name[:8] == "template"}
    for features in (features_from_pickle(written(tmp_path / "features.pkl", content)), read_here(content)):
        assert features.template_all_atom_positions.shape == (0, len(SEQUENCE), 37, 3)


class Reduced:
    """An object whose pickle calls a function when it is loaded."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (Reduced(os.system, "touch made"), "posix.system"),
        ({"aatype": Reduced(builtins.eval, "open('made', 'w')")}, "builtins.eval"),
        ({"aatype": np.array([Reduced(builtins.exec, "open('made', 'w')")], dtype=object)}, "builtins.exec"),
        ({"aatype": np.array([{}, []], dtype=object)}, "objects other than bytes or text"),
        ({"aatype": np.zeros(2, "U3")}, "an array of <U3"),
        ({"aatype": np.zeros(2, [("a", "i4")])}, "an array of"),
        ({"aatype": Reduced(np.load, "made")}, "numpy.load"),
        ({"aatype": Reduced(np.ndarray, (2, 3))}, "damaged or not a pickle"),
        ({"aatype": np.zeros((1, 1, 1, 1, 1))}, "at most 4 dimensions"),
        ({"aatype": {1, 2}}, "aatype, residue_index, sequence, domain_name, msa, deletion_matrix_int missing"),
        ({1: 2}, "not a dictionary of arrays"),
        ([1.5], "not a dictionary of arrays"),
        ({}, "missing"),
        (alphafold_features() | {"asym_id": np.ones(3)}, "features of a complex"),
        (alphafold_features() | {"assembly_num_chains": np.int32(2)}, "features of a complex"),
        (alphafold_features() | {"aatype": np.zeros((10, 21))}, "aatype does not match the sequence"),
        (alphafold_features() | {"msa": np.full((2, 10), 22)}, "outside 0..21"),
        (alphafold_features() | {"msa": np.full((2, 10), 0.5)}, "not the features of AlphaFold 2"),
        (alphafold_features() | {"residue_index": np.arange(7)}, "residue_index is"),
    ],
    ids=range(19),
)
@pytest.mark.parametrize("is_here", [True, pytest.param(False, marks=pytest.mark.integration)])
def test_anything_but_arrays_is_refused_by_name_and_not_run(
    is_here: bool, content: object, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = written(Path("features.pkl"), content)
    with pytest.raises(InputError) as caught:
        read_here(content) if is_here else features_from_pickle(path)
    assert says in str(caught.value)
    assert str(caught.value).startswith("features.pkl: ")
    assert [path.name for path in tmp_path.iterdir()] == ["features.pkl"]


@pytest.mark.integration
def test_a_file_cut_anywhere_is_one_sentence() -> None:
    whole = pickle.dumps(alphafold_features(), protocol=4)
    for length in (*range(0, 400, 3), *range(400, len(whole), 211)):
        with pytest.raises(InputError):
            _features("features.pkl", whole[:length])


_START = b"\x80\x04}\x8c\x06aatype"  # a dictionary and its first key


def array_of(shape: bytes, dtype: bytes = b"\x8c\x02f4\x85R") -> bytes:
    """Return the instructions for an array of this shape."""
    made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85C\x01btR"
    return made + b"(K\x01" + shape + b"cnumpy\ndtype\n" + dtype + b"\x89C\x00tb"


HOSTILE = {
    "a string of exabytes": b"\x80\x04\x8e" + (2**62).to_bytes(8, "little") + b"x.",
    "an index of two thousand millions in the memo": b"\x80\x04}r\xff\xff\xff\x7f.",
    "marks": b"\x80\x04" + b"(" * 3_000_000 + b".",
    "memo entries": b"\x80\x04]" + b"\x94" * 3_000_000 + b".",
    "a frame of exabytes": b"\x80\x04\x95" + (2**62).to_bytes(8, "little") + b"}.",
    "protocol 0": b"cos\nsystem\n(S'true'\ntR.",
    "a key of nested tuples, which ends the process": b"\x80\x04})" + b"\x85" * 900_000 + b"Ns.",
    "keys with one hash, which take all the time": b"\x80\x04}("
    + b"".join(b"\x8a\x0a" + ((2**61 - 1) * count).to_bytes(10, "little") + b"N" for count in range(80_000))
    + b"u.",
    "a shape of many large numbers": _START
    + array_of(b"(\x8a\xff" + b"\xff" * 254 + b"\x7f\x94" + b"h\x00" * 100_000 + b"t")
    + b"s.",
    "a type whose name is nested tuples": _START + array_of(b")", b")" + b"\x85" * 100_000 + b"\x85R") + b"s.",
    "a negative shape": _START + array_of(b"J\xff\xff\xff\xffJ\xff\xff\xff\xff\x86") + b"s.",
    "a state that is not a tuple": _START + b"cnumpy\ndtype\n\x8c\x02f4\x85RNbs.",
    "the state of a class": _START + b"cnumpy\ndtype\n}\x8c\x04codeK\x01sbs.",
    "a name of 500,000 letters 100,000 times": pickle.dumps(
        alphafold_features() | {"template_domain_names": np.array([b"a" * 500_000] * 100_000, dtype=object)}, 4
    ),
}


@pytest.mark.integration
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_are_one_sentence(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "features.pkl"
    path.write_bytes(HOSTILE[kind])
    with pytest.raises(InputError) as caught:
        features_from_pickle(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.integration
@pytest.mark.skipif(sys.platform != "linux", reason="lists the children of a process, which Linux does")
def test_sigterm_ends_the_command_while_a_hostile_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "features.pkl"
    path.write_bytes(HOSTILE["keys with one hash, which take all the time"])
    command = [sys.executable, "-m", "helixfold.cli.main", "features", "--from-pickle", str(path)]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE) as process:
        try:
            while not Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text():
                assert process.poll() is None
                time.sleep(0.02)
            process.terminate()
            _, printed = process.communicate(timeout=60)
            assert (process.returncode, printed.count(b"helixfold: terminated")) == (143, 1)
        finally:
            process.kill()


@pytest.mark.integration
def test_the_command_writes_what_predict_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, output = written(tmp_path / "features.pkl", alphafold_features()), tmp_path / "features"
    assert main(["features", "--from-pickle", str(file), "--output", str(output)]) == 0
    assert "sp|P0CG48|UBC_HUMAN, 10 residues" in capsys.readouterr().out
    assert Features.load(output / "sp_P0CG48_UBC_HUMAN" / "features.npz").sequence == SEQUENCE
    assert main(["features", "--from-pickle", str(file), "--threads", "2"]) == 2
    assert "can be combined only with --output" in capsys.readouterr().err
