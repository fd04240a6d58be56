"""Bad FASTA and CSV files and bad directories of them, and names that must not become directories."""

import gzip
import os
from pathlib import Path

from tests.bad_input.case import Case, bad

GOOD = b">good\nMKTAYIAKQR\n"


def fasta(content: bytes, *says: str) -> Case:
    return bad("predict x.fasta", {"x.fasta": content}, "x.fasta", *says)


def name(header: str, *says: str) -> Case:
    return fasta(f">{header}\nMKTAYIAKQR\n".encode(), "line 1", *says)


def csv(content: bytes, *says: str) -> Case:
    return bad("predict x.csv", {"x.csv": content}, "x.csv", *says)


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


FASTA = {
    "an empty file": fasta(b"", "is empty", "'>name'"),
    "only line ends": fasta(b"\n\r\n \n", "is empty", "'>name'"),
    "no header": fasta(b"MKTAYIAKQR\n", "line 1", "before any '>name' header"),
    "a header without a name": fasta(b">\nMKTAYIAKQR\n", "line 1", "name is empty", "write one after '>'"),
    "a header of spaces": fasta(b">  \t \nMKTAYIAKQR\n", "line 1", "name is empty"),
    "a header without a sequence": fasta(GOOD + b">b\n\n>c\nAC\n", "line 3", "'b'", "has no sequence", "remove it"),
    "an illegal letter": fasta(b">a\nMKT\nAY1AK\n", "line 3", "column 3", "'a'", "'1'", "allowed are ARND"),
    "two words of residues": fasta(b">a\nMKTA YI=AK\n", "line 2", "column 8", "'a'", "'='"),
    "a gap": fasta(b">a\nMKT-AY\n", "line 2", "column 4", "cannot contain gaps"),
    "a stop codon within": fasta(b">a\nMKT*AYI\n", "line 2", "column 4", "stop codon", "at the end"),
    "two stop codons at the end": fasta(b">a\nMKTAYI**\n", "line 2", "column 7", "stop codon"),
    "nothing but a stop codon": fasta(b">a\n*\n", "line 1", "'a'", "has no sequence"),
    "DNA": fasta(b">gene\nATGGCGTTAGCCTGA\nTTGCAGGCTAAC\n", "'gene'", "DNA", "translate"),
    "RNA": fasta(b">gene\nAUGGCGUUAGCCUGAUUGCA\n", "'gene'", "RNA", "translate"),
    "18 bases of RNA": fasta(b">gene\nACGUACGUACGUACGUAC\n", "'gene'", "RNA", "translate", "--as-protein"),
    "18 bases of DNA": fasta(b">gene\nACGTACGTACGTACGTAC\n", "'gene'", "DNA", "translate", "--as-protein"),
    "three-letter codes": fasta(b">x\nMET GLY ALA\nARG ASN\n", "'x'", "three-letter codes", "MGARN", "--as-protein"),
    "three-letter codes with hyphens": fasta(b">x\nMet-Gly-Ala\n", "line 2", "'x'", "three-letter codes", "MGA"),
    "DNA with unknown bases, in lower case": fasta(b">gene\natgnnngcgttagcctgattgca\n", "'gene'", "DNA", "translate"),
    "accented letters": fasta(">a\nMKTÉAY\n".encode(), "line 2", "column 4", "'É'"),
    "letters that look like others": fasta(">a\nMKT\u0410YI\n".encode(), "line 2", "column 4", "U+0410"),
    "a byte that is no text": fasta(b">a\nMKT\xffAY\n", "line 2", "column 4"),
    "a control character": fasta(b">a\nMK\x07TAY\n", "line 2", "column 3", r"'\x07'"),
    "a NUL within": fasta(b">a\nMK\0TAY\n", "line 2", "column 3", r"'\x00'"),
    "two records of one name": fasta(GOOD + GOOD, "line 3", "'good'", "the same name as in line 1"),
    "names that differ in case": fasta(b">Abc\nMK\n>aBC\nMK\n", "line 3", "'aBC'", "line 1", "'Abc'"),
    "names that differ in composition": fasta(
        ">caf\u00e9\nMK\n>cafe\u0301\nMK\n".encode(), "line 3", "the same name as in line 1"
    ),
    "UTF-16 text": fasta(">a\nMKTAYI\n".encode("utf-16"), "UTF-16", "save it as plain text (UTF-8)"),
    "UTF-16 text without a mark": fasta(">a\nMKTAYI\n".encode("utf-16-le"), "line 1"),
    "a program": fasta(b"\x7fELF\x02\x01\x01\0\0\0\0\0", "line 1", "binary data"),
    "a picture": fasta(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "line 1"),
    "GenBank": fasta(b"LOCUS       AB1 100 aa\nORIGIN\n1 mktay\n//\n", "line 1", "is this a FASTA file?"),
    "a web page": fasta(b"<!DOCTYPE html><html><body>404</body></html>", "line 1", "is this a FASTA file?"),
    "a PDB file": fasta(b"ATOM      1  N   MET A   1      27.340  24.430   2.614\n", "got a structure", "--templates"),
    "a PDB file with a header": fasta(b"\nHEADER    HYDROLASE    01-JAN-00   1ABC\n", "got a structure"),
    "an mmCIF file": fasta(b"data_1ABC\n#\n_entry.id 1ABC\n", "got a structure", "--initial-guess", "score"),
    "a PDB file with a first line that others do not have": bad(
        "predict x.PDB", {"x.PDB": b"USER  MOD reduce\nATOM      1  N   MET A   1"}, "x.PDB: got a structure", "score"
    ),
    "a binary structure": bad("predict x.bcif.gz", {"x.bcif.gz": gzip.compress(b"\x83\xa7enc\0")}, "got a structure"),
    "gzip that was cut": bad(
        "predict x.fasta.gz", {"x.fasta.gz": gzip.compress(GOOD * 99)[:-9]}, "x.fasta.gz", "truncated"
    ),
    "gzip that was changed": bad(
        "predict x.fasta.gz", {"x.fasta.gz": gzip.compress(GOOD)[:20] + b"\0\0\0\0\0\0\0"}, "x.fasta.gz", "damaged"
    ),
    "a chain of 10 million residues": fasta(
        b">titin\n" + b"MK" * 30 + b"MK\n" * 5_000_000, "line 1", "'titin'", "100,000"
    ),
    "a chain of a million residues in one line": fasta(
        b">x\n" + b"MK" * 500_000, "line 1", "'x'", "1,000,000", "100,000"
    ),
    "10 million residues in one line": fasta(b">x\n" + b"MK" * 5_000_000, "line 2", "is this a text file?"),
    "more records than anybody folds": fasta(b"".join(b">%d\nMK\n" % n for n in range(100_001)), "100,000", "split"),
}

