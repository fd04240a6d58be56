"""Bad alignments, search profiles and structures."""

import gzip
import os
from pathlib import Path

from tests.bad_input.case import Case, Content, bad
from tests.data_pipeline.parse.seeds import MMCIF, PDB

FASTA = b">t\nMKTAYIAKQR\n"
ROW = b">t\nMKTAYIAKQR\n"


def a3m(content: bytes, *says: str) -> Case:
    """As an alignment for a target."""
    return bad("predict x.fasta --msa y.a3m", {"x.fasta": FASTA, "y.a3m": content}, "y.a3m", *says)


def alone(content: bytes, *says: str) -> Case:
    """As the input itself."""
    return bad("predict y.a3m", {"y.a3m": content}, "y.a3m", *says)


def profile(content: str, *says: str) -> Case:
    return bad("predict x.fasta --databases p.toml", {"x.fasta": FASTA, "p.toml": content.encode()}, "p.toml", *says)


def template(name: str, content: Content, *says: str) -> Case:
    return bad(f"predict x.fasta --templates {name}", {"x.fasta": FASTA, name: content}, name, *says)


A3M = {
    "an empty alignment": a3m(b"", "no alignment row", "the first row must be the target"),
    "an alignment of comments": a3m(b"# nothing\n#\n", "no alignment row"),
    "an alignment for another target": a3m(b">q\nMKTAYIAKQA\n", "line 1", "residue 10", "'A', the target 'R'"),
    "a first row with gaps": alone(b">q\nMK-AY\n>h\nMKaaAY-\n", "line 1", "'q'", "gap"),
    "a first row with insertions": alone(b">q\nMKaAY\n>h\nMKaaAY\n", "line 1", "'q'", "lower-case"),
    "a first row without residues": alone(b">q\n>r\nMK\n", "line 1", "'q'", "no residues"),
    "rows of two lengths": a3m(ROW + b">h\nMKTAY\n", "line 3", "'h'", "5 columns", "the first row 10"),
    "rows that were never aligned": a3m(ROW + b">h\nMKTAYIAKQRMKTAYIAKQR\n", "line 3", "'h'", "20 columns"),
    "a wrong letter in a row": a3m(ROW + b">h\nMKTAY1AKQR\n", "line 4", "column 6", "'h'", "'1'"),
    "text before the first row": a3m(b"hello\n" + ROW, "y.a3m", "line 1"),
    "an alignment of DNA": alone(b">q\nATGGCGTTAGCCTGATTGCAG\n", "DNA", "translate"),
    "two alignments in one file": a3m(ROW + b">h\nMKTAYIAKQR\n>t\nMKTA\n", "line 5", "4 columns"),
    "Stockholm without sequences": a3m(b"# STOCKHOLM 1.0\n//\n", "y.a3m"),
    "Stockholm that was cut": a3m(b"# STOCKHOLM 1.0\nt MKTAYIAKQR\nh MKT\n", "line 3", "'h'", "3 columns"),
    "Stockholm with three words": a3m(b"# STOCKHOLM 1.0\nt MKTAY IAKQR\n", "line 2", "3 words"),
    "Stockholm of two alignments": a3m(b"# STOCKHOLM 1.0\nt MKTAYIAKQR\n//\nt MKTAYIAKQR\n", "line 4", "second"),
    "CLUSTAL": a3m(b"CLUSTAL W (1.83)\n\nt MKTAYIAKQR\n", "CLUSTAL", "aligned FASTA"),
    "template hits as alignment": a3m(b"Query         t\nMatch_columns 10\n", "hits"),
    "an alignment that was cut in gzip": a3m(gzip.compress(ROW * 50)[:-8], "truncated"),
    "one alignment for two targets": bad(
        "predict x.fasta --msa y.a3m", {"x.fasta": FASTA + b">u\nMK\n", "y.a3m": ROW}, "y.a3m", "directory with <name>"
    ),
    "no alignment for a target": bad(
        "predict x.fasta --msa d", {"x.fasta": FASTA, "d/u.a3m": ROW}, "d", "t.a3m", "'t'"
    ),
    "an alignment that is not there": bad("predict x.fasta --msa no.a3m", {"x.fasta": FASTA}, "no.a3m", "No such file"),
    "a pipe as alignment": bad("predict x.fasta --msa y.a3m", {"x.fasta": FASTA, "y.a3m": os.mkfifo}, "y.a3m", "pipe"),
    "an a3m file that is only an ending": bad("predict .a3m", {".a3m": ROW}, ".a3m", "named after the file"),
    "an a3m file named like an option": bad("predict ./-x.a3m", {"-x.a3m": ROW}, "-x.a3m", "begins with"),
    "an a3m file named like our own": bad(
        "predict failures.json.a3m", {"failures.json.a3m": ROW}, "reserved for files"
    ),
    "an alignment's path that is too long": bad(f"predict x.fasta --msa {'y' * 300}", {"x.fasta": FASTA}, "too long"),
}

