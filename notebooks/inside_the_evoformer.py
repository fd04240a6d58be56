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
# # Inside the Evoformer
#
# AlphaFold 2 keeps two pictures of a protein and improves them in turn. The *MSA* stream has a row for each related
# sequence; the *pair* stream has a small vector for every pair of residues, and in the end says where they are. A block
# of the Evoformer is a list of updates that add something to one of the streams. Here we watch what each adds.
#
# A network that knows something shows more than one with random parameters. So we first overfit a small one to a single
# peptide, which takes less than a minute; [another notebook](train_a_tiny_one.ipynb) looks at that.

# %%
from helixfold.execution.pair_changes import PairChangeRecorder
from helixfold.report.notebook.pictures import maps
from helixfold.report.notebook.structures import show_together
from helixfold.training.overfit_one import OverfitRun, settings

PEPTIDE = "../examples/structures/strand_helix.pdb"

# %%
config = settings().with_settings(["model.evoformer.blocks=2", "example.max_passes=2"])
overfit = OverfitRun(PEPTIDE, config)
*_, last = overfit.train(steps=120, every=120)
last.lddt

# %% [markdown]
# ## What each update adds to the pair stream
#
# In this program a model says *what* is computed, and an executor says *how*: whole, slab by slab, on many GPUs. So
# looking on is an executor, too, and the model does not know of it.

# %%
watch = PairChangeRecorder(overfit.network.evoformer)
prediction = overfit.fold(run=watch)
[change.title for change in watch.changes]

# %%
maps({change.title: change.pattern for change in watch.changes}, "change, share of its largest", columns=3)

# %% [markdown]
# Titles give the block, the update, and how much it changes an edge on average. Look for:
#
# - **outer product mean**: the only way from the MSA into the pairs. What two columns have in common becomes a change
#   of their edge; single rows and columns stand out, because a residue's own features do.
# - **triangle updates**: an edge *ij* is corrected by the two edges that it forms triangles with, *ik* and *jk*, for
#   every *k*. Distances must fit together, and this is where that is learnt. Outgoing and incoming edges, then
#   attention that starts and ends at a node.
# - **pair transition**: every edge by itself.
#
# ## What the pairs know of distance
#
# A linear layer reads distances off the pair stream: for each pair a distribution over 64 bins, the distogram. Here are
# its mean, and the true distances beside it.

# %%
truth = overfit.truth_distances
maps({"expected": prediction.distances.expected, "true": truth}, "distance, Å", most=22)

# %% [markdown]
# ## Recycling
#
# The pair stream, the first row of the MSA and the structure of one pass go into the next one. AlphaFold 2 does that
# three times. What changes here?

# %%
recycled = {f"pass {count + 1}": overfit.fold(num_recycles=count) for count in range(4)}
maps({name: each.distances.expected for name, each in recycled.items()}, "expected distance, Å", most=22)

# %%
first = recycled["pass 1"].distances.expected
maps(
    {name: each.distances.expected - first for name, each in list(recycled.items())[1:]},
    "change since the first pass, Å",
    least=None,
)

# %% [markdown]
# A network overfitted to one chain knows the answer at once, so there is little to add, or even something to lose.
# On a real protein the first pass often gets the parts and later ones put them together: get DeepMind's parameters
# (`helixfold weights download`), call `predict` with `FoldingOptions(num_recycles=0)`, then 1, 2 and 3, and compare the
# same maps.

# %%
show_together({"true": overfit.truth, "pass 4": recycled["pass 4"].protein})