NAMES = {
    "a name that climbs further on": name("a/../../b", "'a/../../b'", "'..'", "another directory"),
    "a name with a backslash": name(r"a\b", r"a\b", "another directory"),
    "a name that climbs": name("../../etc/passwd", "another directory"),
    "two dots": name("..", "another directory"),
    "one dot": name(".", "begins with '.'"),
    "an absolute path that climbs": name("/etc/../passwd", "another directory"),
    "a hidden name": name(".ssh", "begins with '.'"),
    "a name like an option": name("-rf", "begins with '.' or '-'"),
    "a NUL in a name": name("a\0b", "control"),
    "an escape sequence in a name": name("a\x1b[2Jb", "control", r"a\x1b[2Jb"),
    "a name that is written backwards": name("abc\u202ebdp.exe", "control or invisible"),
    "a line separator in a name": name("a\u2028b", "control or invisible"),
    "a name of 300 letters": name("n" * 300, "199 bytes"),
    "a name of 100 wide letters": name("蛋" * 100, "199 bytes"),
    "a device of Windows": name("CON", "reserved on Windows"),
    "a device of Windows with an ending": name("nul.txt", "reserved on Windows"),
    "a drive of Windows": name("C:windows", "reserved on Windows"),
    "a name with quotes and brackets": name(r'<img\src="x">', "another directory"),
    "a dot at the end": name("abc.", "ends with '.'"),
    "a byte in a name that is no text": fasta(b">a\xffb\nMK\n", "line 1", "UTF-8"),
    "a file of the output directory": fasta(b">failures.json\nMK\n", "'failures.json'", "reserved for files"),
    "a file that ColabFold writes": fasta(b">log.txt\nMK\n", "'log.txt'", "reserved for files"),
    "a file of it in capitals": fasta(b">Index.HTML\nMK\n", "'Index.HTML'", "reserved for files"),
    "equal names in two files": bad(
        "predict x.fasta y.fasta", {"x.fasta": GOOD, "y.fasta": GOOD.upper()}, "y.fasta", "'GOOD'", "x.fasta"
    ),
}

UNKNOWN = {
    "nothing but unknown residues": fasta(b">a\nMK\n>b\nXXXX\n", "x.fasta", "'b'", "no known residue, only X"),
    "unknown residues of several kinds": fasta(b">b\nXBJOUZ\n", "'b'", "only B, J, O, U, X, Z"),
    "a table of unknown residues": csv(b"id,sequence\nb,XXXX\n", "'b'", "no known residue"),
    "an alignment of unknown residues": bad(
        "predict b.a3m", {"b.a3m": b">q\nXXXX\n>r\nMKTA\n"}, "b.a3m", "'b'", "known"
    ),
    "a typed sequence of unknown residues": bad("predict XXXXXXXXXXXX", {}, "no known residue"),
    "features of unknown residues": bad("features x.fasta", {"x.fasta": b">b\nXXXX\n"}, "'b'", "no known residue"),
}

