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
# # 5. Compare structures and families
#
# **Aim:** understand the scores by which structures are compared, and group proteins by what the network makes of them.
#
# **Time:** about 20 s on two cores of an AMD EPYC.
#
# Is this prediction good? Is this model better than that one? No single number answers both; each score asks another
# question. We compare two predictions of the SH3 domain of Src with its experimental structure: one that was made from
# the structure of a relative, and one from the sequence alone, with which the demonstration model is helpless.

# %%
import warnings

import numpy as np
from matplotlib import pyplot
from scipy.cluster.hierarchy import fcluster, linkage

import helixfold
from data_pipeline.pipeline import Target
from helixfold.folding.options import FoldingOptions
from helixfold.folding.representations import representations
from helixfold.report.notebook.pictures import lines, maps

warnings.filterwarnings("ignore", "DEMONSTRATION")  # see notebook 1
SEQUENCE, TEMPLATE = helixfold.example_file("src_sh3.fasta"), helixfold.example_file("1shg.pdb")
EXPERIMENT = helixfold.fetch_structure("1SRL")

# %%
model = helixfold.load_model("small")
(good,) = helixfold.predict(SEQUENCE, model, templates=TEMPLATE)
(poor,) = helixfold.predict(SEQUENCE, model)
attempts = {"with template": good, "sequence alone": poor}

# %% [markdown]
# ## Superpose: RMSD
#
# A structure has no place of its own, so first it is turned and shifted until its C-alpha atoms are as near to the
# others as they can be. What is left, as a root mean square in Å, is the RMSD. One loose end can spoil it.

# %%
good.view(EXPERIMENT)

# %%
for name, each in attempts.items():
    print(f"{name}: {each.score_against(EXPERIMENT)}")

# %% [markdown]
# ## TM-score and GDT: how much of it is right?
#
# Both look for the superposition that brings most of the chain near, and forgive the rest. TM-scores above 0.5 mean the
# same fold, whatever the length. GDT-TS is the mean share of residues within 1, 2, 4 and 8 Å.
#
# ## lDDT: are the neighbourhoods right?
#
# Of all distances up to 15 Å in the experiment, how many are kept within 0.5, 1, 2 and 4 Å? No superposition is needed,
# so two domains that are each right count as right however they lie. This is what pLDDT predicts, and it has a value
# for each residue. Even a wrong structure keeps the distances along the chain, so lDDT hardly falls below 0.3.

# %%
by_residue = {name: each.residue_lddt(EXPERIMENT) for name, each in attempts.items()}
lines(by_residue, "lDDT of C-alpha atoms (0 to 1)", most=1)

# %% [markdown]
# ## Where do they differ?
#
# Distances in the prediction minus distances in the experiment: red pairs are too far apart, blue ones too near. A
# stripe is a residue that is out of place; a block off the diagonal is two parts that moved against each other. White
# margins have no counterpart in the experiment.

# %%
differences = {name: each.distance_difference(EXPERIMENT) for name, each in attempts.items()}
maps(differences, "too far apart (Å)", least=None, most=15)

# %% [markdown]
# ## Relatives
#
# Structures of relatives are compared by aligning their sequences. The SH3 domain of spectrin, the template, has a
# third of its residues in common with Src, and the same fold: structures change more slowly than sequences.

# %%
good.score_against(TEMPLATE)

# %% [markdown]
# ## A family, without structures
#
# Before it predicts a structure, the network turns each residue into a vector: the *single* representation. Proteins
# that are alike have similar vectors, even where their sequences differ. Here ubiquitins, a relative of theirs (NEDD8),
# and some strangers are grouped by them, without an alignment.

# %%
FAMILY = {
    "ubiquitin_human": "MQIFVKTLTGKTITLEVEPSDTIENVKAKIQDKEGIPPDQQRLIFAGKQLEDGRTLSDYNIQKESTLHLVLRLRGG",
    "ubiquitin_yeast": "MQIFVKTLTGKTITLEVESSDTIDNVKSKIQDKEGIPPDQQRLIFAGKQLEDGRTLSDYNIQKESTLHLVLRLRGG",
    "ubiquitin_cress": "MQIFVKTLTGKTITLEVESSDTIDNVKAKIQDKEGIPPDQQRLIFAGKQLEDGRTLADYNIQKESTLHLVLRLRGG",
    "nedd8_human": "MLIKVKTLTGKEIEIDIEPTDKVERIKERVEEKEGIPPQQQRLIYSGKQMNDEKTAADYKILGGSVLHLVLALRGGGGLRQ",
    "crambin": "TTCCPSIVARSNFNVCRLPGTPEALCATYTGCIIIPGATCPGDYAN",
    "trpcage": "NLYIQWLKDGGPSSGRPPPS",
    "villin_headpiece": "LSDEDFKAVFGMTRSAFANLPLWKQQNLKKEKGLF",
}
targets = [Target(name=name, sequence=sequence) for name, sequence in FAMILY.items()]

# %% [markdown]
# `representations` takes any number of targets, runs targets of about the same length together, and returns a dict for
# each. `single` has a row of 128 numbers for each residue (384 in AlphaFold 2's models).

# %%
arrays = representations(targets, ["single"], model="small", options=FoldingOptions(num_recycles=0), device="cpu")
{name: each["single"].shape for name, each in zip(FAMILY, arrays, strict=True)}

# %% [markdown]
# ## From residues to proteins
#
# Proteins have different lengths, so each becomes the mean over its residues. What all have in common, the mean of all
# proteins, is subtracted; the cosine of what is left is their similarity.

# %%
means = np.stack([each["single"].mean(0) for each in arrays])
means -= means.mean(0)
means /= np.linalg.norm(means, axis=1, keepdims=True)
names = [*FAMILY]
axes = pyplot.figure(figsize=(6.4, 4.6), layout="constrained").add_subplot()
image = axes.imshow(means @ means.T, cmap="RdBu_r", vmin=-1, vmax=1)
axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
axes.set_yticks(range(len(names)), names)
bar = axes.figure.colorbar(image, label="cosine (-1 to 1)")

# %% [markdown]
# ## Groups
#
# Average linkage on these cosines is cut where the mean of two groups is 0.5. The ubiquitins belong together, and
# NEDD8, whose sequence has only about 60 % in common with theirs, belongs to them.

# %%
groups = fcluster(linkage(means, "average", metric="cosine"), 0.5, "distance")
for group in np.unique(groups):
    print(group, *(name for name, own in zip(names, groups, strict=True) if own == group))

# %% [markdown]
# ## Residue by residue
#
# The same for single residues: NEDD8 against human ubiquitin. Where the diagonal is red, the network sees the same
# places in both chains.

# %%
human, nedd8 = (arrays[names.index(name)]["single"][:76] for name in ("ubiquitin_human", "nedd8_human"))
human, nedd8 = (each - each.mean(0) for each in (human, nedd8))
cosines = (nedd8 @ human.T) / np.outer(np.linalg.norm(nedd8, axis=1), np.linalg.norm(human, axis=1))
maps(
    {"single representations": cosines},
    "cosine (-1 to 1)",
    least=None,
    most=1,
    axes=("Residue of ubiquitin", "Residue of NEDD8"),
)

# %% [markdown]
# ## Next
#
# - Your own files: `prediction.score_against("known.pdb")`, and `helixfold evaluate predictions/ references/` in a
#   terminal for whole directories, complexes too.
# - Your own family: your sequences instead of those above, or `helixfold predict family.fasta --save-representations
#   single pair`.
# - [Notebook 6](6_train_a_tiny_one.ipynb) trains a network.
