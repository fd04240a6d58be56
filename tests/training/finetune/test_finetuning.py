"""Damaged settings of an earlier fine-tuning are ignored or give one clear error."""

import json
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.io.config import ConfigError
from helixfold.model.presets import tiny
from helixfold.training.finetune.finetuning import require_same_finetuning
from helixfold.training.finetune.settings import finetuning
from helixfold.training.run_files import CONFIG_FILE
from helixfold.weights.low_rank import LowRankConfig

RUN = finetuning(tiny(), "lora", LowRankConfig()).run


@pytest.mark.parametrize("content", [[], 5, "text", None])
def test_a_file_that_is_not_an_object_counts_as_none(content: Any, tmp_path: Path) -> None:
    (tmp_path / CONFIG_FILE).write_text(json.dumps(content))
    require_same_finetuning(tmp_path, {}, RUN)


@pytest.mark.parametrize("content", [{}, {"config": 5}, {"config": None}, {"config": RUN.to_dict() | {"optimizer": 5}}])
def test_settings_of_a_wrong_type_are_one_sentence(content: Any, tmp_path: Path) -> None:
    (tmp_path / CONFIG_FILE).write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="Config"):
        require_same_finetuning(tmp_path, {}, RUN)


def test_facts_that_an_earlier_version_did_not_write_are_not_compared(tmp_path: Path) -> None:
    stored = {"adapter": "lora", "base": "a", "held_out": ["x"], "config": RUN.to_dict()}
    (tmp_path / CONFIG_FILE).write_text(json.dumps(stored))
    require_same_finetuning(tmp_path, {"adapter": "lora", "held_out": ["x"], "table": "b"}, RUN)
    with pytest.raises(ConfigError, match=r"\(another base; other held out; adapter lora, now full\)"):
        require_same_finetuning(tmp_path, {"adapter": "full", "base": "b", "held_out": [], "table": "b"}, RUN)
