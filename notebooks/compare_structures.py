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
# # Compare two structures
#
# Is this prediction good? Is this model better than that one? There is no single number for it: each answers another
# question. We compare a structure with two attempts at it, an early one and a later one, by a small network that is
# being overfitted to it (some seconds). For files of your own see the end.

# %%
import numpy as np

from helixfold.analysis import metrics
from helixfold.report.notebook.pictures import lines, maps
from helixfold.report.notebook.structures import show_together
from helixfold.training.overfit_one import OverfitRun

# %%
overfit = OverfitRun("../examples/structures/strand_helix.pdb")
_, early, late = (frame.prediction.protein for frame in overfit.train(steps=140, every=70))

# %%
true, first, second = (protein.positions_of("CA") for protein in (overfit.truth, early, late))

# %% [markdown]
# ## Lay one on the other: RMSD
#
# A structure has no place of its own, so first it is turned and shifted until its C-alpha atoms are as near to the
# others as they can be. What is left, as a root mean square, is the RMSD. One loose end can spoil it.

# %%
show_together({"true": overfit.truth, "early": early, "late": late})

# %%
metrics.rmsd(first, true), metrics.rmsd(second, true)

# %% [markdown]
# ## TM-score and GDT: how much of it is right?
#
# Both look for the superposition that brings most of the chain near, and forgive the rest. TM-scores of more than 0.5
# mean the same fold, whatever the length; GDT-TS is the share of residues within 1, 2, 4 and 8 Angstrom. (A peptide of
# 21 residues is shorter than what the TM-score was made for: its scale is stern here.)

# %%
metrics.superposed_scores(first, true)

# %%
metrics.superposed_scores(second, true)

# %% [markdown]
# ## lDDT: are the surroundings right?
#
# Of all distances up to 15 Angstrom, how many are kept within 0.5, 1, 2 and 4? No superposition is needed, so two
# domains that are each right count as right however they lie. This is what pLDDT predicts, and it has a value for
# each residue.

# %%
residues = np.arange(len(true))
metrics.lddt(first, true, residues), metrics.lddt(second, true, residues)

# %%
attempts = {"early": first, "late": second}
by_residue = {name: metrics.residue_lddt(each, true, residues)[0] for name, each in attempts.items()}
lines(by_residue, "lDDT of each residue", most=1)

# %% [markdown]
# ## Where do they differ?
#
# Distances in one minus distances in the other: red pairs are too far apart, blue ones too near. A stripe is a residue
# that is out of place, a block off the diagonal two parts that moved against each other.

# %%
differences = {name: metrics.distance_difference(each, true) for name, each in attempts.items()}
maps(differences, "too far apart, Å", least=None)

# %% [markdown]
# ## Your own files
#
# `read_structure` in `data_pipeline.parse.structures` reads PDB and mmCIF files, and what is above takes any two sets
# of matching C-alpha atoms. For whole directories, with residues matched by their sequences, there is a command:
#
# ```
# helixfold evaluate predictions/ references/
# ```
