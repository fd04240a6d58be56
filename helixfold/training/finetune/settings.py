"""Settings of fine-tuning runs, which start from the parameters of a trained model.

Learning rates follow published fine-tunings and depend on what is trained. All parameters: 2.5e-5, as in Motmaen et al.
2023 (PNAS 120, e2216697120), who trained AlphaFold on crops of 190 residues with one example per step. LoRA: ten times
that, which works best for low-rank changes across models (Schulman et al. 2025, "LoRA Without Regret"). Heads only:
1e-3, as in AlphaFold's first stage, because they are a few layers.
"""

from dataclasses import dataclass, replace
from typing import Literal

from data_pipeline.io.config import Config, ConfigError
from data_pipeline.sampling.msa import BlockDeletion
from data_pipeline.sampling.training import ExampleConfig
from helixfold.execution.recompute import RecomputeConfig
from helixfold.losses import config as losses
from helixfold.model.presets import Preset
from helixfold.optim.config import OptimizerConfig
from helixfold.training.config import EvaluationConfig, TrainingConfig
from helixfold.weights.low_rank import LowRankConfig

AdapterKind = Literal["lora", "full", "heads"]
# Default learning rates by what is trained.
LEARNING_RATES: dict[AdapterKind, float] = {"lora": 2.5e-4, "full": 2.5e-5, "heads": 1e-3}
# Residues of a crop: enough for the domains of most families. Memory grows with the square of the crop.
_CROP_RESIDUES = 256
# Maximum number of recycling iterations, including the first. With a number drawn from 1 to 4, the recycling embedder
# sees the model's own predictions. Training takes two thirds of the time that it would take with four every time.
_MAX_ITERATIONS = 4


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig(Config):
    """Settings of one fine-tuning: what is trained (`adapter`), and the training run (`run`).

    `low_rank` has the settings of low-rank changes, which are used with "lora" only.
    """

    adapter: AdapterKind = "lora"
    low_rank: LowRankConfig
    run: TrainingConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.run.optimizer.method != "adam" and self.adapter == "lora":
            raise ConfigError("low-rank matrices are trained with Adam; set run.optimizer.method=adam")
        if self.run.outer.islands > 1:
            raise ConfigError("fine-tuning does not support several islands; set run.outer.islands=1")


def finetuning(preset: Preset, adapter: AdapterKind, low_rank: LowRankConfig | None = None) -> FinetuneConfig:
    """Return the default settings for fine-tuning a model, which are published settings where possible.

    Losses, clamping of FAPE and recycling are AlphaFold's. The violation loss has a small weight, because AlphaFold
    adds it at the end of training, when structures are already good. The run ends after five evaluations of held-out
    chains in a row without a new best score. With the adapter "heads" it does not end early, because heads do not
    change the structure.
    """
    iterations = min(preset.num_recycles + 1, _MAX_ITERATIONS)
    sampling = preset.sampling
    if not sampling.target_as_extra:
        sampling = replace(sampling, target_as_extra=True)
    loss = losses.finetuning(preset.model.method)
    return FinetuneConfig(
        adapter=adapter,
        low_rank=low_rank or LowRankConfig(),
        run=TrainingConfig(
            model=preset.model,
            example=ExampleConfig(
                crop_size=_CROP_RESIDUES,
                sampling=sampling,
                block_deletion=BlockDeletion(blocks=0),
                max_passes=iterations,
                spatial_crop_probability=0.5 if preset.model.method == "multimer" else 0.0,
                fixed_shapes=False,
            ),
            loss=replace(loss, violation=0.1 * loss.violation),
            optimizer=OptimizerConfig(
                learning_rate=LEARNING_RATES[adapter], warmup_steps=20, decay_after=None, ema_decay=0.98
            ),
            recompute=RecomputeConfig.everywhere("auto"),
            evaluation=EvaluationConfig(
                every=50,
                num_recycles=iterations - 1,
                max_residues=_CROP_RESIDUES,
                structures=0,
                # Heads do not change the structure, so lDDT stays the same.
                patience=None if adapter == "heads" else 5,
            ),
            batch_size=4,
            steps=1000,
            save_every=50,
            keep=2,
        ),
    )
