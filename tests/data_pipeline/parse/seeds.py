"""Small valid files of every format that is read, to be cut, spliced and spoilt, and the parser of each."""

from collections.abc import Callable, Mapping

from data_pipeline.parse.a3m import parse_a3m
from data_pipeline.parse.gemmi_chains import parse_pdb
from data_pipeline.parse.mmcif import parse_mmcif
from data_pipeline.parse.stockholm import (
    a3m_to_stockholm,
    deduplicated,
    parse_stockholm,
    stockholm_to_a3m,
    truncated,
    without_empty_columns,
)
from data_pipeline.parse.template_hit import parse_hhr, parse_hmmsearch
from tests.data_pipeline.parse.in_memory import parse_alignment, parse_csv, parse_fasta

PATH = "any.file"
QUERY = "ACDEFGHIKL"

FASTA = b">q first\nACDEFGHIKL\n>r\nMNPQ\nRSTVWY*\n"
TABLE = b"id,sequence\nq,ACDEFGHIKL\nr,MNPQRSTVWY\n"
A3M = b"#10\t1\n>q\nACDEFGHIKL\n>h1 x\nAC-EFaaGHIKLmm\n>h2\n----FGHIKL\n\0>h3\nACDEFGHIK-\n"
STOCKHOLM = b"""# STOCKHOLM 1.0
#=GF ID query-i1

#=GS h1/3-12 DE [subseq from] mol:protein length:120  A protein
#=GS h2/1-8  DE [subseq from] mol:protein length:8

query        ACD-EFG
h1/3-12      ACDWEFG
#=GR h1/3-12 PP 7899999
h2/1-8       -CD-E-G
#=GC RF      xxx.xxx

query        HI--KL
h1/3-12      HIWWK-
h2/1-8       HI-WK-
#=GC RF      xx..xx
//
"""
HMMSEARCH = b"""# STOCKHOLM 1.0
#=GF ID query

#=GS 1abc_A/3-13 DE [subseq from] mol:protein length:120  A protein
#=GS 2xyz_b/1-8  DE [subseq from] mol:protein length:8
#=GS 3dna_C/1-3  DE [subseq from] mol:na length:8

1abc_A/3-13        ACDw.EFGHIKL
2xyz_b/1-8         -CD..E-GHIKL
3dna_C/1-3         -CD..E------
#=GC RF            xxx..xxxxxxx
//
"""
HHR = b"""Query         q
Match_columns 10
No_of_seqs    4 out of 7
Neff          2.9
Searched_HMMs 80
Date          Thu Dec 30 19:40:02 2021
Command       hhsearch -i query.a3m

 No Hit                             Prob E-value P-value  Score    SS Cols Query HMM  Template HMM
  1 1ABC_A PROTEIN; 1.5A {MUS}      98.5   4E-12   6E-17   46.2   0.0    7    2-8     33-40  (61)
  2 2XYZ_B PROTEIN; NMR {MUS}       90.5   4E-02   6E-07   16.2   0.0    4    1-4      1-4   (70)

No 1
>1ABC_A PROTEIN; 1.5A {MUS}
Probab=98.50  E-value=4e-12  Score=46.2  Aligned_cols=7  Similarity=0.398  Sum_probs=5.1  Template_Neff=4.500

Q ss_pred             HHHHH
Q query             2 CD-EF    5 (10)
Q Consensus         2 CD.Ef    5 (10)
                      ++ ++
T Consensus        33 IS.HH   37 (61)
T 1ABC_A           33 ISAHH   37 (61)
T ss_dssp             HHHHH
Confidence            34555

Q query             6 GHI    8 (10)
Q Consensus         6 Ghi    8 (10)
                      ++|
T Consensus        38 akE   40 (61)
T 1ABC_A           38 AKE   40 (61)
Confidence            345

No 2
>2XYZ_B PROTEIN; NMR {MUS}
Probab=90.50  E-value=0.04  Score=16.20  Aligned_cols=4  Similarity=0.1  Sum_probs=3.0  Template_Neff=5.700

Q query             1 ACDE    4 (10)
Q Consensus         1 acde    4 (10)
                      ...|
T Consensus         1 mcee    4 (70)
T 2XYZ_B            1 MCEE    4 (70)
Confidence            3455

Done!
"""
ALN = b"ACDEFGHIKL\nAC-EFGHIKL\n----FGHIKX\n"
ALIGNED_FASTA = b">q\nAcD-EFG.HIKL\n>h\nACDWEFGWHIKL\n>i\n-cD--FG~HIK_\n"
MMCIF = b"""data_1ABC
_entry.id 1ABC
_exptl.method 'X-RAY DIFFRACTION'
_refine.ls_d_res_high 1.50
_pdbx_database_status.recvd_initial_deposition_date 2001-01-01
loop_
_pdbx_audit_revision_history.ordinal
_pdbx_audit_revision_history.revision_date
1 2001-02-03
2 2011-07-13
loop_
_entity.id
_entity.type
1 polymer
2 water
loop_
_entity_poly.entity_id
_entity_poly.type
_entity_poly.pdbx_seq_one_letter_code_can
_entity_poly.pdbx_strand_id
1 'polypeptide(L)' GAS A
loop_
_entity_poly_seq.entity_id
_entity_poly_seq.num
_entity_poly_seq.mon_id
_entity_poly_seq.hetero
1 1 GLY n
1 2 ALA n
1 3 MSE n
loop_
_struct_asym.id
_struct_asym.entity_id
A 1
B 2
loop_
_chem_comp.id
_chem_comp.type
GLY 'peptide linking'
ALA 'L-peptide linking'
MSE 'L-peptide linking'
loop_
_pdbx_poly_seq_scheme.asym_id
_pdbx_poly_seq_scheme.entity_id
_pdbx_poly_seq_scheme.seq_id
_pdbx_poly_seq_scheme.mon_id
_pdbx_poly_seq_scheme.pdb_seq_num
_pdbx_poly_seq_scheme.auth_seq_num
_pdbx_poly_seq_scheme.pdb_mon_id
_pdbx_poly_seq_scheme.auth_mon_id
_pdbx_poly_seq_scheme.pdb_strand_id
_pdbx_poly_seq_scheme.pdb_ins_code
A 1 1 GLY 5 5 GLY GLY A .
A 1 2 ALA 6 6 ALA ALA A .
A 1 3 MSE 7 ? ? ? A .
loop_
_atom_site.group_PDB
_atom_site.id
_atom_site.type_symbol
_atom_site.label_atom_id
_atom_site.label_alt_id
_atom_site.label_comp_id
_atom_site.label_asym_id
_atom_site.label_entity_id
_atom_site.label_seq_id
_atom_site.pdbx_PDB_ins_code
_atom_site.Cartn_x
_atom_site.Cartn_y
_atom_site.Cartn_z
_atom_site.occupancy
_atom_site.B_iso_or_equiv
_atom_site.auth_seq_id
_atom_site.auth_comp_id
_atom_site.auth_asym_id
_atom_site.auth_atom_id
_atom_site.pdbx_PDB_model_num
ATOM 1 N N . GLY A 1 1 ? 1.0 2.0 3.0 1.00 10.0 5 GLY A N 1
ATOM 2 C CA . GLY A 1 1 ? 2.0 2.0 3.0 1.00 10.0 5 GLY A CA 1
ATOM 3 C C . GLY A 1 1 ? 3.0 2.0 3.0 1.00 10.0 5 GLY A C 1
ATOM 4 N N A ALA A 1 2 ? 4.0 2.0 3.0 0.60 10.0 6 ALA A N 1
ATOM 5 N N B ALA A 1 2 ? 4.1 2.0 3.0 0.40 10.0 6 ALA A N 1
ATOM 6 C CA . ALA A 1 2 ? 5.0 2.0 3.0 1.00 10.0 6 ALA A CA 1
HETATM 7 O O . HOH B 2 . ? 9.0 2.0 3.0 1.00 10.0 101 HOH A O 1
"""
PDB = b"""HEADER    HYDROLASE                               01-JAN-01   1ABC
EXPDTA    X-RAY DIFFRACTION
REMARK   2 RESOLUTION.    1.50 ANGSTROMS.
SEQRES   1 A    3  GLY ALA MSE
MODEL        1
ATOM      1  N   GLY A   5       1.000   2.000   3.000  1.00 10.00           N
ATOM      2  CA  GLY A   5       2.000   2.000   3.000  1.00 10.00           C
ATOM      3  C   GLY A   5       3.000   2.000   3.000  1.00 10.00           C
ATOM      4  N  AALA A   6       4.000   2.000   3.000  0.60 10.00           N
ATOM      5  N  BALA A   6       4.100   2.000   3.000  0.40 10.00           N
ATOM      6  CA  ALA A   6A      5.000   2.000   3.000  1.00 10.00           C
TER
HETATM    7  O   HOH A 101       9.000   2.000   3.000  1.00 10.00           O
ENDMDL
END
"""

