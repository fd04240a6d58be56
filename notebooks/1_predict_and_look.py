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
# # 1. Predict a structure and look at it
#
# **Aim:** predict the SH3 domain of Src, read its confidence, and compare it with the experimental structure.
#
# **Time:** about 10 s on two cores of an AMD EPYC.
#
# A protein is a chain of amino acids that folds into a shape. Src is an enzyme that tells cells to grow; its SH3
# domain, 64 amino acids, holds on to other proteins. Its structure is known
# ([1SRL](https://www.rcsb.org/structure/1SRL), downloaded once), so we can check what the network predicts.
#
# **Without DeepMind's parameters this is a demonstration.** The package contains a small network that completes and
# corrects a related structure. After `helixfold weights download` (373 MB) the same cells use AlphaFold 2.

# %%
import helixfold
from helixfold.analysis.domains import find_domains
from helixfold.report.notebook.pictures import lines, maps
from helixfold.results.prediction import structure_distances

SEQUENCE = helixfold.example_file("src_sh3.fasta")
TEMPLATE = helixfold.example_file("1shg.pdb")
EXPERIMENT = helixfold.fetch_structure("1SRL")
print(SEQUENCE.read_text())

# %% [markdown]
# ## Predict
#
# The input is the sequence, one letter for each amino acid, and here a *template*: the structure of a relative, the SH3
# domain of spectrin, in which a third of the amino acids are the same. Instead of files, you can pass your own sequence
# as text: `helixfold.predict("MKTAYIAK...")`. The warning is also in the result, so that nobody mistakes a
# demonstration for AlphaFold 2.

# %%
(prediction,) = helixfold.predict(SEQUENCE, templates=TEMPLATE)
prediction

# %% [markdown]
# ## The structure
#
# Turn it with the mouse. The colours are as in the AlphaFold database: dark blue where the network is very confident,
# then light blue, yellow, and orange where it is not.

# %%
prediction.view()

# %% [markdown]
# ## pLDDT: is the neighbourhood of this residue right?
#
# pLDDT is 0 to 100 for each residue. Above 90 side chains are often right; above 70 the backbone is. Long stretches
# below 50 are mostly chain without a fixed shape. The first eight residues here have no counterpart in the template.

# %%
axes = prediction.plot_plddt()

# %% [markdown]
# ## PAE: are two parts placed correctly relative to each other?
#
# Superpose the prediction on the true structure at one residue (row): how far off, in Å, is another residue (column)
# then? Dark squares on the diagonal are parts that are each right. Light areas between two squares mean that their
# relative position is unknown. pTM summarises the map in a number from 0 to 1; above 0.5 the fold is probably right.

# %%
axes = prediction.plot_pae()

# %% [markdown]
# Residues with low errors among themselves form domains. Here are the residue numbers of each one:

# %%
[domain.stretches for domain in find_domains(prediction.pae, prediction.plddt)]

# %% [markdown]
# ## Distances and contacts
#
# The network also predicts how far apart any two residues are (the *distogram*), and how likely they touch (less than 8
# Å). Where the distogram and the structure disagree, look twice. A line at right angles to the diagonal is a hairpin:
# two strands that run side by side in opposite directions.

# %%
maps(
    {"distogram": prediction.distances.expected, "structure": structure_distances(prediction.protein)},
    "distance of C-beta atoms (Å)",
    most=22,
)

# %%
maps({"contacts": prediction.distances.contact}, "probability (0 to 1)", most=1)

# %% [markdown]
# ## Next to the experiment
#
# Residues are paired by aligning the sequences, and the prediction is superposed on the experimental structure.

# %%
prediction.view(EXPERIMENT)

# %% [markdown]
# lDDT and TM-score are 1 for identical structures; [notebook 5](5_compare_structures_and_families.ipynb) explains each
# score. The prediction is still closer to its template than to the experiment.

# %%
print("experiment:", prediction.score_against(EXPERIMENT))
print("template:  ", prediction.score_against(TEMPLATE))

# %% [markdown]
# pLDDT is the network's own estimate of lDDT. So was it right about where it is wrong? The template lacks two residues
# of the loop near residue 48. The true lDDT falls there, and pLDDT falls with it.

# %%
lines(
    {"pLDDT": prediction.plddt, "lDDT against 1SRL": 100 * prediction.residue_lddt(EXPERIMENT)},
    "pLDDT, lDDT (0 to 100)",
    most=100,
)

# %% [markdown]
# ## Next
#
# - `prediction.save_pdb("src_sh3.pdb")` writes the structure for PyMOL or ChimeraX; B-factors are pLDDT.
# - `helixfold predict` in a terminal writes all of this and a report page into a directory.
# - [Notebook 2](2_open_results.ipynb) opens results that you already have.
