# ---
# jupyter:
#   accelerator: GPU
#   colab:
#     gpuType: T4
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Fold a protein on a free GPU
#
# Run the cells from top to bottom (Runtime, Run all). By forecast, a card with 16 GB such as Colab's free T4 has room
# for chains of some 2,900 residues in float32, its default precision. We have not run it on one.
#
# **Install.** PyTorch stays as the host has it, since it suits the host's driver. Where helixfold is installed already,
# nothing is.

# %%
import importlib.metadata
import importlib.util
import subprocess
import sys
from pathlib import Path

SOURCE = "helixfold[notebooks,relax] @ git+https://github.com/OWNER/helixfold"

if importlib.util.find_spec("helixfold") is None:
    kept = [f"{name}=={importlib.metadata.version(name)}" for name in ("torch", "numpy")]
    Path("installed.txt").write_text("\n".join(kept) + "\n")
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "-c", "installed.txt", SOURCE], check=True)

# %% [markdown]
# ## What to fold
#
# One letter for each amino acid. `SERVER` is where relatives of the sequence are searched for: ColabFold's public
# server, a shared resource to which **your sequence is sent**, or another address; left empty, nothing is sent, and the
# sequence is folded alone, which is seldom good.

# %%
NAME = "ubiquitin"  # @param {type: "string"}
SEQUENCE = "MQIFVKTLTGKTITLEVEPSDTIENVKAKIQDKEGIPPDQQRLIFAGKQLEDGRTLSDYNIQKESTLHLVLRLRGG"  # @param {type: "string"}
SERVER = "https://api.colabfold.com"  # @param {type: "string"}
NUM_RECYCLES = 3  # @param {type: "integer"}
DEEPMIND = True  # @param {type: "boolean"}

# %% [markdown]
# ## Weights
#
# With `DEEPMIND`, AlphaFold 2's published parameters are fetched (373 MB, CC BY 4.0). Without, the small demonstration
# model of the package folds: good for trying this out, and for nothing else.

# %%
from helixfold.cli.main import main

main(["weights", "download"]) if DEEPMIND else "the demonstration model"

# %% [markdown]
# ## Fold
#
# The last number is the exit code: 0 if all went well.

# %%
Path("target.fasta").write_text(f">{NAME}\n{SEQUENCE}\n")
search = ["--msa-server", SERVER] if SERVER else []
main(["predict", "target.fasta", *search, "--num-recycles", str(NUM_RECYCLES), "--output", "predictions", "--zip"])

# %% [markdown]
# ## Look
#
# Turn the structure with the mouse. Dark blue is where the network is very confident, then light blue, yellow, orange.

# %%
from data_pipeline.parse.fasta import directory_name
from data_pipeline.parse.structures import read_structure
from data_pipeline.structure import protein_from_chains
from helixfold.notebook.pictures import Picture
from helixfold.notebook.structures import show_structure

directory = Path("predictions") / directory_name(NAME)
show_structure(protein_from_chains(read_structure(directory / "ranked_0.cif").chains))

# %% [markdown]
# pLDDT, from 0 to 100, says how well each residue's surroundings are predicted; below 50 read nothing into them.

# %%
Picture(png=(directory / "plddt.png").read_bytes())

# %% [markdown]
# The predicted aligned error: dark blocks are sure within themselves, light between two of them means that nobody knows
# how they lie to each other. A model without this output has no such picture.

# %%
Picture(png=(directory / "pae.png").read_bytes()) if (directory / "pae.png").exists() else "no aligned errors"

# %% [markdown]
# How many rows of the alignment cover each residue. Below about 30 rows predictions are much less accurate.

# %%
Picture(png=(directory / "coverage.png").read_bytes())

# %% [markdown]
# ## Download
#
# Everything in one archive, with `report.html`, a page that needs no network. Elsewhere than on Colab, its place is
# printed.

# %%
archive = Path("predictions") / f"{directory.name}.result.zip"
if importlib.util.find_spec("google") and importlib.util.find_spec("google.colab"):
    from google.colab import files

    files.download(str(archive))
print(archive)
