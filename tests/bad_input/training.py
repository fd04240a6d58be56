"""Bad training sets' structures, lists of held-out chains, and what `evaluate` is given."""

from pathlib import Path

from tests.bad_input.case import Case, bad
from tests.data_pipeline.parse.seeds import PDB

SETS = {
    "a table of clusters that is not there": bad(
        "features --structures d --clusters no.tsv", {"d/a.pdb": PDB}, "no.tsv", "No such file"
    ),
    "duplicates that are not there": bad(
        "features --structures d --alignments d --duplicates no.txt", {"d/a.pdb": PDB}, "no.txt", "No such file"
    ),
    "duplicates without alignments": bad(
        "features --structures d --duplicates x.txt", {"d/a.pdb": PDB, "x.txt": b"a b"}, "--duplicates", "--alignments"
    ),
    "alignments that are not there": bad("features --structures d --alignments no", {"d/a.pdb": PDB}, "no"),
    "a table of obsolete entries without structures": bad(
        "features --structures d --obsolete x.dat", {"d/a.pdb": PDB, "x.dat": b""}, "--obsolete", "--templates-from"
    ),
    "a training set into a file": bad("features --structures d --output y", {"d/a.pdb": PDB, "y": b"precious"}, "y"),
    "a table of clusters of bytes": bad(
        "features --structures d --clusters x.tsv", {"d/a.pdb": PDB, "x.tsv": b"\xff\xfe\0garbage"}, "x.tsv"
    ),
    "a training run into a file": bad("train d --output y", {"d": Path.mkdir, "y": b"precious"}, "d"),
}

EVALUATED: dict[str, Case] = {
    "nothing to evaluate": bad("evaluate", {}, "pass PREDICTIONS and REFERENCES"),
    "predictions that are not there": bad("evaluate no refs", {"refs/a.pdb": PDB}, "no"),
    "references that are not there": bad("evaluate d no", {"d/a.pdb": PDB}, "no"),
    "empty directories to evaluate": bad("evaluate d e", {"d": Path.mkdir, "e": Path.mkdir}, "d"),
}

FINISHED = {
    "nothing to relax": bad("relax", {}, "required", "STRUCTURE"),
    "a structure to relax that is not there": bad("relax no.pdb", {}, "no.pdb", "No such file"),
    "a directory to relax": bad("relax d", {"d": Path.mkdir}, "d", "it is a directory"),
    "garbage to relax": bad("relax x.pdb", {"x.pdb": b"garbage"}, "x.pdb", "neither mmCIF"),
    "two structures of one name to relax": bad("relax a/x.pdb b/x.pdb", {"a/x.pdb": PDB, "b/x.pdb": PDB}, "x"),
    "nothing to score": bad("score", {}, "required", "STRUCTURE"),
    "a structure to score that is not there": bad("score no.pdb", {}, "no.pdb", "no such file"),
    "an empty directory to score": bad("score d", {"d": Path.mkdir}, "d", "it has no structures"),
    "two structures of one name to score": bad("score d/x.pdb d", {"d/x.pdb": PDB}, "x.pdb", "rename one of them"),
    "an output of a program to score as decoys": bad("score d", {"d/ranked_0.pdb": PDB}, "d", "pass --rescore"),
    "scores into a file": bad("score x.pdb --output y", {"x.pdb": PDB, "y": b"precious"}, "y"),
    "nothing to scan": bad("scan", {}, "required", "FILE"),
    "a position that is not there": bad("scan MKTAYIAKQR --positions 11", {}, "position 11 is outside"),
    "a table of mutations of bytes": bad("scan MKTAYIAKQR --table x.tsv", {"x.tsv": b"\xff\xfe\0"}, "x.tsv"),
    "a scan into a file": bad("scan MKTAYIAKQR --output y", {"y": b"precious"}, "y"),
    "a report on what is not there": bad("report no", {}, "no", "no such directory"),
    "a report on an empty directory": bad("report d", {"d": Path.mkdir}, "d", "no finished target"),
    "a report on a file": bad("report x", {"x": b"hi"}, "x", "directory"),
}

TRAINING = SETS | EVALUATED | FINISHED
