"""Small seeded runs of all commands: what each is called, its command lines, and its files."""

import shutil
from collections.abc import Callable
from pathlib import Path

from tests.inventory.commands import Run

SEQUENCE = "MKTAYIAKQR"
FASTA = f">good\n{SEQUENCE}\n".encode()
TWO = FASTA + b">other\nGSHMAEQLKN\n"
HELIX = b">helix_short\nSAEEAAKALAEAAKALAAGA\n"  # examples/structures/helix_short.pdb
DIMER = b">dimer\nMKTAYIAK:GSHMAEQL\n"
A3M = (
    f">good\n{SEQUENCE}\n>r1\nMKTAYIAKQK\n>r2\nMKSAYIVKQR\n>r3\nMKSAYLVKQR\n>r4\nMRSAYLVKER\n>r5\nMRTGYLVKE-\n".encode()
)
TABLE = b"id,sequence\nfirst,MKTAYIAKQR\nsecond,GSHMAEQL:KNMKTAYI\n"
MUTATIONS = b"mutation\nM1A\nK2A,T3G\n"
VALUES = "name,sequence,value\n" + "".join(
    f"v{number},{SEQUENCE[number % 5 :]}GSHMAE,{number % 2}\n" for number in range(12)
)
SITE = b"[search]\n[fold.small]\nmemory = '2GiB'\n"
KUBERNETES = (
    b"[fold.pods]\nprovider = 'kubernetes'\nmemory = '4GiB'\ncores = 2\nimage = 'registry/helixfold:1'\nqueue = 'lab'\n"
    b"volumes = ['data:/data']\n"
)
JOBS = (
    b"[defaults]\ntraining_set = 'peptides'\nsteps = 1\nsettings = ['example.crop_size=8', 'batch_size=1']\n"
    b"[[job]]\nname = 'first'\n[[job]]\nname = 'second'\nadapter = 'heads'\n"
)
# Kills one rank of a prediction that several ranks share, as a system does whose memory is used up: the second process
# ends at its first calculation.
KILLED_RANK = b"""
import os, signal, sys
if os.environ.get("RANK") == "1":
    def patch(event, arguments):
        torch = sys.modules.get("torch")
        if event == "open" and hasattr(torch, "nn") and hasattr(torch.nn, "Module") and not hasattr(torch, "killing"):
            torch.killing = True
            call = torch.nn.Module.__call__
            def killing(module, *arguments, **named):
                tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
                if tensors and all(each.device.type == "cpu" for each in tensors):
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(module, *arguments, **named)
            torch.nn.Module.__call__ = killing
    sys.addaudithook(patch)
"""
OLD_WEIGHTS = "earlier/0.1/weights.safetensors"
PREDICT = "predict --models tiny --num-recycles 1 --device cpu --output out"
COMPLEX = "predict --models tiny_multimer --num-recycles 1 --device cpu --output out"
TRAIN = (
    "train peptides --output run --device cpu --set steps=2 --set example.crop_size=8 --set batch_size=1 "
    "--set save_every=1 --set evaluation.every=2 --held-out examples/structures/held_out.txt"
)
FINETUNE = "--output tuned --device cpu --steps 2 --set example.crop_size=8 --set batch_size=1"
STEPS = "--logits-steps 1 --soft-steps 1 --hard-steps 1 --device cpu --models tiny --output out"


def damage(name: str, content: bytes = b'{"plddt": [1, 2') -> Callable[[Path], object]:
    """Return the change of a file, found by its name anywhere below the folder, to other content."""
    return lambda folder: next(folder.rglob(name)).write_bytes(content)


def remove(name: str) -> Callable[[Path], object]:
    """Return the removal of a file, found by its name anywhere below the folder."""
    return lambda folder: next(folder.rglob(name)).unlink()


def copy_of(name: str) -> Callable[[Path], object]:
    """Return what copies a file or directory that version 0.1 wrote."""
    source = Path(__file__).parents[1] / "earlier_versions/0.1" / name
    return lambda path: (shutil.copytree if source.is_dir() else shutil.copyfile)(source, path)


