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
    installed = [f"{name}=={importlib.metadata.version(name)}" for name in ("torch", "numpy")]
    Path("installed.txt").write_text("\n".join(installed) + "\n")
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "-c", "installed.txt", SOURCE], check=True)

# %% [markdown]
# ## What to fold
#
# One letter for each amino acid. `SERVER` is where relatives of the sequence are searched for: ColabFold's public
# server, a shared resource to which **your sequence is sent**, or another address. If it is empty, nothing is sent, and
# the sequence is folded alone, which is seldom good.
#
# Each combination of these values has a directory of its own, named after their hash. So the cells below never show
# results of other values. After a change, run this cell and all cells below it again.

# %%
NAME = "ubiquitin"  # @param {type: "string"}
SEQUENCE = "MQIFVKTLTGKTITLEVEPSDTIENVKAKIQDKEGIPPDQQRLIFAGKQLEDGRTLSDYNIQKESTLHLVLRLRGG"  # @param {type: "string"}
SERVER = "https://api.colabfold.com"  # @param {type: "string"}
NUM_RECYCLES = 3  # @param {type: "integer"}
DEEPMIND = True  # @param {type: "boolean"}

import hashlib

from data_pipeline.parse.fasta import directory_name

inputs = repr((NAME, SEQUENCE, SERVER, NUM_RECYCLES, DEEPMIND))
output = Path("predictions") / hashlib.sha256(inputs.encode()).hexdigest()[:12]
directory = output / directory_name(NAME)
print(directory)

# %% [markdown]
# ## Weights
#
# With `DEEPMIND`, AlphaFold 2's published parameters are downloaded (373 MB, CC BY 4.0) and used. Without it, the small
# demonstration model of the package folds: good for trying this out, and for nothing else.

# %%
from helixfold.cli.main import main


def helixfold(*words: str) -> None:
    """Run a command of helixfold. If it fails, raise an error, which also stops the cells below."""
    if code := main(list(words)):
        raise RuntimeError(f"helixfold {words[0]} failed with exit code {code}; the reason is printed above this error")


if DEEPMIND:
    helixfold("weights", "download", "--models", "model_1_ptm")

# %% [markdown]
# ## Fold

# %%
output.mkdir(parents=True, exist_ok=True)
fasta = output / "target.fasta"
fasta.write_text(f">{NAME}\n{SEQUENCE}\n")
model = ["--models", "model_1_ptm" if DEEPMIND else "small"]
search = ["--msa-server", SERVER] if SERVER else []
recycles = ["--num-recycles", str(NUM_RECYCLES)]
helixfold("predict", str(fasta), *model, *search, *recycles, "--output", str(output), "--zip")

# %% [markdown]
# ## Look
#
# Turn the structure with the mouse. Dark blue is where the network is very confident, then light blue, yellow, orange.

# %%
from data_pipeline.parse.structures import read_structure
from data_pipeline.structure import protein_from_chains
from helixfold.report.notebook.pictures import Picture
from helixfold.report.notebook.structures import show_structure

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
archive = output / f"{directory.name}.result.zip"
if not archive.is_file():
    raise FileNotFoundError(f"{archive} does not exist; run the cell under 'Fold' until it succeeds")
if importlib.util.find_spec("google") and importlib.util.find_spec("google.colab"):
    from google.colab import files

    files.download(str(archive))
print(archive)
