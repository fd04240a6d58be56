"""Bad complexes: chains, their names, and alignments by chain."""

from tests.bad_input.case import Case, Content, bad

DIMER = b">dimer\nMKTAYIAK:GSHMAEQL\n"
A, B = b">a\nMKTAYIAK\n", b">b\nGSHMAEQL\n"


def fasta(content: bytes, *says: str) -> Case:
    return bad("predict x.fasta", {"x.fasta": content}, "x.fasta", *says)


def dimer(options: str, files: dict[str, Content], *says: str) -> Case:
    return bad(f"predict x.fasta {options}", {"x.fasta": DIMER, **files}, *says)


def a3m(content: bytes, *says: str) -> Case:
    return bad("predict y.a3m", {"y.a3m": content}, "y.a3m", *says)


CHAINS = {
    "an empty chain": fasta(b">dimer\nMKTAYIAK::GSHMAEQL\n", "line 2", "column 10", "'dimer'", "chain 2 is empty"),
    "a chain that is missing at the end": fasta(b">dimer\nMKTAYIAK:\n", "'dimer'", "chain 2 is empty"),
    "a chain of a letter that is none": fasta(b">dimer\nMKTAYIAK:GS1\n", "line 2", "column 12", "'1'"),
    "a chain of DNA": fasta(b">dimer\nMKTAYIAK:ACGTACGTACGTACGTACGTACGT\n", "chain 2", "DNA"),
    "no copies": fasta(b">homomer\nMKTAYIAK*0\n", "line 2", "column 10", "number of copies must be at least 1"),
    "copies in the middle of a chain": fasta(b">homomer\nMKT*2AYIAK\n", "line 2", "column 6", "MKT*3"),
    "more chains than can be named": fasta(b">homomer\nM*18315\n", "more chains than can be named", "18,314"),
    "more residues than are read": fasta(b">homomer\nMKTAYIAK*18000\n", "100,000 residues"),
    "chains of unknown residues": fasta(b">dimer\nXX:XX\n", "no known residue"),
    "names for some of the chains": fasta(b">dimer chain_ids=H\nMKT:GSH\n", "line 1", "got 1 chain IDs for 2 chains"),
    "a name for two chains": fasta(b">dimer chain_ids=H:H\nMKT:GSH\n", "two chains have the ID 'H'"),
    "a name that mmCIF has not": fasta(b">dimer chain_ids=H:../x\nMKT:GSH\n", "a chain ID must be", "got '../x'"),
    "a table with an empty chain": bad(
        "predict x.csv", {"x.csv": b"id,sequence\nd,MKT:\n"}, "x.csv", "line 2", "letter 5", "chain 2 is empty"
    ),
    "a table with wrong names": bad(
        "predict x.csv", {"x.csv": b"id,sequence,chain_ids\nd,MKT:GSH,A\n"}, "x.csv", "line 2", "1 chain IDs"
    ),
    "a typed complex with an empty chain": bad("predict MKTAYIAKQR:", {}, "chain 2 is empty", "no such file"),
    "a short typed complex with a digit": bad("predict AC:1", {}, "'AC:1': there is no such file", "letter 4: '1'"),
    "copies of nothing, typed": bad("predict MKT*0", {}, "no such file", "the number of copies must be at least 1"),
    "an empty chain before a short one": bad("predict :MKT", {}, "no such file", "chain 1 is empty"),
    "a typed complex of a word": bad("predict MKTAYIAKQR:PROTEINS", {}, "pass a sequence with O in a FASTA file"),
    "names for several targets": bad(
        "predict x.fasta --chain-ids H L",
        {"x.fasta": DIMER + A},
        "--chain-ids",
        "several; set the chain IDs in the files",
    ),
    "too many names": dimer("--chain-ids H L K", {}, "3 chain IDs for 2 chains"),
    "a complex where records are chains": bad(
        "predict x.fasta --records-as-chains", {"x.fasta": DIMER}, "x.fasta", "line 2", "':'", "single chain"
    ),
    "records of a file that names no complex": bad(
        "predict .fasta --records-as-chains", {".fasta": A + B}, ".fasta", "named after the file"
    ),
    "a slash between chains": fasta(b">dimer\nMKTAYI/AKQR\n", "line 2", "column 7", "'/'", "with ':'"),
}
ALIGNED = {
    "a ColabFold alignment of unequal lengths": a3m(b"#4,3\t1\n>q\nACDEGGG\n", "line 1", "2 lengths and 1 numbers"),
    "a ColabFold alignment of an empty chain": a3m(b"#4,0\t1,1\n>q\nACDE\n", "line 1", "length 0", "at least 1"),
    "a ColabFold alignment without copies": a3m(b"#4,3\t1,0\n>q\nACDEGGG\n", "line 1", "0 copies"),
    "a ColabFold alignment of more chains than have names": a3m(b"#1\t99999\n>q\nA\n", "line 1", "99,999 chains"),
    "a ColabFold alignment that is shorter": a3m(b"#4,3\t1,1\n>q\nACDEGG\n", "line 2", "4+3 = 7 residues", "has 6"),
    "a ColabFold alignment of other chains": dimer(
        "--msa y.a3m", {"y.a3m": b"#4,3\t1,1\n>q\nACDEGGG\n"}, "y.a3m", "line 1", "not for the chains", "'dimer'"
    ),
    "a ColabFold alignment for a single chain": bad(
        "predict x.fasta --msa y.a3m", {"x.fasta": A, "y.a3m": b"#4,3\t1,1\n>q\nACDEGGG\n"}, "y.a3m", "single chain"
    ),
    "an alignment of no chain": dimer(
        "--msa y.a3m", {"y.a3m": b">q\nACDE\n"}, "y.a3m", "is not a chain of complex", "'dimer'"
    ),
    "no alignment for a chain": dimer(
        "--msa d", {"d/dimer_A.a3m": A}, "d", "dimer_B.a3m", "dimer/B.a3m", "chain B", "'dimer'"
    ),
    "an alignment of the other chain": dimer(
        "--msa d", {"d/dimer_A.a3m": B, "d/dimer_B.a3m": A}, "dimer_A.a3m", "not the target"
    ),
    "one alignment for several complexes": bad(
        "predict x.fasta --msa y.a3m", {"x.fasta": DIMER + A, "y.a3m": A}, "y.a3m", "several targets"
    ),
    "unequal numbers of paired rows": dimer(
        "--msa d",
        {"d/dimer_A.paired.a3m": A + b">h\nMKTAYIAR\n", "d/dimer_B.paired.a3m": B},
        "dimer_B.paired.a3m",
        "1 paired rows",
        "has 2",
    ),
    "paired rows of one chain": dimer(
        "--msa d",
        {"d/dimer_A.paired.a3m": A, "d/dimer_B.a3m": B},
        "dimer_A.paired.a3m",
        "chain B has none",
    ),
    "an unknown way of pairing": dimer("--pair-mode all", {}, "--pair-mode", "all", "unpaired_paired"),
}
COMPLEXES = CHAINS | ALIGNED