RUNS = (
    # Predictions of single chains.
    Run(name="predict", steps=(f"{PREDICT} x.fasta",), files={"x.fasta": FASTA}),
    Run(name="dry run", steps=(f"{PREDICT} x.fasta --dry-run",), files={"x.fasta": TWO}, says=("good", "other")),
    Run(
        name="everything saved",
        steps=(
            f"{PREDICT} x.a3m --save-logits --save-recycles --save-representations msa_first_row single pair structure "
            "--num-seeds 2 --log-file log.txt --progress json --output-format colabfold",
        ),
        files={"x.a3m": A3M},
    ),
    Run(
        name="safetensors and ensemble",
        steps=(
            f"{PREDICT} x.a3m --save-representations single --representations-format safetensors --num-ensemble 2 "
            "--dropout --max-msa-rows 4 --max-extra-rows 2 --recycle-tolerance 0.5 --slim",
        ),
        files={"x.a3m": A3M},
    ),
    Run(name="table and zip", steps=(f"{COMPLEX} x.csv --zip",), files={"x.csv": TABLE}),
    Run(name="slim and zip", steps=(f"{PREDICT} x.fasta --slim --zip",), files={"x.fasta": FASTA}),
    Run(
        name="example and demonstration model",
        steps=("predict --example --num-recycles 0 --device cpu --output out --slim --models-to-relax none",),
    ),
    Run(
        name="templates and initial guess",
        steps=(
            f"{PREDICT} h.fasta --templates examples/structures/helix_short.pdb --initial-guess "
            "examples/structures/helix_short.pdb --slim",
        ),
        files={"h.fasta": HELIX},
    ),
    Run(
        name="database search",
        steps=(
            f"{PREDICT} x.fasta --database d.fasta --slim",
            "features x.fasta --databases p.toml --output features",
        ),
        files={
            "x.fasta": FASTA,
            "d.fasta": A3M.replace(b"-", b""),
            "p.toml": b"[[alignments]]\nname = 'd'\ntool = 'jackhmmer'\npath = 'd.fasta'\nmax_rows = 4\n",
        },
    ),
    Run(
        name="features then predict",
        steps=("features x.fasta", f"{PREDICT} --features features --slim"),
        files={"x.fasta": TWO},
    ),
    Run(
        name="cluster-msa",
        steps=(
            f"{PREDICT} x.a3m --cluster-msa --cluster-eps 2 --cluster-min-samples 2 "
            "--reference earlier/0.1/predictions/peptide/ranked_0.pdb",
        ),
        files={"x.a3m": A3M},
    ),
    Run(
        name="masked and subsampled",
        steps=(f"{PREDICT} x.a3m --mask-columns 2-3 --mask-window 5:5 --subsample-msa 2:2 --slim",),
        files={"x.a3m": A3M},
    ),
    Run(name="cyclic", steps=(f"{PREDICT} x.fasta --cyclic --slim",), files={"x.fasta": FASTA}),
    Run(name="several at once", steps=(f"{PREDICT} x.fasta --targets-at-once 2 --slim",), files={"x.fasta": TWO}),
    # Complexes.
    Run(name="complex", steps=(f"{COMPLEX} x.fasta --chain-ids H L",), files={"x.fasta": DIMER}),
    Run(
        name="pulldown",
        steps=(f"{COMPLEX} --pulldown bait.fasta prey.fasta --slim",),
        files={"bait.fasta": FASTA, "prey.fasta": b">p\nGSHMAEQL\n>q\nAEQLKNMK\n"},
    ),
    # Executors, ranks, runs that share a directory, and runs that end too early.
    Run(name="slabs", steps=(f"{PREDICT} x.fasta --executor slabs --slim",), files={"x.fasta": FASTA}),
    Run(name="spilled", steps=(f"{PREDICT} x.fasta --executor spilled --slim",), files={"x.fasta": FASTA}),
    Run(
        name="out of memory",
        steps=(f"[out of memory] {PREDICT} x.fasta --slim",),
        files={"x.fasta": FASTA},
        says=("out of memory", "slabs"),
    ),
    Run(
        name="two ranks",
        steps=(f"{PREDICT} x.fasta --devices 2 --ranks-per-target 2 --slim",),
        files={"x.fasta": FASTA},
    ),
    Run(
        name="a killed rank",
        steps=(f"{PREDICT} x.fasta --devices 2 --ranks-per-target 2 --slim",),
        files={"x.fasta": FASTA, "sitecustomize.py": KILLED_RANK},
        says=("process 1 was ended from outside (signal 9)",),
    ),
    Run(
        name="shared after a kill",
        steps=(
            f"[kill ranking_debug.json] {PREDICT} x.fasta --shared --slim",
            f"{PREDICT} x.fasta --shared --slim",
        ),
        files={"x.fasta": TWO},
    ),
    Run(
        name="shards",
        steps=(f"{PREDICT} x.fasta --shard 0/2 --slim", f"{PREDICT} x.fasta --shard 1/2 --slim"),
        files={"x.fasta": TWO},
    ),
    Run(
        name="interrupted and resumed",
        steps=(f"[interrupt confidence_tiny] {PREDICT} x.fasta", f"{PREDICT} x.fasta --slim"),
        files={"x.fasta": FASTA},
        says=("interrupted",),
    ),
    Run(
        name="interrupted imports",
        steps=("[import torch] predict x.fasta --models tiny",),
        files={"x.fasta": FASTA},
        says=("interrupted", "Traceback"),
    ),
    Run(
        name="closed pipe",
        steps=(
            "[closed pipe] predict --help",
            "[closed pipe] weights inspect earlier/0.1/weights.safetensors --arrays",
        ),
    ),
    Run(
        name="finished before",
        after="predict",
        steps=(
            f"{PREDICT} x.fasta",
            f"{PREDICT} x.fasta --num-recycles 0",
            f"{PREDICT} x.fasta --num-recycles 0 --keep-existing",
            f"{PREDICT} x.fasta --num-recycles 0 --overwrite --slim",
        ),
    ),
    Run(
        name="damaged results",
        after="predict",
        steps=(
            damage("confidence_tiny.json"),
            "report out",
            remove("ranking_debug.json"),
            f"{PREDICT} x.fasta",
            "report out --reference earlier/0.1/predictions/peptide/ranked_0.pdb",
            damage("settings.json"),
            f"{PREDICT} x.fasta",
        ),
    ),
    Run(
        name="cluster",
        steps=("predict x.fasta --models tiny --num-recycles 0 --output out --slim --cluster site.toml", "status out"),
        files={"x.fasta": TWO, "site.toml": SITE},
    ),
    Run(
        name="kubernetes",
        steps=(
            "predict x.fasta --models tiny --output out --cluster site.toml --dry-run",
            "predict x.fasta --models tiny --output out --cluster site.toml",
        ),
        files={"x.fasta": FASTA, "site.toml": KUBERNETES},
        says=("pods", "kubernetes"),
    ),
    # What is done with predictions.
    Run(
        name="compare and evaluate",
        after="finished before",
        steps=(
            "compare out/good earlier/0.1/predictions/peptide --json",
            "compare out/good out/good",
            "evaluate --benchmark b.tsv --output bench --models tiny --num-recycles 0 --device cpu",
            "evaluate bench/predictions examples/structures/helix_short.pdb --all-ranks",
        ),
        files={
            "b.tsv": b"id\tsequence\treferences\nhelix\tSAEEAAKALAEAAKALAAGA\texamples/structures/helix_short.pdb\n"
        },
    ),
    Run(name="relax", steps=("relax examples/structures/helix_short.pdb --max-rounds 1 --device cpu",)),
    Run(
        name="score",
        steps=(
            "score examples/structures/helix_short.pdb examples/structures/hairpin_short.pdb --model tiny --device cpu "
            "--save-structures --num-recycles 0 --reference examples/structures/helix_short.pdb",
        ),
    ),
    Run(name="score again", after="predict", steps=("score --rescore out --model tiny --device cpu --num-recycles 0",)),
    Run(
        name="score binders",
        steps=(
            "score --binders examples/complexes/helix_and_polyproline.cif --model tiny_multimer --device cpu "
            "--num-recycles 0",
        ),
    ),
    Run(
        name="scan",
        steps=(
            "scan x.a3m --positions 2-3 --to AG --likelihoods --save-structures --model tiny --device cpu "
            "--num-recycles 0",
        ),
        files={"x.a3m": A3M},
    ),
    Run(
        name="scan a table",
        steps=("scan x.fasta --table m.csv --model tiny --device cpu --num-recycles 0",),
        files={"x.fasta": FASTA, "m.csv": MUTATIONS},
    ),
    # Designs.
    Run(name="design hallucination", steps=(f"design hallucination --length 8 --cyclic {STEPS}",)),
    Run(name="design fixbb", steps=(f"design fixbb examples/structures/hairpin_short.pdb --fixed 1-2 {STEPS}",)),
    Run(name="design partial", steps=(f"design partial examples/structures/hairpin_short.pdb --keep 2-4 {STEPS}",)),
    Run(name="design binder", steps=(f"design binder examples/structures/helix_short.pdb --length 6 {STEPS}",)),
    # Training sets, training, fine-tuning.
    Run(
        name="training set",
        steps=(
            "features --structures examples/structures --output peptides --workers 1 --hold-out 0.2",
            "features --structures examples/complexes --assemblies --output complexes --workers 1",
        ),
    ),
    Run(
        name="train",
        after="training set",
        steps=(
            TRAIN,
            TRAIN.replace("steps=2", "steps=3"),
            "train --show-settings",
            "train --dry-run --device a100",
            "train peptides --output recipe --recipe small --stages 1 --show-settings",
        ),
    ),
    Run(
        name="training interrupted and resumed",
        after="training set",
        steps=(f"[interrupt step_00000001] {TRAIN}", TRAIN),
    ),
    Run(
        name="damaged store",
        after="training set",
        steps=(
            lambda folder: (folder / "peptides/features.lmdb").write_bytes(
                (folder / "peptides/features.lmdb").read_bytes()[:5000]
            ),
            TRAIN,
        ),
    ),
    Run(
        name="finetune",
        after="train",
        steps=(
            f"finetune peptides --weights weights.safetensors {FINETUNE} --held-out examples/structures/held_out.txt",
            "predict x.fasta --weights weights.safetensors --adapter tuned/adapter.safetensors --num-recycles 0 "
            "--device cpu --output out --slim",
            "finetune --dry-run --weights weights.safetensors --device cpu",
            "finetune --show-settings --weights weights.safetensors",
            "finetune --jobs jobs.toml --weights weights.safetensors --output many --device cpu",
        ),
        files={
            "weights.safetensors": copy_of("weights.safetensors"),
            "x.fasta": FASTA,
            "jobs.toml": JOBS,
        },
    ),
    Run(
        name="finetune values",
        steps=(f"finetune --table v.csv --task regression --head single --weights {OLD_WEIGHTS} {FINETUNE}",),
        files={"v.csv": VALUES.encode()},
    ),
    Run(
        name="weights",
        steps=(
            "weights inspect earlier/0.1/weights.safetensors --arrays",
            "weights convert earlier/0.1/weights.safetensors w.npz",
            "weights convert earlier/0.1/weights.safetensors half.safetensors --dtype bfloat16",
            "weights verify earlier/0.1/weights.safetensors --own",
        ),
    ),
    Run(
        name="plan, benchmark, doctor, databases",
        steps=(
            "plan --hardware a100x128 --layouts",
            "plan --published-steps",
            "benchmark ops --preset tiny --residues 8 --rows 4 --extra-rows 4 --repeats 1 --dtypes float32 "
            "--json ops.json",
            "benchmark block --preset tiny --residues 8 --rows 4 --repeats 1 --dtypes float32 --json block.json",
            "doctor --json --length 16",
            "databases download",
            "databases check examples/databases.toml",
            "serve token create anna --data service",
            "serve token list --data service",
        ),
    ),
    # Files of version 0.1.
    Run(
        name="files of 0.1",
        steps=(
            "predict earlier/0.1/peptide.a3m --weights earlier/0.1/weights.safetensors --num-recycles 1 --threads 1 "
            "--output predictions",
            "predict --features predictions --weights earlier/0.1/weights.safetensors --num-recycles 1 --output again "
            "--slim",
            "report predictions",
            "compare predictions/peptide again/peptide",
            "score --rescore predictions --weights earlier/0.1/weights.safetensors --num-recycles 0 --device cpu",
        ),
        files={"predictions/peptide": copy_of("predictions/peptide")},
    ),
)
