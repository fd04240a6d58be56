"""Hostile files: what the command takes to refuse each of them.

    python -m tests.bad_input.hostile FOLDER

prints a table. A file is refused in a process of its own that has imported all that the command needs. Seconds are the
processor's and the clock's from the command's start to its end. Memory is what the process takes at its highest beyond
what it took before, and no more than 200 MiB beyond what was mapped before can be asked for (`RLIMIT_AS`). What makes a
file is not counted; it runs in another process.
"""

import contextlib
import gc
import gzip
import io
import json
import os
import resource
import shlex
import struct
import sys
import tarfile
import time
import traceback
import zipfile
from collections.abc import Callable, Iterable
from itertools import repeat
from pathlib import Path

from data_pipeline.io.errors import InputError, SearchError
from data_pipeline.io.json_files import read_json
from data_pipeline.parse.template_hit import parse_hmmsearch
from data_pipeline.parse.text_files import read_text_bytes
from data_pipeline.search.result_files import ResultFiles
from data_pipeline.search.server_archive import DamagedArchiveError, ServerAlignments
from helixfold.cli.main import main
from helixfold.report.maps import pae_map
from helixfold.report.page import Blobs
from helixfold.results.training_log import read_log
from tests.data_pipeline.parse.hhr_files import read_hhr

MIB = 2**20
ALLOWED_BYTES, ALLOWED_SECONDS = 200 * MIB, 5.0
FASTA = b">t\nMKTAYIAKQR\n"
Read = Callable[[Path], object]
# What makes the file is itself made when it is needed: it may hold hundreds of MiB.
Case = tuple[Callable[[], Callable[[Path], object]], str | Read]


def packed(*pieces: bytes, times: int = 1) -> Callable[[Path], object]:
    """A gzip file; the last piece stands in it `times` over, in members of its own."""

    def write(path: Path) -> None:
        with path.open("wb") as file:
            for piece in pieces[:-1]:
                file.write(gzip.compress(piece))
            last = gzip.compress(pieces[-1])
            file.writelines(repeat(last, times))

    return write


def plain(*pieces: bytes, times: int = 1) -> Callable[[Path], object]:
    def write(path: Path) -> None:
        with path.open("wb") as file:
            file.writelines(pieces[:-1])
            file.writelines(repeat(pieces[-1], times))

    return write


def array_of(shape: str, kind: str = "<f4", data: bytes = b"") -> bytes:
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def zip_of(
    members: Iterable[tuple[str, bytes]], copies: int = 0, compression: int = zipfile.ZIP_DEFLATED
) -> Callable[[Path], object]:
    """An archive; the first member has `copies` more entries in the directory, under other names."""

    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w", compression, compresslevel=1) as archive:
            for name, content in members:
                archive.writestr(name, content)
            first = archive.filelist[0]
            for number in range(copies):
                other = zipfile.ZipInfo(f"{number}.npy")
                for field in ("compress_type", "CRC", "compress_size", "file_size", "header_offset", "flag_bits"):
                    setattr(other, field, getattr(first, field))
                archive.filelist.append(other)

    return write


def pt(pickled: bytes) -> Callable[[Path], object]:
    members = (("w/data.pkl", pickled), ("w/byteorder", b"little"), ("w/version", b"3\n"))
    return zip_of(members, compression=zipfile.ZIP_STORED)


def million_tensors(path: Path) -> None:
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header = json.dumps({str(number): entry for number in range(10**6)}).encode()
    safetensors(len(header), header)(path)


def tar_of(*members: tuple[str, bytes, bytes], size: int | None = None) -> Callable[[Path], object]:
    """A server's answer: name, type and content of each member; `size` is what the first claims to have."""

    def write(path: Path) -> None:
        raw = io.BytesIO()
        for name, kind, content in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.size = kind, "/etc/passwd", size or len(content)
            raw.write(member.tobuf(tarfile.GNU_FORMAT))
            raw.write(content + bytes(-len(content) % 512))
        path.write_bytes(gzip.compress(raw.getvalue() + bytes(1024), 1))

    return write


