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
# # 6. Train a tiny network and watch it fold
#
# **Aim:** see what learning a structure is: a network overfits one peptide, and shows each stage.
#
# **Time:** about 30 s on two cores of an AMD EPYC.
#
# AlphaFold 2 learnt from every protein structure known at its time, for eleven days on 128 TPU cores. One peptide can
# be memorised on a laptop in less than a minute. The result is no use for anything else, but it shows how learning
# looks: the network starts with all atoms in one place.
#
# The peptide has 21 residues: a strand and a helix, made of textbook angles, with a turn between them.

# %%
import helixfold
from helixfold.report.notebook.pictures import lines, maps
from helixfold.report.notebook.structures import show_film, show_together
from helixfold.training.overfit_one import OverfitRun

overfit = OverfitRun(helixfold.example_file("strand_helix.pdb"))
overfit.features.sequence

# %% [markdown]
# ## Learn
#
# In each step, the network folds the peptide, compares the result with the truth, and changes half a million parameters
# a little. Every 25 steps we keep what it folds.

# %%
frames = list(overfit.train(steps=200, every=25))
prediction = frames[-1].prediction

# %% [markdown]
# ## Watch
#
# From the first step to the last, superposed on the truth (grey).

# %%
show_film(
    [frame.prediction.protein for frame in frames],
    overfit.truth,
    [f"step {frame.step}, lDDT-CA {frame.lddt:.2f}" for frame in frames],
)

# %% [markdown]
# The loss falls, and lDDT, the share of distances between residues that are right, rises. The loss is mostly FAPE
# (frame aligned point error): stand on each residue in turn, look from there, and measure how far every atom is from
# where it should be. A mirror image looks wrong from everywhere, which is why the helix turns the right way round.

# %%
steps = [frame.step for frame in frames]
lines({"loss": [frame.loss for frame in frames]}, "training loss", along=steps, along_label="Step")

# %%
lines({"lDDT": [frame.lddt for frame in frames]}, "lDDT-CA (0 to 1)", along=steps, along_label="Step", most=1)

# %% [markdown]
# ## It also learns what it knows
#
# The distogram sharpens. pLDDT learns to predict how good the structure is: at first it knows nothing, and is 50. Soon
# it knows how good the whole is (compare it with the lDDT above), but not yet which residues are better than others.

# %%
few = frames[::4]
maps(
    {**{f"step {frame.step}": frame.prediction.distances.expected for frame in few}, "true": overfit.truth_distances},
    "distance of C-beta atoms (Å)",
    most=22,
)

# %%
lines({f"step {frame.step}": frame.prediction.plddt for frame in few}, "pLDDT (0 to 100)", most=100)

# %%
show_together({"true": overfit.truth, "learnt": prediction.protein})

# %% [markdown]
# ## Next
#
# - `frames += overfit.train(steps=500, every=100)` continues where it stopped.
# - `OverfitRun("my.pdb")` takes any PDB or mmCIF file. The work grows with the square of the length and more.
# - A real training run, with many chains, checkpoints and held-out chains, is `helixfold train`.
# - [Notebook 7](7_design.ipynb) changes the sequence instead of the parameters.
