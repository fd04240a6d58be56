"""Small training runs that tests share."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from data_pipeline.sampling.sample import SamplingConfig
from data_pipeline.sampling.training import ExampleConfig
from helixfold.execution.recompute import RecomputeConfig
from helixfold.model.config import HeadsConfig, ModelConfig, StackConfig, StructureConfig, TemplateConfig
from helixfold.optim.config import OptimizerConfig
from helixfold.parallel.mesh import Mesh
from helixfold.training.config import EvaluationConfig, TrainingConfig
from helixfold.training.run_files import RunFiles
from helixfold.training.trainer import Trainer
from tests.data_pipeline.training_sets.memory_store import small_store

STACK = StackConfig(blocks=1, c_m=8, msa_heads=2, pair_heads=2, c_outer=2, c_triangle=4, transition_factor=1)
MODEL = ModelConfig(
    c_z=8,
    c_s=8,
    evoformer=STACK,
    extra_msa=replace(STACK, c_m=4),
    template=TemplateConfig(blocks=1, c_t=4, pair_heads=2, c_triangle=4, attention_heads=2, attention_channels=4),
    structure=StructureConfig(layers=2, c=8, heads=2, c_scalar=2, query_points=2, value_points=2, c_angles=4),
    heads=HeadsConfig(c_lddt=4, aligned_error=True),
)


def small_config(**settings: Any) -> TrainingConfig:
    """A run of a few short steps of a minute network."""
    defaults: dict[str, Any] = {
        "model": MODEL,
        "example": ExampleConfig(
            crop_size=12,
            sampling=SamplingConfig(max_msa_clusters=3, max_extra_msa=4, max_templates=1),
            max_passes=2,
        ),
        "optimizer": OptimizerConfig(warmup_steps=3, ema_decay=0.9),
        "recompute": RecomputeConfig.everywhere("none"),
        "evaluation": EvaluationConfig(every=4, num_recycles=0, max_residues=16, structures=1),
        "batch_size": 2,
        "steps": 6,
        "save_every": 3,
    }
    return TrainingConfig(**(defaults | settings))


def small_run(directory: Path, config: TrainingConfig | None = None, **options: Any) -> Trainer:
    """A trainer of random chains in this directory; its curves are drawn by `draw`, if that is given."""
    store = options.pop("store", None) or small_store(6)
    files = RunFiles(directory=directory, name="small", draw=options.pop("draw", None))
    config = config or small_config()
    files.check()
    return Trainer(config, store, files, options.pop("mesh", Mesh.alone()), progress=False, **options)
