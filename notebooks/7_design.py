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
# # 7. Design a sequence for a backbone
#
# **Aim:** turn the network around: given a backbone, find a sequence that the network folds into it, and check the
# result against controls.
#
# **Time:** about 20 s on two cores of an AMD EPYC.
#
# A network is a function of its input that can be differentiated. In training, gradients change the parameters. In
# design the parameters stay, and gradients change the probabilities of the 20 amino acids at each position. The method
# is ColabDesign's ([Wicky et al. 2022](https://doi.org/10.1126/science.add1964)).
#
# **The demonstration model is too weak to design proteins with.** It shows how a design proceeds; for real ones, use
# DeepMind's parameters and `helixfold design`.

# %%
from dataclasses import replace

import torch
from matplotlib import pyplot

import helixfold
from data_pipeline.parse.structures import read_structure
from data_pipeline.residues import RESTYPES
from data_pipeline.structure import protein_from_chains
from helixfold.analysis import metrics
from helixfold.apps.design.check import control_designs
from helixfold.apps.design.designer import Designer, design
from helixfold.apps.design.options import DesignOptions
from helixfold.apps.design.task import fixed_backbone
from helixfold.report.notebook.pictures import lines, maps
from helixfold.report.notebook.structures import show_together
from helixfold.results.prediction import structure_distances

torch.set_num_threads(1)  # two threads are slower for so small a protein
model = helixfold.load_model("small")

# %% [markdown]
# ## The task
#
# The backbone is a peptide of 21 residues: a strand, a turn and a helix. All amino acids are free. The loss `dgram` is
# small if the network's distogram has the distances of the backbone.

# %%
(backbone,) = read_structure(helixfold.example_file("strand_helix.pdb")).chains
task = fixed_backbone(backbone, name="strand_helix")
{name: loss.weight for name, loss in task.losses.items()}

# %% [markdown]
# ## Optimise
#
# A design has three stages, as in ColabDesign: unbounded numbers become probabilities, the probabilities become
# sharper, and in the end each residue has one amino acid. A real design takes 100 steps or more.

# %%
options = DesignOptions(logits_steps=12, soft_steps=6, hard_steps=2)
trajectories = []
(best,) = design(task, [model], options, report=lambda number, trajectory: trajectories.append(trajectory))
print("designed:", best.sequences["A"])
print("backbone:", backbone.sequence)

# %%
losses = best.trajectory.losses
lines(
    {"dgram": [each["dgram"] for each in losses]},
    "distogram loss (nats)",
    along=range(1, len(losses) + 1),
    along_label="Step",
)

# %% [markdown]
# The numbers behind the probabilities (logits) after some of the steps: red amino acids are preferred. Strands like V,
# I and T; helices like A, E, K and L; turns like G, D and N. What the network learnt about that is now in the sequence.

# %%
panels = pyplot.figure(figsize=(10, 3.4), layout="constrained").subplots(1, 3, sharey=True)
largest = abs(trajectories[-1].numbers).max()
for axes, step in zip(panels, (1, 6, 20), strict=True):
    image = axes.imshow(trajectories[step - 1].numbers.T, "RdBu_r", vmin=-largest, vmax=largest, aspect="auto")
    axes.set(title=f"step {step}", xlabel="Residue", xticks=range(4, 21, 5), xticklabels=range(5, 22, 5))
panels[0].set_yticks(range(20), RESTYPES, fontsize=7)
panels[0].set_ylabel("Amino acid")
bar = panels[0].figure.colorbar(image, ax=panels, label="logit")

# %% [markdown]
# ## Is it any good?
#
# An optimiser finds sequences that please the network, whether they fold or not. So compare with controls that nobody
# designed: the same residues in another order, and random ones. A design that is no better than its controls is worth
# nothing. `helixfold design --check-weights` also asks a network that has not seen the design.

# %%
controls = control_designs(Designer(task, [model], options), best.sequences, 0)
for name, each in {"designed": best, **controls}.items():
    print(f"{name:9} distogram loss {each.losses['dgram']:.2f}, mean pLDDT {each.plddt.mean():.0f}")

# %% [markdown]
# The distances and the structure that the network predicts for the design, next to the backbone.

# %%
known = protein_from_chains([backbone])
maps({"backbone": structure_distances(known), "design": structure_distances(best.protein)}, "distance (Å)", most=22)

# %%
superposition = metrics.superposition(best.protein.positions_of("CA"), known.positions_of("CA"))
design_on_backbone = replace(best.protein, atom_positions=superposition.apply(best.protein.atom_positions))
show_together({"backbone": known, "design": design_on_backbone})

# %% [markdown]
# ## Next
#
# - `helixfold design` has hallucinations of any fold, parts of structures, binders and rings, and ranks many designs.
# - `from helixfold.apps.design.task import hallucination`, then `hallucination(60)`, designs without a backbone.
# - Only an experiment shows that a protein folds.
