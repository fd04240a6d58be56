# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Cluster a family by what the network makes of it
#
# Before it predicts a structure, the network turns each residue into a vector: the *single* representation. Proteins
# that are alike have vectors that are alike, also where their sequences differ. Here ubiquitins, a relative of theirs
# and some strangers are grouped by them, without an alignment (some seconds).

# %%
import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage

from data_pipeline.parse.fasta import read_fasta
from data_pipeline.pipeline import Target
from helixfold.folding.options import FoldingOptions
from helixfold.folding.representations import representations
from helixfold.report.notebook.pictures import maps

# %%
records = read_fasta("../examples/sequences.fasta")
targets = [Target(name=each.name, sequence=each.sequence) for each in records if len(each.sequence) <= 100]
[target.name for target in targets]

# %% [markdown]
# ## One call for all of them
#
# `representations` takes any number of targets, runs those of about the same length in the same passes, and returns a
# dict for each: `single` has a row of 128 numbers for each residue here (384 in AlphaFold's own models). The
# demonstration model in the package is small; with DeepMind's parameters the same line uses them.

# %%
arrays = representations(targets, ["single"], options=FoldingOptions(num_recycles=0), device="cpu")
{target.name: each["single"].shape for target, each in zip(targets, arrays, strict=True)}

# %% [markdown]
# ## From residues to a protein
#
# Proteins have different lengths, so each becomes the mean over its residues. What all have in common, the mean of all
# proteins, is taken off; the cosine of what is left says how alike two of them are.

# %%
means = np.stack([each["single"].mean(0) for each in arrays])
means -= means.mean(0)
means /= np.linalg.norm(means, axis=1, keepdims=True)
maps({"cosine of the mean representations": means @ means.T}, "alike", least=None, most=1)

# %% [markdown]
# ## Groups
#
# Average linkage on these cosines, cut where the mean of two groups is 0.5. The ubiquitins belong together, NEDD8,
# whose sequence has only some 60 % in common with theirs, among them.

# %%
groups = fcluster(linkage(means, "average", metric="cosine"), 0.5, "distance")
for group in np.unique(groups):
    print(group, *(target.name for target, own in zip(targets, groups, strict=True) if own == group))

# %% [markdown]
# ## Residue by residue
#
# The same for single residues: those of NEDD8 against those of human ubiquitin. The diagonal says that the network sees
# the same places in both chains.

# %%
human, nedd8 = (arrays[index]["single"] for index in (0, 3))
human, nedd8 = (each - each.mean(0) for each in (human, nedd8[:76]))
cosines = (nedd8 @ human.T) / np.outer(np.linalg.norm(nedd8, axis=1), np.linalg.norm(human, axis=1))
maps({"residues of NEDD8 (down) and ubiquitin": cosines}, "alike", least=None, most=1)

# %% [markdown]
# ## Your own family
#
# Read your FASTA file in place of the example, or give each target an alignment: `Target(name=..., sequence=...,
# alignments=(Path("one.a3m"),))`. The command line writes the same arrays beside each prediction:
#
# ```
# helixfold predict family.fasta --save-representations single pair
# ```
