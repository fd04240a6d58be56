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
# # Fold proteins on a free GPU
#
# Predict structures of proteins and complexes on Google Colab with AlphaFold 2's parameters. Choose Runtime > Change
# runtime type > T4 GPU, fill in the forms, and choose Runtime > Run all. Cell 7 prints how much memory and time the run
# needs before it starts. A cell that fails stops all cells below it.
#
# After you change a form, run its cell and all cells below it again. Each set of inputs has a directory of its own, so
# that the cells below never show results of other inputs, and finished predictions are not computed twice.

# %% cellView="form"
# @title 1. Install
# @markdown - PyTorch and NumPy stay as they are on the host. Nothing is installed if helixfold is there already.
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

# %% cellView="form"
# @title 2. Check the GPU
# @markdown - Without a GPU, `cuda` is an error. On `cpu`, short proteins take minutes, and long ones hours.
device = "cuda"  # @param ["cuda", "cpu"]

from helixfold.cli.main import main
from helixfold.execution.device import pick_device, settled_dtype
from helixfold.ops.device_properties import properties_of


def helixfold(*words: str) -> None:
    """Run a command of helixfold. If it fails, raise an error, which also stops the cells below."""
    if code := main(list(words)):
        raise RuntimeError(f"helixfold {words[0]} failed with exit code {code}; the reason is printed above this error")


gpu = properties_of(pick_device(device))
print(f"{gpu.name}: {gpu.memory / 2**30:.0f} GiB of memory, computes in {settled_dtype('auto', gpu)} by default")

# %% cellView="form"
# @title 3. Sequences
# @markdown - One letter for each amino acid; `:` between the chains of a complex, `,` between targets.
# @markdown - `upload`: this cell asks for FASTA files, tables (`id,sequence`) or a3m alignments instead.
job_name = "ubiquitin"  # @param {type: "string"}
sequence = "MQIFVKTLTGKTITLEVEPSDTIENVKAKIQDKEGIPPDQQRLIFAGKQLEDGRTLSDYNIQKESTLHLVLRLRGG"  # @param {type: "string"}
sequences_from = "form"  # @param ["form", "upload"]

from hashlib import sha256

from data_pipeline.features.complexes.target_files import read_targets
from data_pipeline.parse.fasta import directory_name
from helixfold.report.page import counted


def stored(contents: dict[str, bytes]) -> list[Path]:
    """Write files into a directory that is named after their contents; return their paths."""
    directory = Path("inputs", sha256(repr(sorted(contents.items())).encode()).hexdigest()[:12])
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (directory / name).write_bytes(content)
    return [directory / name for name in sorted(contents)]


def uploaded(what: str) -> list[Path]:
    """Ask for files and store them; raise FileNotFoundError if none are chosen."""
    from google.colab import files  # noqa: PLC0415 (only Colab has it)

    print(f"Choose {what}:")
    contents = files.upload()
    for name in contents:
        Path(name).unlink(missing_ok=True)  # else Colab renames the next file of this name
    if not contents:
        raise FileNotFoundError(f"no {what} were uploaded; run this cell again")
    return stored(contents)


sequence_files = None  # so that no later cell uses earlier ones, should this cell fail
if sequences_from == "upload":
    sequence_files = uploaded("sequences")
else:
    typed, name = sequence.split(","), directory_name(job_name)
    names = [name] if len(typed) == 1 else [f"{name}_{index}" for index in range(1, len(typed) + 1)]
    fasta = "".join(f">{name}\n{each}\n" for name, each in zip(names, typed, strict=True))
    sequence_files = stored({"sequences.fasta": fasta.encode()})
targets = read_targets(sequence_files)
for target in targets:
    chains = target.sequence.split(":")
    print(f"{target.name}: {sum(map(len, chains)):,} residues in {counted(len(chains), 'chain')}")

