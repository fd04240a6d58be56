"""Names of the arrays of a protein that have one entry per residue."""

from dataclasses import fields

from data_pipeline.protein import Protein

RESIDUE_ARRAYS = tuple(field.name for field in fields(Protein) if field.name != "cyclic_chains")
