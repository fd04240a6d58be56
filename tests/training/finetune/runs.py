"""Small fine-tunings that tests share, as the command line asks for them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from data_pipeline.sampling.sample import SamplingConfig
from helixfold.model.presets import Preset
from helixfold.results.training_log import read_log
from helixfold.training.checkpoint_files import checkpoint_steps, read_manifest
from tests.training.runs import MODEL

PRESET = Preset(
    name="minute",
    model=MODEL,
    sampling=SamplingConfig(
        max_msa_clusters=4, max_extra_msa=4, max_templates=1, target_as_extra=True, masked_msa_fraction=0.0
    ),
    num_recycles=1,
)
SETTINGS = (
    *("example.crop_size=8", "batch_size=2", "save_every=2", "optimizer.warmup_steps=1"),
    *("evaluation.every=2", "evaluation.max_residues=12", "evaluation.num_recycles=0"),
    *(f"recompute.{part}=none" for part in ("evoformer", "extra_msa", "template", "structure")),
)


def words(training_set: Path, weights: Path, output: Path, *more: object, steps: int = 4) -> list[str]:
    """The words of a fine-tuning of few short steps."""
    settings = [f"--set={setting}" for setting in SETTINGS]
    given = [f"--weights={weights}", f"--output={output}", "--device=cpu", f"--steps={steps}"]
    return [str(training_set), *given, *settings, *map(str, more)]


def result(directory: Path) -> dict[str, Any]:
    """Everything that a fine-tuning came to, down to the last bit; times and memory differ from run to run."""
    done = max(checkpoint_steps(directory / "checkpoints"))
    files = [*sorted((directory / "checkpoints" / f"step_{done:08d}").glob("*.safetensors")), *adapters(directory)]
    log = read_log(directory / "log.jsonl")
    return {
        "record": read_manifest(directory / "checkpoints", done).record,
        "tensors": {path.name: {name: each.tobytes() for name, each in load_file(path).items()} for path in files},
        "steps": [(step.step, step.losses, step.gradient_norm, step.names) for step in log.steps],
        "evaluations": [(each.step, each.summary) for each in log.evaluations],
        "result": (directory / "finetuning.json").read_text(),
    }


def adapters(directory: Path) -> Sequence[Path]:
    """The files of weights of a fine-tuning."""
    own = directory / "adapter.safetensors"
    return [*sorted((directory / "weights").glob("*.safetensors")), *([own] if own.exists() else [])]


def jobs_file(path: Path, training_set: Path, held_out: Path, jobs: Sequence[str]) -> Path:
    """Write a file of fine-tunings, each a few lines of TOML, that share a training set and short settings."""
    settings = ", ".join(f'"{setting}"' for setting in SETTINGS)
    text = f'[defaults]\ntraining_set = "{training_set}"\nheld_out = "{held_out}"\nsteps = 2\nsettings = [{settings}]\n'
    path.write_text(text + "".join(f"\n[[job]]\n{job}\n" for job in jobs))
    return path