# %% cellView="form"
# @title 4. Alignment and templates
# @markdown - `mmseqs2` **sends the sequences to a server**. ColabFold's public server is a shared resource.
# @markdown - `single_sequence`: no search; predictions are seldom good.
# @markdown - `upload`: this cell asks for a3m files, with any name for one target and `<target>.a3m` for several.
# @markdown - Upload the a3m of a complex under 3.
alignment = "mmseqs2_uniref_env"  # @param ["mmseqs2_uniref_env", "mmseqs2_uniref", "single_sequence", "upload"]
server = "https://api.colabfold.com"  # @param {type: "string"}
# @markdown - Rows of complexes: paired by species, unpaired, or both. `complete` pairs only species of all chains.
pair_mode = "unpaired_paired"  # @param ["unpaired_paired", "paired", "unpaired"]
pair_strategy = "greedy"  # @param ["greedy", "complete"]
# @markdown - Templates: those that the server finds, or your own PDB or mmCIF files (`upload`).
templates = "none"  # @param ["none", "server", "upload"]
max_template_date = ""  # @param {type: "date"}

alignment_files = template_files = None  # so that no later cell uses earlier ones, should this cell fail
alignment_files = uploaded("a3m files") if alignment == "upload" else []
template_files = uploaded("template structures") if templates == "upload" else []

# %% cellView="form"
# @title 5. Models and sampling
# @markdown - `auto`: `multimer_v3` if a target is a complex, else `ptm`. `small`: the package's demonstration model.
# @markdown - The first `num_models` of the five models predict, and their predictions are ranked.
model_type = "auto"  # @param ["auto", "ptm", "monomer", "multimer_v3", "multimer_v2", "multimer_v1", "small"]
num_models = 5  # @param [1, 2, 3, 4, 5] {type: "raw"}
# @markdown - `auto`: 3 recycles; 20 with `multimer_v3`, until distances change by less than 0.5 Å (the tolerance).
num_recycles = "auto"  # @param ["auto", "0", "1", "3", "6", "12", "24", "48"] {allow-input: true}
recycle_tolerance = "auto"  # @param ["auto", "0", "0.5", "1"] {allow-input: true}
# @markdown - Several seeds, with dropout or with fewer alignment rows, show where the models are uncertain.
num_seeds = 1  # @param [1, 2, 4, 8, 16] {type: "raw", allow-input: true}
seed = 0  # @param {type: "integer"}
dropout = False  # @param {type: "boolean"}
max_msa_rows = "auto"  # @param ["auto", "512", "256", "64", "32", "16"] {allow-input: true}
max_extra_rows = "auto"  # @param ["auto", "1024", "512", "128", "64", "32"] {allow-input: true}
# @markdown - `auto`: bfloat16 where the GPU has it, and float32 on a T4.
dtype = "auto"  # @param ["auto", "float32", "float16", "bfloat16"]

# %% cellView="form"
# @title 6. Relaxation and files
models_to_relax = "none"  # @param ["none", "best", "all"]
save_recycles = False  # @param {type: "boolean"}
save_logits = False  # @param {type: "boolean"}
# @markdown - `colabfold`: write files with ColabFold's names, too.
output_format = "helixfold"  # @param ["helixfold", "colabfold"]
# @markdown - On Google Drive, results outlast this session, and the same forms continue an unfinished run.
save_to_google_drive = False  # @param {type: "boolean"}

import json

from data_pipeline.features.complexes.complex_input import ComplexInput
from helixfold.report.load import load_results, results_in

if save_to_google_drive:
    from google.colab import drive

    drive.mount(str(Path("drive").resolve()))


def models() -> list[str]:
    """The names of the models."""
    has_complex = any(isinstance(target, ComplexInput) for target in targets)
    chosen = model_type if model_type != "auto" else "multimer_v3" if has_complex else "ptm"
    suffix = {"monomer": "", "multimer_v1": "_multimer"}.get(chosen, f"_{chosen}")
    return ["small"] if chosen == "small" else [f"model_{index}{suffix}" for index in range(1, num_models + 1)]


# Fields that are options of `helixfold predict`, with the same names.
SAME = """pair_mode pair_strategy max_template_date num_recycles recycle_tolerance num_seeds seed dropout max_msa_rows
    max_extra_rows dtype models_to_relax save_recycles save_logits output_format device"""