# What each parser is made for, and the parser.
PARSERS: Mapping[str, tuple[tuple[bytes, ...], Callable[[bytes], object]]] = {
    "fasta": ((FASTA,), lambda content: parse_fasta(content, path=PATH)),
    "table": ((TABLE,), lambda content: parse_csv(content, path=PATH)),
    "a3m": ((A3M,), lambda content: parse_a3m(content, path=PATH)),
    "a3m of a target": ((A3M,), lambda content: parse_a3m(content, QUERY, path=PATH, max_rows=3)),
    "a3m to Stockholm": ((A3M,), lambda content: a3m_to_stockholm(content, path=PATH)),
    "stockholm": ((STOCKHOLM, HMMSEARCH), lambda content: parse_stockholm(content, path=PATH)),
    "stockholm of a target": ((STOCKHOLM,), lambda content: parse_stockholm(content, QUERY, path=PATH, max_rows=2)),
    "stockholm to a3m": ((STOCKHOLM, HMMSEARCH), lambda content: stockholm_to_a3m(content, path=PATH, max_rows=2)),
    "stockholm truncated": ((STOCKHOLM,), lambda content: truncated(content, 2, path=PATH)),
    "stockholm deduplicated": ((STOCKHOLM,), lambda content: deduplicated(content, path=PATH)),
    "stockholm compacted": ((STOCKHOLM,), lambda content: without_empty_columns(content, path=PATH)),
    "hhr": ((HHR,), lambda content: parse_hhr(content, path=PATH)),
    "hmmsearch": ((HMMSEARCH, A3M), lambda content: parse_hmmsearch(content, QUERY, path=PATH)),
    "alignment": (
        (A3M, STOCKHOLM, ALN, ALIGNED_FASTA, HHR),
        lambda content: parse_alignment(content, path=PATH),
    ),
    "alignment of a target": (
        (A3M, STOCKHOLM, ALN, ALIGNED_FASTA),
        lambda content: parse_alignment(content, QUERY, path=PATH, max_rows=2),
    ),
    "mmcif": ((MMCIF,), lambda content: parse_mmcif(content, path=PATH)),
    "pdb": ((PDB,), lambda content: parse_pdb(content, path=PATH)),
}
