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
# # 4. Inside the Evoformer
#
# **Aim:** watch the network work: attention maps, one block and its updates, and recycling as a film.
#
# **Time:** about 20 s on two cores of an AMD EPYC.
#
# AlphaFold 2 keeps two pictures of a protein and improves them in turn. The *MSA* stream has a row for each related
# sequence; the *pair* stream has a small vector for every pair of residues, and in the end encodes where they are. A
# block of the Evoformer is a list of updates that each add something to one of the streams.
#
# We look into the demonstration model, which has 6 blocks; AlphaFold 2 has 48. The same code works with
# `helixfold.load_model("model_1_ptm")` after `helixfold weights download`.

# %%
import warnings
from itertools import pairwise

import numpy as np
from matplotlib import pyplot

import helixfold
from helixfold.execution.pair_changes import PairChangeRecorder
from helixfold.execution.stages import Stages
from helixfold.folding.options import FoldingOptions
from helixfold.folding.recycling import FoldingTarget, fold
from helixfold.report.notebook.pictures import lines, maps
from helixfold.results.prediction import structure_distances

warnings.filterwarnings("ignore", "DEMONSTRATION")  # see notebook 1
model = helixfold.load_model("small")

# %% [markdown]
# ## Attention
#
# In an attention layer, each residue (the query) collects information from others (the keys), with weights that sum to
# 1. Several *heads* do so at once, each with weights of its own. `record_attention` records the weights of all layers
# whose names match a pattern, while anything is predicted.

# %%
alignment, template = helixfold.example_file("src_sh3.a3m"), helixfold.example_file("1shg.pdb")
with helixfold.record_attention(model, average_rows=True) as attention:
    (prediction,) = helixfold.predict(alignment, model, templates=template, num_recycles=3, save_passes=True)
{name: weights.shape for name, weights in attention.items() if name.startswith(("evoformer.0", "structure"))}

# %% [markdown]
# Row attention looks along the sequences, and the pair stream biases it. In the second block, each head has its own
# relation: neighbours on both sides, the residue itself, the partner in the other strand (the lines at right angles to
# the diagonal).

# %%
maps(
    {f"head {head}": weights for head, weights in enumerate(attention["evoformer.1.row"], start=1)},
    "weight, mean over MSA rows",
    most=0.2,
    columns=4,
    axes=("Key residue", "Query residue"),
)

# %% [markdown]
# The structure module attends to residues that are near in space, at the positions it has just predicted:

# %%
maps(
    {f"head {head}": weights for head, weights in enumerate(attention["structure_module.attention"], start=1)},
    "weight",
    most=0.2,
    columns=4,
    axes=("Key residue", "Query residue"),
)

# %% [markdown]
# How much of the weight is on residues that are in contact in the prediction (less than 8 Å), but not near along the
# chain? Evenly spread attention would have the share of pairs in contact (even).

# %%
distances, residues = structure_distances(prediction.protein), np.arange(len(prediction.plddt))
contact = (distances < 8) & (abs(residues[:, None] - residues) > 5)
share = {
    name: [float((attention[f"evoformer.{block}.{name}"] * contact).sum(-1).mean()) for block in range(6)]
    for name in ("row", "starting", "ending")
}
lines({**share, "even": [contact.mean()] * 6}, "weight on contacts (0 to 1)", along=range(1, 7), along_label="Block")

# %% [markdown]
# ## One block
#
# A block maps an MSA and a pair stream to a new MSA and pair stream of the same shapes: (1, rows, residues, channels)
# and (1, residues, residues, channels). `run_block` runs one on random numbers.

# %%
(msa, pair), (new_msa, new_pair) = helixfold.run_block(model, residues=64, rows=32)
print("MSA ", tuple(msa.shape), "changed by", round(float((new_msa - msa).square().mean().sqrt()), 2))
print("pair", tuple(pair.shape), "changed by", round(float((new_pair - pair).square().mean().sqrt()), 2))

# %% [markdown]
# Which updates cost most? The numbers below are for AlphaFold 2's `model_1_ptm`, one recycling iteration, 256 residues
# and 512 MSA rows; nothing is computed. At this size the MSA costs most. Triangle updates grow with the cube of the
# number of residues, and overtake the rest in long chains.

# %%
costs = [row for row in helixfold.module_costs("model_1_ptm").rows if row[0].startswith("evoformer.*.")]
names, parameters, flops = zip(*costs, strict=True)
left, right = pyplot.figure(figsize=(9, 3), layout="constrained").subplots(1, 2, sharey=True)
left.barh([name.removeprefix("evoformer.*.").replace("_", " ") for name in names], np.divide(flops, 1e12))
right.barh(range(len(names)), np.divide(parameters, 1e6))
left.invert_yaxis()
left.set(xlabel="FLOPs of 48 blocks (10¹²)", ylabel="Update")
text = right.set_xlabel("parameters of 48 blocks (millions)")

# %% [markdown]
# ## What each update adds to the pair stream
#
# In this program a model says *what* is computed, and an executor says *how*: whole, in slabs, on many GPUs. A recorder
# is an executor too, and the model does not know about it.

# %%
watch = PairChangeRecorder(model.network.evoformer)
target, options = FoldingTarget(features=prediction.features), FoldingOptions(num_recycles=0)
fold(model.network, model.preset, [target], options, watch, stages=Stages())
maps(
    {change.title: change.pattern for change in watch.changes if change.block == 0},
    "change (share of its largest)",
    columns=3,
)

# %% [markdown]
# Titles give the block, the update, and how much it changes an edge on average. Look for:
#
# - **outer product mean**: the only way from the MSA into the pairs. What two columns have in common becomes a change
#   of their edge; single rows and columns stand out, because the features of single residues do.
# - **triangle updates**: an edge *ij* is corrected by the two edges that it forms triangles with, *ik* and *jk*, for
#   every *k*. Distances must fit together, and this is where that is learnt. Outgoing and incoming edges come first,
#   then attention that starts and ends at a node.
# - **pair transition**: every edge by itself.
#
# ## What the pairs know about distance
#
# A linear layer reads distances off the pair stream: for each pair a distribution over 64 bins, the distogram. Here is
# its mean, next to the distances in the predicted structure.

# %%
maps({"distogram": prediction.distances.expected, "structure": distances}, "distance of C-beta atoms (Å)", most=22)

# %% [markdown]
# ## Recycling
#
# The pair stream, the first row of the MSA and the structure of one recycling iteration go into the next one. AlphaFold
# 2 does that three times. The film shows all four structures, superposed on the experiment (grey).

# %%
prediction.film(helixfold.fetch_structure("1SRL"))

# %% [markdown]
# What changes? With a template, most is there after the first iteration, and the rest moves the tail, which the
# template does not cover. On a hard target, the first iteration often gets the parts and later ones assemble them.

# %%
steps = [structure_distances(protein) for protein in prediction.recycling_iterations]
maps(
    {f"iteration {number}": after - before for number, (before, after) in enumerate(pairwise(steps), start=2)},
    "change since the iteration before (Å)",
    least=None,
    most=5,
)

# %% [markdown]
# ## Next
#
# - `representations=("single", "pair")` in `helixfold.predict` returns the streams themselves; [notebook
#   5](5_compare_structures_and_families.ipynb) uses them.
# - `save_passes=True` works with every prediction; `print(helixfold.module_costs(model))` has all modules.
