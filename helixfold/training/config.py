"""Settings of a training run; every checkpoint records them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from data_pipeline.io.config import MAX_RECYCLES, MAX_SEED, Config, ConfigError, added_setting, at_least, at_most
from data_pipeline.parse.fasta import MAX_RESIDUES
from data_pipeline.sampling.training import ExampleConfig
from data_pipeline.training_sets.chain_sampling import ChainSelection
from helixfold.execution.recompute import RecomputeConfig
from helixfold.losses.config import INTERFACE_TERMS, LossConfig
from helixfold.model.config import ModelConfig
from helixfold.model.presets import Preset
from helixfold.optim.config import OptimizerConfig, OuterConfig
from helixfold.results.record import RunRecord, require_same_settings

# Settings, or groups of settings, that may change when a run resumes, because they affect only its length, memory and
# evaluations.
FREE_SETTINGS = ("steps", "save_every", "keep", "max_skipped", "evaluation", "recompute")

MAX_BATCH = 65_536  # maximum of `batch_size`, in examples; AlphaFold 2 uses 128


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(Config):
    """Settings of evaluations, which fold held-out chains during training."""

    every: Annotated[int, at_least(1)] = 1000  # steps between evaluations
    num_recycles: Annotated[int, at_least(0), at_most(MAX_RECYCLES)] = 3  # recycling iterations after the first
    # Longer chains are cropped to this length, always at the same place.
    max_residues: Annotated[int, at_least(1), at_most(MAX_RESIDUES)] = 256
    structures: Annotated[int, at_least(0)] = 4  # number of predicted structures that are written as PDB files
    # The run ends after this many evaluations in a row without a new best score; None: it never ends early.
    patience: Annotated[int | None, at_least(1)] = added_setting(None)


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(Config):
    """Settings of one training run; the defaults are AlphaFold 2's for initial training."""

    model: ModelConfig
    example: ExampleConfig = field(default_factory=ExampleConfig)
    selection: ChainSelection = field(default_factory=ChainSelection)
    loss: LossConfig = field(default_factory=LossConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    outer: OuterConfig = field(default_factory=OuterConfig)
    recompute: RecomputeConfig = field(default_factory=lambda: RecomputeConfig.everywhere("auto"))
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    # Dtype of the trunk; "auto" is chosen for the device when a run begins. Master parameters, structure module and
    # losses are float32.
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    reduction: Literal["float32", "bfloat16"] = "float32"  # dtype in which ranks exchange gradients
    batch_size: Annotated[int, at_least(1), at_most(MAX_BATCH)] = 128  # examples of one step, on all ranks together
    micro_batch: Annotated[int, at_least(1)] = 1  # examples that go through the network at once
    steps: Annotated[int, at_least(1)] = 75_000  # updates of the parameters
    seed: Annotated[int, at_least(0), at_most(MAX_SEED)] = 0  # of all random numbers
    save_every: Annotated[int, at_least(1)] = 500  # steps between checkpoints
    keep: Annotated[int, at_least(1)] = 3  # number of newest checkpoints that are kept, in addition to the best
    # The run stops after this many steps in a row with a loss or gradient that is not finite.
    max_skipped: Annotated[int, at_least(1)] = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        interface_terms = [name for name in INTERFACE_TERMS if getattr(self.loss, name) > 0]
        if self.model.method == "monomer" and interface_terms:
            raise ConfigError(f"loss.{interface_terms[0]} is for complexes, and must be 0 with model.method=monomer")
        augmented = self.example.template_augmentation.is_on or self.example.alignment_augmentation.is_on
        if self.model.method == "multimer" and augmented:
            raise ConfigError("example.template_augmentation and example.alignment_augmentation are for single chains")
        if self.batch_size % self.micro_batch:
            raise ConfigError(f"micro_batch ({self.micro_batch}) must divide batch_size ({self.batch_size})")
        if self.optimizer.clipping == "sample" and self.micro_batch > 1:
            raise ConfigError(
                f"optimizer.clipping=sample clips the gradient of each example, so micro_batch must be 1, got "
                f"{self.micro_batch}; set micro_batch=1 or another clipping"
            )
        if self.micro_batch > 1 and not self.example.fixed_shapes:
            raise ConfigError(
                "examples of different shapes cannot be stacked; set micro_batch=1 or example.fixed_shapes=true"
            )
        slots = self.example.sampling.max_templates
        if self.model.template is not None and slots > self.model.template.max_templates:
            raise ConfigError(
                f"example.sampling.max_templates ({slots}) must not exceed model.template.max_templates "
                f"({self.model.template.max_templates})"
            )
        # Checkpoints and evaluations need the islands' parameters to be equal, which they are at synchronisations.
        islands, every = self.outer.islands, self.outer.every
        if self.micro_batches % islands:
            raise ConfigError(
                f"outer.islands ({islands}) must divide the number of micro-batches ({self.micro_batches}), which is "
                "batch_size / micro_batch"
            )
        for name, steps in (
            ("steps", self.steps),
            ("save_every", self.save_every),
            ("evaluation.every", self.evaluation.every),
        ):
            if islands > 1 and steps % every:
                raise ConfigError(
                    f"islands synchronise every {every} steps (outer.every), so {name} must be a multiple of {every}, "
                    f"got {steps}"
                )

    @property
    def micro_batches(self) -> int:
        """Number of micro-batches of a step, on all ranks together."""
        return self.batch_size // self.micro_batch

    @property
    def record(self) -> RunRecord:
        """The settings that results depend on, which must be the same when a run resumes."""
        return RunRecord(
            options={name: value for name, value in self.flat().items() if name.split(".")[0] not in FREE_SETTINGS}
        )

    def prediction_preset(self, name: str) -> Preset:
        """Return the preset, with this name, with which a model trained by this run makes predictions."""
        return Preset(
            name=name, model=self.model, sampling=self.example.sampling, num_recycles=self.example.max_passes - 1
        )


def require_same_run(directory: Path, before: RunRecord, now: RunRecord) -> None:
    """Raise `ConfigError` if a setting that results depend on differs from when the run in `directory` began.

    `before` has the settings of that time, and `now` the current ones.
    """
    remedy = "use the same settings, or pass another --output"
    require_same_settings(directory, before.differences(now), verb="begun", remedy=remedy, error=ConfigError)