def words() -> list[str]:
    """The words of the command: files whose paths depend on their contents, the last one with all options."""
    options = {name: globals()[name] for name in SAME.split()} | {
        "models": models(),
        "msa_mode": "auto" if alignment == "upload" else alignment,
        "msa_server": server if alignment.startswith("mmseqs2") else "",
        "msa": sorted({str(path if len(targets) == 1 else path.parent) for path in alignment_files}),
        "templates": [str(path) for path in template_files] if templates != "none" else "",
    }
    lines = [
        f"{name} = {json.dumps(value, ensure_ascii=False)}\n"
        for name, value in options.items()
        if value not in ("auto", "")
    ]
    return [*map(str, sequence_files), "--config", str(*stored({"options.toml": "".join(lines).encode()}))]


def results() -> Path:
    """The directory of the results, whose name ends with a hash of the inputs."""
    digest = sha256(repr(words()).encode()).hexdigest()[:8]
    return Path(
        "drive/MyDrive/helixfold" if save_to_google_drive else "predictions", f"{directory_name(job_name)}_{digest}"
    )


def item(field: str, values: list, number: int):
    """The item of a number from 1; raise ValueError if there are fewer."""
    if not 1 <= number <= len(values):
        raise ValueError(f"{field} must be 1 to {len(values)}, got {number}")
    return values[number - 1]


print(results())

# %% cellView="form"
# @title 7. Download the parameters, and estimate memory and time
# @markdown - AlphaFold 2's parameters are 373 MB for each model (DeepMind, CC BY 4.0).
# @markdown - `<=`: at most so many rows, because the search is still to come.
# @markdown - This cell fails if a target does not fit into memory.
if model_type != "small":
    helixfold("weights", "download", "--models", *models())
helixfold("predict", *words(), "--output", str(results()), "--dry-run")

# %% cellView="form"
# @title 8. Predict
# @markdown - A bar counts the recycling iterations of each prediction that takes over two seconds.
# @markdown - Predictions are ranked by mean pLDDT, and predictions of complexes by 0.8 ipTM + 0.2 pTM.
helixfold("predict", *words(), "--output", str(results()))
for name in results_in(results()):
    for rank, prediction in enumerate(load_results(results(), name), start=1):
        print(f"{name}, rank {rank}: {prediction!r}")

# %% cellView="form"
# @title 9. Look at a structure { run: "auto" }
# @markdown - Turn it with the mouse.
# @markdown - `plddt`: dark blue from 90, light blue from 70, yellow from 50, orange below; do not rely on orange parts.
# @markdown - `rainbow`: from blue at the first residue to red at the last.
target_number = 1  # @param {type: "integer"}
rank_number = 1  # @param {type: "integer"}
color = "plddt"  # @param ["plddt", "chain", "rainbow"]
side_chains = False  # @param {type: "boolean"}

name = item("target_number", [*results_in(results())], target_number)
prediction = item("rank_number", load_results(results(), name), rank_number)
print(f"{name}, rank {rank_number}: {prediction!r}", *prediction.notes, sep="\n")
prediction.view(color=color, side_chains=side_chains)

# %% cellView="form"
# @title 10. Plots of the target under 9
# @markdown - Coverage: below about 30 rows, predictions are much less accurate.
# @markdown - pLDDT: 0 to 100 for each residue, of all predictions.
# @markdown - PAE: a light area between two dark blocks means that their relative position is uncertain.
# @markdown - Models of type `monomer` predict no PAE.
from IPython.display import Image, display

directory = results() / item("target_number", [*results_in(results())], target_number)
for file in ("coverage.png", "plddt.png", "pae.png"):
    if (directory / file).is_file():
        display(Image(filename=str(directory / file)))

# %% cellView="form"
# @title 11. Download the results
# @markdown - One archive of all targets, each with `report.html`, a page that needs no network.
import shutil

print(counted(len(results_in(results())), "target"))
archive = shutil.make_archive(str(results()), "zip", results().parent, results().name)
print(archive)
if importlib.util.find_spec("google") and importlib.util.find_spec("google.colab"):
    from google.colab import files

    files.download(archive)
