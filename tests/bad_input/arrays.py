"""Bad archives: features made before, and model parameters in all three formats."""

import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from data_pipeline.features.monomer import monomer_features
from helixfold.model.presets import preset
from helixfold.weights import alphafold
from helixfold.weights.checkpoint import save_checkpoint
from helixfold.weights.untrained import untrained_model
from tests.bad_input.case import Case, Content, bad

FASTA = b">t\nMKTAYIAKQR\n"


class Exploit:
    """What pickle would run."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, ("exploited", "w"))


@cache
def features() -> dict[str, np.ndarray]:
    found = monomer_features("t", "MKTAYIAKQR")
    arrays = {name: np.asarray(value) for name, value in vars(found).items()}
    return {**arrays, "template_domain_names": np.asarray(found.template_domain_names, dtype=np.str_)}


@cache
def parameters() -> dict[str, np.ndarray]:
    config = preset("tiny").model
    return dict(alphafold.from_state_dict(untrained_model(config, 0).state_dict(), config))


def npz(arrays: dict[str, np.ndarray], pickled: bool = False) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=pickled, **arrays)
    return buffer.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def twice() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.npy", array_declaring("(16,)"))
        archive.filelist.append(archive.filelist[0])
    return buffer.getvalue()


def array_declaring(shape: str, kind: str = "<f4") -> bytes:
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(64)


def ready(content: Callable[[], bytes], *says: str) -> Case:
    """Features that are to be folded."""
    return bad("predict --features f.npz", {"f.npz": lambda path: path.write_bytes(content())}, "f.npz", *says)


def changed(*says: str, **arrays: object) -> Case:
    return ready(lambda: npz({**features(), **{name: np.asarray(each) for name, each in arrays.items()}}), *says)


def weights(name: str, content: Callable[[], bytes] | Callable[[Path], object], *says: str, made: bool = False) -> Case:
    """Parameters for the tiny model; `made`: the content writes the file itself."""
    write: Content = content if made else lambda path: path.write_bytes(content())  # type: ignore[assignment, call-arg]
    command = f"predict x.fasta --models tiny --weights {name}"
    return bad(command, {"x.fasta": FASTA, name: write}, name, *says)


def inspected(name: str, content: Callable[[], bytes], *says: str) -> Case:
    return bad(f"weights inspect {name}", {name: lambda path: path.write_bytes(content())}, name, *says)


def without(name: str) -> dict[str, np.ndarray]:
    return {key: value for key, value in features().items() if key != name}


def safetensors(header: bytes, declared: int | None = None, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header) if declared is None else declared) + header + data


def tensors(config: str = "{}", **entries: object) -> bytes:
    metadata = {"format": "helixfold", "version": "1", "config": config, "sha256": ""}
    return safetensors(json.dumps({"__metadata__": metadata, **entries}).encode(), data=bytes(64))


def _checkpoint(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    config = preset("tiny").model
    state = dict(untrained_model(config, 0).state_dict())
    change(state)
    save_checkpoint(path, state, config.to_dict())


def _without_end(setting: str) -> Callable[[Path], object]:
    """Write parameters whose own settings have an enormous number."""

    def write(path: Path) -> None:
        tiny = preset("tiny")
        *outer, inner = setting.split(".")
        settings = tiny.to_dict()
        table = settings
        for name in outer:
            table = table[name]
        table[inner] = 10**9
        model = settings.pop("model")
        save_checkpoint(path, untrained_model(tiny.model, 0).state_dict(), model, settings)

    return write


def _flipped(path: Path) -> None:
    _checkpoint(path, lambda _: None)
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def _pt(content: object) -> Callable[[], bytes]:
    def written() -> bytes:
        buffer = io.BytesIO()
        torch.save(content, buffer)
        return buffer.getvalue()

    return written


A_NAME = "alphafold/alphafold_iteration/evoformer/preprocess_1d//weights"

FEATURES = {
    "features that are not there": bad("predict --features no.npz", {}, "no.npz", "No such file"),
    "features that are text": ready(lambda: b"hello", "damaged", "get it again"),
    "features that are empty": ready(lambda: b"", "damaged, incomplete"),
    "features that were cut": ready(lambda: npz(features())[:-400], "damaged, incomplete"),
    "features with a changed byte": ready(lambda: npz(features()).replace(b"\4\0\0\0", b"\5\0\0\0", 1), "f.npz"),
    "pickled features": ready(
        lambda: npz({**features(), "msa": np.array(Exploit(), dtype=object)}, pickled=True), "f.npz"
    ),
    "features that are a pickle": ready(lambda: pickle.dumps(features()), "damaged, incomplete"),
    "features without the alignment": ready(lambda: npz(without("msa")), "msa missing", "create the features again"),
    "features without a name": ready(lambda: npz(without("domain_name")), "domain_name missing"),
    "features named to climb": changed("'../../x'", "another directory", domain_name="../../x"),
    "features named absolutely to climb": changed("another directory", domain_name="/tmp/../x"),
    "features with an escape in the name": changed("control", domain_name="a\x1b[31mb"),
    "features named as a file of ours": changed("reserved for files", domain_name="failures.json"),
    "features without a residue": changed("aatype", "sequence", sequence=""),
    "features of another length": changed("aatype", "sequence", sequence="MKT"),
    "features of another sequence": changed("aatype", "sequence", sequence="MKTAYIAKQA"),
    "features with letters that are none": changed("sequence", sequence="MKTAYIAKQ\n"),
    "features with an alignment of other columns": changed("expected (3, 10)", msa=np.zeros((3, 7), np.int8)),
    "features with an alignment of floats": changed("msa", msa=np.zeros((1, 10), np.float32)),
    "features with an alignment for another target": changed("msa", "first row", msa=np.zeros((1, 10), np.int8)),
    "features with a residue type that is none": changed("0..20", aatype=np.full(10, 77)),
    "features with negative deletions": changed("negative", deletion_matrix=np.full((1, 10), -1)),
    "features with a residue number that is none": changed("residue_index", residue_index=np.arange(10) - 5),
    "features with numbers that repeat": changed("residue_index", residue_index=np.zeros(10, np.int64)),
    "templates that are not finite": changed(
        *("template_all_atom_positions", "finite"),
        template_domain_names=np.array(["a"]),
        template_aatype=np.zeros((1, 10), np.int32),
        template_all_atom_positions=np.full((1, 10, 37, 3), np.nan, np.float32),
        template_all_atom_masks=np.ones((1, 10, 37), np.float32),
        template_sum_probs=np.ones((1, 1), np.float32),
    ),
    "a directory without features": bad("predict --features d", {"d": Path.mkdir}, "d", "no features.npz"),
    "a pipe as features": bad("predict --features f.npz", {"f.npz": os.mkfifo}, "f.npz", "pipe"),
    "features' path that is too long": bad(f"predict --features {'f' * 300}", {}, "too long"),
    "features and a search": bad(
        "predict --features f.npz --msa-server", {"f.npz": lambda path: path.write_bytes(npz(features()))}, "msa-server"
    ),
}

WEIGHTS = {
    "weights that are not there": bad("predict x.fasta --weights no.npz", {"x.fasta": FASTA}, "no.npz", "o such"),
    "weights of an unknown kind": weights("w.h5", lambda: b"\x89HDF\r\n", "is not a parameter file", ".safetensors"),
    "weights from which the model is to be found": bad(
        "predict x.fasta --weights w.npz", {"x.fasta": FASTA, "w.npz": b""}, "w.npz", "get it again"
    ),
    "a directory without weights": bad("predict x.fasta --weights d", {"x.fasta": FASTA, "d": Path.mkdir}, "params_"),
    "weights that are empty": weights("w.npz", lambda: b"", "get it again"),
    "weights that were cut": weights("w.npz", lambda: npz(parameters())[:-999], "get it again"),
    "pickled weights": weights(
        "w.npz", lambda: npz({A_NAME: np.array(Exploit(), dtype=object)}, pickled=True), "Python objects", "never read"
    ),
    "weights with an array missing": weights("w.npz", lambda: npz(dict([*parameters().items()][1:])), "missing"),
    "weights with an array too many": weights("w.npz", lambda: npz({**parameters(), "x//y": np.ones(1)}), "x//y"),
    "weights of other shapes": weights("w.npz", lambda: npz({**parameters(), A_NAME: np.ones((2, 2))}), A_NAME),
    "weights that are not finite": weights(
        "w.npz", lambda: npz({**parameters(), A_NAME: np.full_like(parameters()[A_NAME], np.inf)}), A_NAME, "finite"
    ),
    "weights of integers": weights("w.npz", lambda: npz({A_NAME: np.ones(3, np.int64)}), "floating-point"),
    "weights of exabytes": weights("w.npz", lambda: zipped({"a.npy": array_declaring("(1152921504606846976,)")}), "'a"),
    "weights with a name twice": weights("w.npz", twice, "twice"),
    "weights for another model": bad(
        "predict x.fasta --models model_1 --weights w.npz",
        {"x.fasta": FASTA, "w.npz": lambda path: path.write_bytes(npz(parameters()))},
        *("w.npz", "it fits tiny"),
    ),
    "weights of two models in one file": bad(
        "predict x.fasta --models model_1 model_2 --weights w.npz", {"x.fasta": FASTA, "w.npz": b""}, "one file"
    ),
    "a .pt that runs code": weights("w.pt", _pt({"a": Exploit()}), "tensors only", "state dict"),
    "a .pt of the old kind that runs code": weights("w.pt", lambda: pickle.dumps({"a": Exploit()}, 2), "w.pt"),
    "a .pt of a whole module": weights("w.pt", _pt(torch.nn.Linear(2, 2)), "tensors only"),
    "a .pt without tensors": weights("w.pt", _pt({"a": 3}), "'a' is not a tensor"),
    "a .pt that is a list": weights("w.pt", _pt([torch.ones(1)]), "does not contain a state dict"),
    "a .pt that was cut": weights("w.pt", lambda: _pt({"a": torch.ones(99)})()[:-50], "w.pt"),
    "a .pt of other names": weights("w.pt", _pt({"a": torch.ones(1)}), "does not fit this model"),
    "safetensors with a header of 2^63 bytes": weights("w.safetensors", lambda: safetensors(b"{}", 2**63), "w.saf"),
    "safetensors with a header that lies": weights(
        "w.safetensors", lambda: tensors(a={"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}), "w.saf"
    ),
    "safetensors of a deep header": weights("w.safetensors", lambda: safetensors(b'{"a":' + b"[" * 100_000), "w.saf"),
    "safetensors of somebody else": weights(
        "w.safetensors",
        lambda: safetensors(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', data=bytes(4)),
        "the settings of its model",
    ),
    "safetensors with settings that are none": weights("w.safetensors", lambda: tensors("[" * 9000), "w.saf"),
    "safetensors with settings of the wrong kind": weights("w.safetensors", lambda: tensors("[1]"), "w.saf"),
    "features of nothing but unknown residues": changed(
        "'t'", "no known residue", aatype=np.full(10, 20, np.int8), sequence="XBJOUZXXXX"
    ),
    "safetensors with an unknown setting": bad(
        "predict x.fasta --weights w.safetensors",
        {"x.fasta": FASTA, "w.safetensors": lambda path: path.write_bytes(tensors('{"x": 1}'))},
        "w.safetensors",
    ),
    **{
        f"safetensors with a setting {name} without end": bad(
            "predict x.fasta --weights w.safetensors", {"x.fasta": FASTA, "w.safetensors": _without_end(name)}, says
        )
        for name, says in (
            ("model.evoformer.blocks", "at most 1,000"),
            ("num_recycles", "at most 1,000"),
            ("sampling.max_extra_msa", "at most 1,000,000"),
        )
    },
    "safetensors with a changed bit": weights("w.safetensors", _flipped, "checksum", made=True),
    "safetensors that are not finite": weights(
        "w.safetensors",
        lambda path: _checkpoint(path, lambda state: next(iter(state.values())).fill_(float("nan"))),
        "finite",
        made=True,
    ),
    "a pipe as weights": bad(
        "predict x.fasta --models tiny --weights w.npz", {"x.fasta": FASTA, "w.npz": os.mkfifo}, "w.npz", "pipe"
    ),
    "weights' path that is too long": bad(f"predict x.fasta --weights {'w' * 300}", {"x.fasta": FASTA}, "w"),
    "inspecting what is not there": bad("weights inspect no.npz", {}, "no.npz", "o such"),
    "inspecting text": inspected("w.npz", lambda: b"hello", "get it again"),
    "inspecting a program": inspected("w", lambda: b"\x7fELF" + bytes(99), "is not a parameter file"),
    "inspecting a pickle": inspected("w.pt", lambda: pickle.dumps(Exploit()), "w.pt"),
    "converting what is not there": bad("weights convert no.npz w.pt", {}, "no.npz", "o such"),
    "converting to another format": bad("weights convert w.npz w.h5", {"w.npz": b"x"}, "w.h5", ".safetensors"),
    "converting over a file": bad(
        "weights convert w.npz v.pt",
        {"w.npz": lambda path: path.write_bytes(npz(parameters())), "v.pt": b"x"},
        *("v.pt", "exists"),
    ),
    "converting text": bad("weights convert w.npz v.pt --model tiny", {"w.npz": b"hello"}, "w.npz"),
    "downloading from a file": bad("weights download --url file:///etc/passwd --output d", {}, "file:///", "http"),
}  # fmt: skip


ARRAYS = FEATURES | WEIGHTS