PROFILES = {
    "a profile that is no TOML": profile("[[alignments]\nname = 1", "not a TOML profile", "line 1"),
    "an empty profile": profile("", "names no database"),
    "a profile with an unknown key": profile(
        "[[alignments]]\nname='a'\ntool='jackhmmer'\npath='x.fasta'\nfoo=1", "foo"
    ),
    "a profile with an unknown tool": profile("[[alignments]]\nname='a'\ntool='blast'\npath='x.fasta'", "blast"),
    "a profile without files": profile("[[alignments]]\nname='a'\ntool='jackhmmer'\npath='no.fasta'", "no.fasta"),
    "a profile with a name that climbs": profile(
        "[[alignments]]\nname='../a'\ntool='jackhmmer'\npath='x.fasta'", "name"
    ),
    "a profile of the wrong types": profile("alignments = 3", "[[alignments]]"),
    "a profile with a date that is none": profile(
        "[templates]\ntool='hmmsearch'\npath='x.fasta'\nstructures='.'\nlatest_release='soon'", "p.toml", "soon"
    ),
    "a profile that is not there": bad("predict x.fasta --databases no.toml", {"x.fasta": FASTA}, "no.toml", "No such"),
    "an empty directory of databases": bad(
        "predict x.fasta --databases d", {"x.fasta": FASTA, "d": Path.mkdir}, "d", "uniref90"
    ),
    "a database that is not there": bad("predict x.fasta --database no.fa", {"x.fasta": FASTA}, "no.fa", "no such"),
    "two databases of one name": bad(
        "predict x.fasta --database a/d.fa b/d.fa",
        {"x.fasta": FASTA, "a/d.fa": FASTA, "b/d.fa": FASTA},
        "'d'",
        "own name",
    ),
    "a server that is no address": bad("predict x.fasta --msa-server ftp://x", {"x.fasta": FASTA}, "ftp://x"),
    "a server that is a file": bad("predict x.fasta --msa-server file:///etc/passwd", {"x.fasta": FASTA}, "file:///"),
}

STRUCTURES = {
    "an empty mmCIF file": template("t.cif", b"", "t.cif"),
    "an empty PDB file": template("t.pdb", b"", "neither mmCIF", "nor PDB"),
    "garbage as mmCIF": template("t.cif", b"\0\1\2 garbage \xff" * 30, "t.cif"),
    "garbage as PDB": template("t.pdb", b"garbage\n" * 30, "neither mmCIF", "nor PDB"),
    "mmCIF without atoms": template("t.cif", b"data_x\n_entry.id x\n", "t.cif", "atom"),
    "mmCIF that was cut": template("t.cif", MMCIF[: len(MMCIF) - 30], "t.cif"),
    "mmCIF with a quote without end": template("t.cif", b"data_x\n_a.b 'never\n_c.d 1\n", "t.cif", "line"),
    "PDB with coordinates that are none": template("t.pdb", PDB.replace(b"   1.000", b"   wrong", 1), "line", "coord"),
    "PDB that was cut": template("t.pdb", PDB[: PDB.index(b"ATOM") + 40], "t.pdb", "line"),
    "a sequence as structure": template("t.fasta", FASTA, "t.fasta"),
    "a structure that is not there": bad("predict x.fasta --templates no.cif", {"x.fasta": FASTA}, "no.cif", "no such"),
    "a directory without structures": bad(
        "predict x.fasta --templates d", {"x.fasta": FASTA, "d/readme.txt": b"x"}, "d", ".cif"
    ),
    "a pipe as structure": template("t.cif", os.mkfifo, "pipe"),
    "a structure's path that is too long": bad(f"predict x.fasta --templates {'t' * 300}", {"x.fasta": FASTA}, "such"),
}

ALIGNMENTS = A3M | PROFILES | STRUCTURES
