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
# # Train a tiny one, and watch it fold
#
# AlphaFold 2 learnt from every protein structure known at its time, for eleven days on 128 TPU cores. One peptide can
# be memorised on a laptop in a minute. That is no use for anything else, and the best way to see what learning a
# structure is: the network starts with all atoms in one place.
#
# The peptide is a strand and a helix of 21 residues, made of textbook angles, with a turn between them.

# %%
from helixfold.report.notebook.pictures import lines, maps
from helixfold.report.notebook.structures import show_film, show_together
from helixfold.training.overfit_one import OverfitRun

overfit = OverfitRun("../examples/structures/strand_helix.pdb")
overfit.features.sequence

# %%
show_together({"the peptide": overfit.truth})

# %% [markdown]
# ## Learn
#
# Each step: fold the peptide, compare with the truth, change half a million parameters a little. Every 25 steps we keep
# what the network folds.

# %%
frames = list(overfit.train(steps=250, every=25))

# %% [markdown]
# ## Watch
#
# From the first step to the last, laid on the truth (grey).

# %%
show_film([frame.prediction.protein for frame in frames], overfit.truth)

# %% [markdown]
# The loss falls, and the lDDT, the share of distances between residues that are right, rises. The loss is mostly FAPE:
# stand on each residue in turn, look from there, and measure how far every atom is from where it should be. A mirror
# image looks wrong from everywhere, which is why the helix turns the right way round.

# %%
steps = [frame.step for frame in frames]
lines({"loss": [frame.loss for frame in frames]}, "training loss", along=steps, along_label="step")

# %%
lines({"CA-lDDT": [frame.lddt for frame in frames]}, "CA-lDDT", along=steps, along_label="step", most=1)

# %% [markdown]
# ## It also learns what it knows
#
# The distogram sharpens, and pLDDT learns to say how good the structure is: at first it knows nothing, and says 50. So
# soon it knows how good the whole is (compare with the lDDT above), but not yet which residues are better than others.

# %%
few = frames[::3]
maps({f"step {frame.step}": frame.prediction.distances.expected for frame in few}, "expected distance, Å", most=22)

# %%
lines({f"step {frame.step}": frame.prediction.plddt for frame in few}, "pLDDT", most=100)

# %%
show_together({"true": overfit.truth, "learnt": frames[-1].prediction.protein})

# %% [markdown]
# ## Go on
#
# - `frames += overfit.train(steps=500, every=100)` goes on where it stopped.
# - Other peptides lie in `examples/structures`: which are easy, which are hard? Any PDB or mmCIF file works; the work
#   grows with the square of the length and more.
# - A real training run, with many chains, checkpoints and held-out chains, is `helixfold train`: see the
#   [README](../README.md).