def safetensors(declared: int, header: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(struct.pack("<Q", declared) + header)


def answer(path: Path) -> object:
    with path.open("rb") as archive, ServerAlignments(archive, ("uniref.a3m",), {101: "MKTAYIAKQR"}) as alignments:
        return alignments.a3m(101)


ZEROS = bytes(MIB)
PREDICT, MSA, TEMPLATES = "predict {0}", "predict x.fasta --msa {0}", "predict x.fasta --templates {0}"
FEATURES, WEIGHTS = "predict --features {0}", "predict x.fasta --models tiny --weights {0}"
PDB_ATOM = b"ATOM  99999  CA  ALA A9999      9e9999  9e9999  9e9999  1.00  0.00           C\n"

CASES: dict[str, Case] = {
    "x.fasta.gz of a GiB in a line": (lambda: packed(b">x\n", b"A" * MIB, times=1024), PREDICT),
    "x.fasta.gz of a GiB in lines": (lambda: packed(b">x\n", b"ACDE\n" * 200_000, times=1024), PREDICT),
    "x.fasta.gz of a GiB line ends": (lambda: packed(b">x\n", b"\n" * MIB, times=1024), PREDICT),
    "x.fasta.gz of packed gzip": (lambda: packed(gzip.compress(ZEROS), gzip.compress(ZEROS), times=1000), PREDICT),
    "x.fasta of 5 million empty records": (lambda: plain(b">\n" * 10**6, times=5), PREDICT),
    "x.fasta of a million records": (lambda: plain(b"".join(b">%d\nM\n" % n for n in range(10**6))), PREDICT),
    "x.fasta of one header": (lambda: plain(b">", b"x" * MIB, times=64), PREDICT),
    "x.fasta of 16 MiB of NUL": (lambda: plain(ZEROS, times=16), PREDICT),
    "x.csv with a quote without end": (lambda: plain(b'id,sequence\na,"', b"M" * MIB, times=64), PREDICT),
    "x.csv of 5 million cells": (lambda: plain(b"id,sequence", b"," * 5 * 10**6), PREDICT),
    "x.csv.gz of a GiB": (lambda: packed(b"id,sequence\n", b"\n" * MIB, times=1024), PREDICT),
    "x.a3m of one line": (lambda: plain(b">x\n", b"A" * MIB, times=64), PREDICT),
    "x.a3m.gz of a GiB of gaps": (lambda: packed(FASTA, b">h\n" + b"-" * 10 + b"\n", b"-" * MIB, times=1024), MSA),
    "x.a3m.gz of a GiB of rows": (lambda: packed(FASTA, b">h\nMKTAYIAKQR\n" * 50_000, times=1400), MSA),
    "x.sto.gz of a GiB of lines": (lambda: packed(b"# STOCKHOLM 1.0\n", b"x " + b"A" * MIB, times=1024), MSA),
    "x.sto of 20 MiB of words": (lambda: plain(b"# STOCKHOLM 1.0\n", b"a b " * 2**18, times=20), MSA),
    "x.cif.gz of a GiB": (lambda: packed(b"data_x\n", b"_a.b c\n" * 150_000, times=1024), TEMPLATES),
    "x.cif of 14 million values": (lambda: plain(b"data_x\nloop_\n_a.b\n", b"1 " * 10**6, times=14), TEMPLATES),
    "x.cif of a million columns": (
        lambda: plain(b"data_x\nloop_\n" + b"".join(b"_a.%d\n" % n for n in range(10**6)), b"1\n"), TEMPLATES
    ),
    "x.cif of a million frames": (lambda: plain(b"data_x\n", b"save_a\n" * 10**6), TEMPLATES),
    "x.cif with a text without end": (lambda: plain(b"data_x\n_a.b\n;", b"never " * 10**5, times=50), TEMPLATES),
    "x.pdb of enormous numbers": (lambda: plain(PDB_ATOM * 1000, times=100), TEMPLATES),
    "x.pdb of a million models": (lambda: plain(b"MODEL\nATOM  \nENDMDL\n" * 10**6), TEMPLATES),
    "x.pdb of one line": (lambda: plain(b"ATOM  ", b"9" * MIB, times=60), TEMPLATES),
    "f.npz of 256 MiB of zeros": (
        lambda: zip_of([("msa.npy", array_of(f"({2**28},)", "|i1", bytes(2**28)))]), FEATURES
    ),
    "f.npz of exabytes": (lambda: zip_of([("msa.npy", array_of(f"({2**60},)"))]), FEATURES),
    "f.npz of 100,000 entries of one": (
        lambda: zip_of([("msa.npy", array_of("(1048576,)", "|i1", ZEROS))], 10**5), FEATURES
    ),
    "f.npz of a header of parentheses": (lambda: zip_of([("msa.npy", array_of("(" * 60_000))]), FEATURES),
    "f.npz of a header without end": (
        lambda: zip_of([("msa.npy", b"\x93NUMPY\x02\x00\xff\xff\xff\x7f" + ZEROS * 100)]), FEATURES
    ),
    "w.npz of 256 MiB of zeros": (lambda: zip_of([("a.npy", array_of(f"({2**26},)", data=bytes(2**28)))]), WEIGHTS),
    "w.npz of 100,000 entries of one": (lambda: zip_of([("a.npy", array_of("(262144,)", data=ZEROS))], 10**5), WEIGHTS),
    "w.safetensors with a header of 2^63": (lambda: safetensors(2**63, b"{}"), WEIGHTS),
    "w.safetensors of a deep header": (lambda: safetensors(10**6, b'{"a":' * 200_000), WEIGHTS),
    "w.safetensors of a million tensors": (
        lambda: million_tensors,
        WEIGHTS,
    ),
    "w.pt of lists in lists": (lambda: pt(b"\x80\x02" + b"]" * 300_000 + b"."), WEIGHTS),
    "w.pt of 64 MiB of marks": (lambda: pt(b"\x80\x02" + b"(" * 2**26), WEIGHTS),
    "p.toml of nested lists": (
        lambda: plain(b"a = ", b"[" * 8000 + b"\n", times=50), "predict x.fasta --databases {0}"
    ),
    "p.toml of one key of 4,000 parts": (
        lambda: plain(b"a" + b".a" * 4000 + b" = 1\n"), "predict x.fasta --databases {0}"
    ),
    "p.toml of one long line": (lambda: plain(b"a" + b".a" * 500_000 + b" = 1"), "predict x.fasta --databases {0}"),
    "p.toml of 100,000 tables": (
        lambda: plain(*(b"[a%d]\n" % n for n in range(10**5))), "predict x.fasta --databases {0}"
    ),
    "searches.json of nested lists": (
        lambda: plain(b"[" * 10**7), lambda path: ResultFiles(directory=path.parent).find("x", "y", b"z")
    ),
    "x.json of empty lists": (lambda: plain(b"[", b"[]," * 10**6, times=5), lambda path: read_json(path, "")),
    "x.json of half a million tables": (lambda: plain(b"[", b'{"":0},' * 261_000), lambda path: read_json(path, "")),
    "x.json of 16 MiB of broad letters": (
        lambda: plain(b'["\xf0\x9f\x98\x80', b"a" * (MIB - 10), times=16), lambda path: read_json(path, "")
    ),
    "x.json of 300 MiB": (lambda: plain(b'"', ZEROS, times=300), lambda path: read_json(path, "")),
    "log.jsonl of nested lists": (lambda: plain(b"[" * 10**6 + b"\n"), read_log),
    "log.jsonl without line ends": (lambda: plain(b'{"type": "', b"x" * MIB, times=300), read_log),
    "pae.json without brackets": (
        lambda: plain(b"[[", b"1," * 2**19, times=300),
        lambda path: pae_map(path, 100, Blobs()),
    ),
    "x.hhr of spaces": (lambda: plain(b"No 1\n>x\nQ ", b" " * MIB, times=30), read_hhr),
    "x.hhr of a million hits": (lambda: plain(b"No 1\n>x\nProb=1\n" * 10**6), read_hhr),
    "x.sto of hits without end": (
        lambda: plain(b"# STOCKHOLM 1.0\n1abc_A/1-9 ", b"A" * MIB, times=64),
        lambda path: parse_hmmsearch(read_text_bytes(path, 2**27), "A"),
    ),
    "answer of a GiB": (lambda: packed(tarfile.TarInfo("uniref.a3m").tobuf(), ZEROS, times=1024), answer),
    "answer that climbs": (lambda: tar_of(("../../uniref.a3m", tarfile.REGTYPE, b"x")), answer),
    "answer at an absolute place": (lambda: tar_of(("/uniref.a3m", tarfile.REGTYPE, b"x")), answer),
    "answer that is a link": (lambda: tar_of(("uniref.a3m", tarfile.SYMTYPE, b"")), answer),
    "answer that is a hard link": (lambda: tar_of(("uniref.a3m", tarfile.LNKTYPE, b"")), answer),
    "answer that is a device": (lambda: tar_of(("uniref.a3m", tarfile.CHRTYPE, b"")), answer),
    "answer that is a pipe": (lambda: tar_of(("uniref.a3m", tarfile.FIFOTYPE, b"")), answer),
    "answer that is sparse": (lambda: tar_of(("uniref.a3m", tarfile.GNUTYPE_SPARSE, b"x" * 99)), answer),
    "answer with a name without end": (lambda: tar_of(("a", tarfile.GNUTYPE_LONGNAME, b"a/" * 2**24)), answer),
    "answer that claims more than it has": (
        lambda: tar_of(("uniref.a3m", tarfile.REGTYPE, b"x"), size=8 * 2**30 - 1), answer
    ),
    "answer of 10,000 files": (lambda: tar_of(*[(f"{n}", tarfile.REGTYPE, b"") for n in range(10_000)]), answer),
}  # fmt: skip
# Those that take a second and more to make or to refuse, and of which others show the like.
LONG = {
    *(
        "x.a3m.gz of a GiB of rows",
        "x.csv.gz of a GiB",
        "x.fasta.gz of a GiB line ends",
        "x.fasta of a million records",
        "x.fasta of 5 million empty records",
        "answer of a GiB",
    ),
    *("x.pdb of a million models", "x.pdb of enormous numbers", "x.cif with a text without end"),
    *("x.cif of 14 million values", "p.toml of 100,000 tables", "w.safetensors of a million tensors"),
    *("f.npz of 256 MiB of zeros", "w.npz of 100,000 entries of one"),
}


def measured(name: str, folder: Path) -> dict[str, object]:
    """What it takes to refuse one of them, told by a process of its own."""
    make, refuse = CASES[name]
    path = folder / name.split(maxsplit=1)[0]
    (folder / "x.fasta").write_bytes(FASTA)
    _in_child(lambda: make()(path))
    told = _in_child(lambda: _refused(refuse, path))
    path.unlink()
    return told or {"outcome": "the process ended", "cpu": 0.0, "wall": 0.0, "mib": 0.0}


def _refused(refuse: str | Read, path: Path) -> dict[str, object]:
    Path("/proc/self/clear_refs").write_text("5")  # forget the highest so far
    before, mapped = _status("VmRSS"), _status("VmSize")
    resource.setrlimit(resource.RLIMIT_AS, (mapped + ALLOWED_BYTES, mapped + ALLOWED_BYTES))
    wall, cpu = time.perf_counter(), time.process_time()
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors), contextlib.chdir(path.parent):
            if isinstance(refuse, str):
                code = main([*shlex.split(refuse.format(path.name)), "--output", "out"])
                outcome = f"exit code {code}: {errors.getvalue().strip()}"
            else:
                refuse(path)
                outcome = "a value"
    except (InputError, SearchError, DamagedArchiveError) as error:
        outcome = f"exit code 2: {error}"
    except BaseException:
        resource.setrlimit(resource.RLIMIT_AS, (mapped + ALLOWED_BYTES, mapped + ALLOWED_BYTES))
        outcome = traceback.format_exc()[-300:]
    seconds = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
    return {"outcome": outcome, **seconds, "mib": (_status("VmHWM") - before) / MIB}


