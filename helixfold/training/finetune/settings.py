"""Settings of fine-tuning runs, which begin with the parameters of a trained model.

Learning rates of published fine-tunings differ by what is trained. All parameters: 2.5e-5, as of Motmaen et al. 2023
(PNAS 120, e2216697120), who trained AlphaFold's on crops of 190 residues, one example a step. LoRA: ten times that,
which serves low-rank changes best across models (Schulman et al. 2025, "LoRA Without Regret"). Heads alone: 1e-3, as in
AlphaFold's first stage, for they are a few layers.
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
LEARNING_RATES: dict[AdapterKind, float] = {"lora": 2.5e-4, "full": 2.5e-5, "heads": 1e-3}
# As short as covers the domains of most families; memory grows with the square of a crop.
_CROP = 256
# Enough for the recycling embedder to see its own predictions, at two thirds of the time of four passes.
_MOST_PASSES = 4


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig(Config):
    """Settings of one fine-tuning: what is trained, and the training run. `low_rank` is of "lora" alone."""

    adapter: AdapterKind = "lora"
    low_rank: LowRankConfig
    run: TrainingConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.run.optimizer.method != "adam" and self.adapter == "lora":
            raise ConfigError("low-rank matrices are trained by Adam; set run.optimizer.method=adam")
        if self.run.outer.islands > 1:
            raise ConfigError("fine-tuning has one island; set run.outer.islands=1")


def finetuning(preset: Preset, adapter: AdapterKind, low_rank: LowRankConfig | None = None) -> FinetuneConfig:
    """Return the usual settings for fine-tuning a model: published ones where there are any.

    Losses, batches of clamped FAPE and recycling are AlphaFold's, but violations have a small weight: in its
    fine-tuning they come last, when structures are right already. Evaluations of held-out chains end the run once five
    in a row are no better.
    """
    passes = min(preset.num_recycles + 1, _MOST_PASSES)
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
                crop_size=_CROP,
                sampling=sampling,
                block_deletion=BlockDeletion(blocks=0),
                max_passes=passes,
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
                num_recycles=passes - 1,
                max_residues=_CROP,
                structures=0,
                # Heads change no structure and so no lDDT.
                patience=None if adapter == "heads" else 5,
            ),
            batch_size=4,
            steps=1000,
            save_every=50,
            keep=2,
        ),
    )
