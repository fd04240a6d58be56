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
# # 3. Explore features and the MSA
#
# **Aim:** see what AlphaFold 2 reads: names and shapes of the features, and what a multiple sequence alignment (MSA)
# knows about a structure.
#
# **Time:** about 6 s on two cores of an AMD EPYC.
#
# No network runs in this notebook. The input is an alignment of 112 SH3 domains, with Src first, and the structure of
# one of them as a template.

# %%
import numpy as np
from matplotlib import pyplot

import helixfold
from data_pipeline.features.alignment_depth import alignment_depth
from data_pipeline.parse.fasta import read_fasta
from data_pipeline.parse.structures import read_structure
from data_pipeline.pipeline import Target, prepare
from data_pipeline.residues import RESTYPES, RESTYPES_WITH_X_AND_GAP
from data_pipeline.structure import protein_from_chains
from helixfold.folding.model_input import draw, model_input
from helixfold.model.presets import preset
from helixfold.report.notebook.pictures import Picture, lines, maps
from helixfold.report.plots import coverage_plot
from helixfold.results.prediction import structure_distances

# %% [markdown]
# ## Features by name
#
# `prepare` reads the files and returns arrays. The shapes are in residues (64), MSA rows (112) and templates (1); atoms
# are in the order of `data_pipeline.residues.ATOM_TYPES` (37).

# %%
(record,) = read_fasta(helixfold.example_file("src_sh3.fasta"))
alignment, template = helixfold.example_file("src_sh3.a3m"), helixfold.example_file("1shg.pdb")
target = Target(name="src_sh3", sequence=record.sequence, alignments=(alignment,), templates=(template,))
features = prepare(target).features
helixfold.feature_shapes(features)

# %% [markdown]
# ## The alignment
#
# Each column is a residue of Src, and `-` is a gap. Insertions relative to Src are not columns; `deletion_matrix`
# counts them.

# %%
msa = features.msa
for row in msa[:8]:
    print("".join(RESTYPES_WITH_X_AND_GAP[kind] for kind in row))

# %% [markdown]
# ## Coverage
#
# Rows are coloured by how similar they are to Src. The line counts the rows that cover a position: most are of the
# middle, because the database they come from cuts the ends off. Similar rows say the same thing twice, so the title
# also counts clusters at 80 % identity. Hundreds of independent rows are what AlphaFold 2 works well with.

# %%
Picture(png=coverage_plot(msa, alignment_depth(msa)))

# %% [markdown]
# ## Frequencies and conservation
#
# How often does each amino acid occur at each position? Positions that less than half of the rows cover stay white: a
# frequency of few rows says little.

# %%
rows = (msa < 20).sum(0)
frequencies = np.stack([(msa == kind).sum(0) for kind in range(20)]) / np.where(rows > len(msa) / 2, rows, np.nan)
axes = pyplot.figure(figsize=(9, 3.2), layout="constrained").add_subplot()
image = axes.imshow(frequencies, cmap="viridis", vmin=0, aspect="auto", extent=(0.5, len(record.sequence) + 0.5, 20, 0))
axes.set_yticks(np.arange(20) + 0.5, RESTYPES, fontsize=7)
axes.set(xlabel="Residue of Src", ylabel="Amino acid")
bar = axes.figure.colorbar(image, label="frequency (0 to 1)")

# %% [markdown]
# A position where any amino acid occurs has the entropy of 20 equally likely letters, 4.3 bits. What is missing to that
# is the information of the column: 4.3 bits if it never changes. Evolution keeps what holds the fold together or binds
# other proteins. The most conserved residues of SH3 domains are famous: ALYDY, the WW pair, and G and P towards the
# end.

# %%
information = np.log2(20) + (frequencies * np.log2(np.where(frequencies > 0, frequencies, 1))).sum(0)
lines({"information": information}, "information (bits)", most=np.log2(20))

# %%
most = sorted(np.argsort(-np.nan_to_num(information))[:12])
print(*(f"{record.sequence[place]}{place + 1}" for place in most))

# %% [markdown]
# ## Columns that change together
#
# If two residues touch, a mutation of one is often compensated by the other. So look for pairs of columns that change
# together. Mutual information measures it: how many bits does one column tell about another? Some columns have a high
# value with all others, because they vary most; the *average product correction* subtracts that (Dunn et al. 2008).