def _in_child(work: Callable[[], object]) -> dict[str, object] | None:
    receive, send = os.pipe()
    child = os.fork()
    if not child:
        with os.fdopen(send, "w") as stream:
            found = work()
            stream.write(json.dumps(found if isinstance(found, dict) else None))
        os._exit(0)
    os.close(send)
    with os.fdopen(receive) as stream:
        text = stream.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else None


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def run(folder: Path, *names: str) -> None:
    with contextlib.redirect_stderr(io.StringIO()):
        (folder / "x.fasta").write_bytes(FASTA)
        pt(b"\x80\x02N.")(folder / "w.pt")
        # What is imported late, too.
        main(["predict", str(folder / "x.fasta"), "--models", "tiny", "--weights", str(folder / "w.pt")])
    gc.freeze()  # children need not look through what is imported
    print(f"{'file':38}{'CPU s':>7}{'wall s':>8}{'MiB':>7}  outcome")
    for name in names or CASES:
        told = measured(name, folder)
        outcome = " ".join(str(told["outcome"]).split())[:160]
        print(f"{name:38}{told['cpu']:7.2f}{told['wall']:8.2f}{told['mib']:7.0f}  {outcome}", flush=True)


if __name__ == "__main__":
    run(Path(sys.argv[1]), *sys.argv[2:])
