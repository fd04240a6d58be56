# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Predict a structure, and look at it
#
# A protein is a chain of amino acids that folds into a shape. This notebook folds
# [ubiquitin](https://www.rcsb.org/structure/1UBQ), 76 amino acids that every cell with a nucleus has, and shows how to
# read what comes out: the structure, and how far it can be trusted.
#
# **Without DeepMind's parameters this is a demonstration.** The package has a small network of its own, which was
# trained on a thousand chains; how little it knows stands in the notes of what it folds. Once you ran
# `helixfold weights download` (373 MB), the very same cells use the real one.

# %%
from pathlib import Path

import helixfold
from data_pipeline.features.alignment_depth import alignment_depth
from data_pipeline.parse.fasta import read_fasta
from data_pipeline.pipeline import Target, prepare
from helixfold.analysis.domains import find_domains
from helixfold.report.notebook.pictures import Picture, maps
from helixfold.report.notebook.structures import show_structure
from helixfold.report.plots import coverage_plot, pae_plot, plddt_plot

EXAMPLES = Path("../examples")

# %% [markdown]
# ## What goes in
#
# The sequence, one letter for each amino acid, and relatives of the protein laid below it: a multiple sequence
# alignment. Positions that change together in evolution are often neighbours in space; that is what the network reads.

# %%
(record,) = read_fasta(EXAMPLES / "ubiquitin.fasta")
record.sequence

# %%
target = Target(name="ubiquitin", sequence=record.sequence, alignments=(EXAMPLES / "ubiquitin.a3m",))
msa = prepare(target).features.msa
Picture(png=coverage_plot(msa, alignment_depth(msa)))

# %% [markdown]
# Each row is a sequence, coloured by how much of it is as in ubiquitin; the line counts the rows that cover a position.
# This little alignment is for trying things. A real one has hundreds of rows or more: `helixfold predict --database`
# or `--msa-server` finds them.
#
# ## Fold it
#
# `helixfold.predict` is the command of that name in one call. It recycles: what one pass through the network found goes
# into the next.

# %%
prediction, *_ = helixfold.predict(target, options=helixfold.FoldingOptions(num_recycles=1))
prediction.notes

# %% [markdown]
# ## The structure
#
# Turn it with the mouse. The colours are the AlphaFold database's: dark blue where the network is very confident, then
# light blue, yellow, and orange where it is not.

# %%
show_structure(prediction.protein)

# %% [markdown]
# ## pLDDT: is this residue's surrounding right?
#
# From 0 to 100, for each residue. Above 90 side chains are often right, above 70 the backbone is; long stretches below
# 50 are mostly chain that has no fixed shape at all.

# %%
Picture(png=plddt_plot({prediction.model: prediction.plddt}, prediction.notes))

# %% [markdown]
# ## PAE: are these two parts placed right relative to each other?
#
# Lay the prediction on the true structure at one residue (row): how far off, in Angstrom, is another (column) then?
# Dark squares along the diagonal are parts that are each right, and light between two of them means that nobody knows
# how they lie. pTM sums the map up in one number from 0 to 1; above 0.5 the fold is probably right.

# %%
Picture(png=pae_plot({prediction.model: prediction.pae}, prediction.max_pae, prediction.notes))

# %%
prediction.ptm

# %% [markdown]
# Parts with low errors among themselves are domains. A network that is sure of nothing has none.

# %%
[domain.stretches for domain in find_domains(prediction.pae, prediction.plddt)]

# %% [markdown]
# ## Distances and contacts
#
# Beside the structure, the network says how far apart any two residues should be, and how likely they touch (less than
# 8 Angstrom). Where this map and the structure disagree, look twice.

# %%
maps({"expected distance": prediction.distances.expected}, "Å")

# %%
maps({"contact": prediction.distances.contact}, "probability", most=1.0)

# %% [markdown]
# `helixfold predict` writes all of this into a directory: [the table of files](../docs/reference/outputs.md).