# %%
(covered,) = (rows > len(msa) / 2).nonzero()
one_hot = np.eye(22)[msa[:, covered]]
pairs = np.einsum("n i a, n j b -> i j a b", one_hot, one_hot) / len(msa)
expected = np.einsum("i a, j b -> i j a b", one_hot.mean(0), one_hot.mean(0))
bits = (pairs * np.log2(np.where(pairs > 0, pairs / np.maximum(expected, 1e-9), 1))).sum((2, 3))
np.fill_diagonal(bits, 0)
mutual = np.full((len(rows), len(rows)), np.nan)
mutual[np.ix_(covered, covered)] = bits - bits.mean(0) * bits.mean(1)[:, None] / bits.mean()

# %%
maps({"mutual information, corrected": mutual.clip(0)}, "bits", most=0.25)

# %% [markdown]
# The experimental structure tells which residues touch (less than 8 Å, grey). The dots are the 25 pairs with the
# highest values, among those at least six residues apart. Many lie on contacts between strands, although no structure
# was used.

# %%
experiment = protein_from_chains(read_structure(helixfold.fetch_structure("1SRL")).chains)
distances = structure_distances(experiment)
usable = np.triu(np.isfinite(mutual * distances), 6)
first, second = np.nonzero(usable)
order = np.argsort(-mutual[first, second])
first, second = first[order], second[order]

# %%
axes = pyplot.figure(figsize=(5, 4.6), layout="constrained").add_subplot()
axes.imshow(np.where(distances < 8, 0.4, 0), cmap="Greys", vmin=0, vmax=1, extent=(0.5, 64.5, 64.5, 0.5))
is_contact = distances[first, second] < 8
for name, chosen in (("in contact", is_contact[:25]), ("not in contact", ~is_contact[:25])):
    axes.scatter(second[:25][chosen] + 1, first[:25][chosen] + 1, s=22, label=name)
axes.set(xlabel="Residue", ylabel="Residue", title="1SRL and pairs that change together")
legend = axes.legend(loc="lower left")

# %% [markdown]
# In numbers: one in ten of all these pairs touches, but most of the ten with the highest values do. The first networks
# for structure prediction were given such a map. AlphaFold 2 reads the alignment itself and finds more in it.

# %%
counts = np.arange(1, 101)
lines(
    {"highest values": is_contact[:100].cumsum() / counts, "all pairs": np.full(100, is_contact.mean())},
    "in contact (0 to 1)",
    along=counts,
    along_label="Pairs with the highest values",
    most=1,
)

# %% [markdown]
# ## The template
#
# Template features have the atoms of the relative at the residues of Src that they are aligned to. The distances of
# C-alpha atoms show how similar both structures are, and where the template says nothing (white).

# %%
positions, mask = features.template_all_atom_positions[0, :, 1], features.template_all_atom_masks[0, :, 1]
copied = np.where(mask[:, None] > 0, positions, np.nan)
true = np.where(experiment.atom_mask[:, 1:2] > 0, experiment.atom_positions[:, 1], np.nan)
spans = {name: np.linalg.norm(points[:, None] - points, axis=-1) for name, points in (("1SHG", copied), ("1SRL", true))}
maps(spans, "C-alpha distance (Å)", most=30)

# %% [markdown]
# ## What a network reads
#
# In each recycling iteration, a network reads a random sample of these arrays: some rows become cluster centres with
# the profile of their cluster (`msa_feat`, 49 channels), others "extra" rows, and some letters are masked. The model's
# settings limit the numbers of rows, here of the demonstration model. Other numbers than (0, 0), seed and iteration,
# give another sample.

# %%
model = preset("small")
sample = draw(model_input(features, model), model, (0, 0))
{name: each.shape for name, each in vars(sample).items() if isinstance(each, np.ndarray)}

# %% [markdown]
# ## Next
#
# - Your own alignment: `Target(name=..., sequence=..., alignments=(Path("my.a3m"),))`.
# - `prediction.features` are the features that a prediction was made from; `prediction.plot_coverage()` draws them.
# - [Notebook 4](4_inside_the_evoformer.ipynb) looks into the network.
