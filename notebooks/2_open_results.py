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
# # 2. Open results that you have
#
# **Aim:** open results of ColabFold and AlphaFold DB, and explore them as predictions of helixfold.
#
# **Time:** about 10 s on two cores of an AMD EPYC.
#
# `helixfold.load_results` reads the folders of ColabFold, AlphaFold 2 and helixfold, and files of AlphaFold DB. To try
# it without a download, we first write two small folders in these formats, from predictions of the demonstration model.
# With folders of your own, skip to "Open".

# %%
import json
import tempfile
from pathlib import Path

from matplotlib import pyplot

import helixfold
from helixfold.report.notebook.pictures import lines

EXAMPLES = Path(tempfile.mkdtemp())
COLABFOLD, DATABASE = EXAMPLES / "colabfold", EXAMPLES / "alphafold_db"
COLABFOLD.mkdir()
DATABASE.mkdir()

# %% [markdown]
# ## Write a folder as ColabFold does
#
# Each rank has a PDB file, whose B-factors are pLDDT, and a JSON file with the scores. The a3m file is the alignment.
# Two seeds with dropout make two different predictions.

# %%
alignment, template = helixfold.example_file("src_sh3.a3m"), helixfold.example_file("1shg.pdb")
predictions = helixfold.predict(alignment, "small", templates=template, seeds=(0, 1), dropout=True, num_recycles=1)
(COLABFOLD / "src_sh3.a3m").write_text(alignment.read_text())
for rank, each in enumerate(predictions, start=1):
    tag = f"rank_{rank:03}_alphafold2_ptm_model_1_seed_{each.seed:03}"
    each.save_pdb(COLABFOLD / f"src_sh3_unrelaxed_{tag}.pdb")
    scores = {"plddt": each.plddt.tolist(), "ptm": each.ptm, "pae": each.pae.tolist(), "max_pae": each.max_pae}
    (COLABFOLD / f"src_sh3_scores_{tag}.json").write_text(json.dumps(scores))

# %% [markdown]
# ## Write files as AlphaFold DB does
#
# The database has an mmCIF file and a JSON file with the PAE for each entry. `AF-P00523-F1` is its name for chicken
# Src.

# %%
predictions[0].save_cif(DATABASE / "AF-P00523-F1-model_v4.cif")
predictions[0].save_pae(DATABASE / "AF-P00523-F1-predicted_aligned_error_v4.json")
sorted(path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.glob("*/*"))

# %% [markdown]
# ## Open
#
# One call opens any of these folders. Predictions come best first.

# %%
best, second = helixfold.load_results(COLABFOLD)
best

# %% [markdown]
# `best` has the methods of [notebook 1](1_predict_and_look.ipynb): `view`, `plot_plddt`, `plot_pae`, `score_against`,
# `save_pdb`. The note tells which program made it. What a program does not write is `None`, such as the distogram.

# %%
best.view()

# %% [markdown]
# ## Compare the ranks
#
# Where predictions with different seeds disagree, the network is not sure. So the lDDT between two ranks is another
# estimate of what pLDDT estimates; here it is 100 where both have the same distances to all neighbours.

# %%
lines(
    {"pLDDT": best.plddt, "lDDT of the ranks": 100 * second.residue_lddt(best)},
    "pLDDT, lDDT (0 to 100)",
    most=100,
)

# %%
figure, panels = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
for each, axes in zip((best, second), panels, strict=True):
    each.plot_pae(axes)

# %%
print(second.score_against(best))
second.view(best)

# %% [markdown]
# ## The alignment
#
# ColabFold writes its alignment as an a3m file. Each row of the plot is a sequence, coloured by how similar it is to
# Src; gaps are white. The line counts the rows that cover a position. Few rows mean that the network has little to
# read.

# %%
axes = best.plot_coverage()

# %% [markdown]
# ## AlphaFold DB
#
# The same call opens an entry of the database: put the mmCIF file and its PAE file into one folder. AlphaFold DB does
# not store pTM.

# %%
(entry,) = helixfold.load_results(DATABASE)
print(entry, entry.ptm)
axes = entry.plot_pae()

# %% [markdown]
# ## Next
#
# - `helixfold report FOLDER` in a terminal writes a page with the structure, PAE and alignment for any of these
#   folders.
# - A folder with several targets needs a name: `helixfold.load_results(FOLDER, target="src_sh3")`.
# - [Notebook 3](3_features_and_msa.ipynb) looks at what a network reads.