TABLES = {
    "an empty table": csv(b"", "line 1", "'id' and 'sequence'"),
    "a table without its first line": csv(b"a,MKTAYI\n", "line 1", "'id' and 'sequence'"),
    "a table without a column": csv(b"id,seq\na,MKTAYI\n", "line 1", "'id' and 'sequence'"),
    "a table with a column twice": csv(b"id,sequence,sequence\na,MK,MK\n", "line 1", "'id' and 'sequence'"),
    "a table without records": csv(b"id,sequence\n\n", "the table has no record"),
    "a row with too many cells": csv(b"id,sequence\na,MK,x\n", "line 2", "3 cells", "2 columns"),
    "a row with too few": csv(b"id,sequence\na,MK\nb\n", "line 3", "1 cells"),
    "a quote without end": csv(b'id,sequence\na,"MKTAYI\n', "line", "not a CSV table"),
    "a table with semicolons": csv(b"id;sequence\na;MK\n", "line 1", "commas"),
    "a table with a wrong letter": csv(b"id,sequence\na,MKT1\n", "line 2", "'a'", "residue 4", "'1'"),
    "a table with a name that climbs": csv(b"id,sequence\n../a,MK\n", "line 2", "another directory"),
    "a table with an empty name": csv(b"id,sequence\n,MK\n", "line 2", "name is empty"),
    "a table with an empty sequence": csv(b"id,sequence\na,\n", "line 2", "'a'", "has no sequence"),
    "a table of DNA": csv(b"id,sequence\na,ATGGCGTTAGCCTGATTGCAG\n", "'a'", "DNA", "translate"),
    "a table with a name twice": csv(b"id,sequence\na,MK\nA,MK\n", "line 3", "'A'", "line 2"),
    "a spreadsheet": csv(b"PK\x03\x04\x14\0\x06\0\x08\0\0\0!\0", "line 1", "'id' and 'sequence'"),
    "a table with a NUL": csv(b"id,sequence\na\0b,MK\n", "line 2"),
}

PLACES = {
    "a file that is not there": bad("predict no.fasta", {}, "no.fasta", "No such file"),
    "no input at all": bad("predict", {}, "no input", "FASTA"),
    "an empty directory": bad("predict folder", {"folder": Path.mkdir}, "folder", ".fasta"),
    "a directory without sequences": bad("predict folder", {"folder/x.txt": GOOD}, "folder", ".fasta", ".csv"),
    "a directory named as a file": bad("predict x.fasta", {"x.fasta": Path.mkdir}, "x.fasta", "directory"),
    "a bad file in a directory": bad("predict d", {"d/a.fasta": GOOD, "d/b.fasta": b">b\nM!\n"}, "b.fasta", "line 2"),
    "a pipe that nobody writes to": bad("predict x.fasta", {"x.fasta": os.mkfifo}, "x.fasta", "pipe"),
    "a pipe in a directory": bad("predict d", {"d/x.fasta": os.mkfifo, "d/y.fasta": b""}, "y.fasta", "is empty"),
    "a device without end": bad("predict /dev/zero", {}, "/dev/zero", "device"),
    "a link to a device": bad("predict x.fasta", {"x.fasta": lambda path: path.symlink_to("/dev/zero")}, "device"),
    "a link to itself": bad("predict x.fasta", {"x.fasta": _loop}, "x.fasta", "symbolic links"),
    "a link to nothing": bad("predict x.fasta", {"x.fasta": lambda path: path.symlink_to("no")}, "x.fasta", "No such"),
    "a NUL in a path": bad("predict 'a\0b.fasta'", {}, "a\\x00b.fasta"),
    "a path that is too long": bad(f"predict {'x' * 300}.fasta", {}, "too long"),
    "a file as output directory": bad(
        "predict x.fasta --output y", {"x.fasta": GOOD, "y": b"precious"}, "y", "--output"
    ),
    "a file above the output directory": bad(
        "predict x.fasta --output y/z", {"x.fasta": GOOD, "y": b"precious"}, "y/z", "output directory"
    ),
    "a file where a target's directory should be": bad(
        "predict x.fasta --output o", {"x.fasta": GOOD, "o/good": b"precious"}, "o/good", "not a directory", "--output"
    ),
    "a link where a target's directory should be": bad(
        "predict x.fasta --output o",
        {"x.fasta": GOOD, "elsewhere/y": b"", "o/z": b"", "o/good": lambda path: path.symlink_to("../elsewhere")},
        *("o/good", "a symbolic link leads out", "--output"),
    ),
    "a link where the output directory should be": bad(
        "predict x.fasta --output o", {"x.fasta": GOOD, "o": lambda path: path.symlink_to("nowhere")}, "o", "link"
    ),
}

SEQUENCES = FASTA | UNKNOWN | NAMES | TABLES | PLACES
