"""What is recomputed follows from the memory there is: nothing where all fits, and no more than must be."""

from dataclasses import replace

import pytest
import torch

from helixfold.execution.recompute import RecomputeConfig
from helixfold.model.config import ConfigError
from helixfold.model.presets import tiny
from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.planning.estimate import RESERVE, Device, Training, TrainingEstimate, estimate
from helixfold.planning.size import PassSize

H200 = DEVICE_MODELS["h200"]
AUTO, NONE = RecomputeConfig.everywhere("auto"), RecomputeConfig.everywhere("none")
INITIAL = Training(
    model=tiny().model.with_settings(["evoformer.blocks=1", "structure.layers=1"]),
    size=PassSize(residues=128, msa_rows=64, extra_rows=512, templates=2, dtype=torch.float32),
    state=2**28,
    recompute=AUTO,
)


def chosen(memory: int, work: Training = INITIAL) -> TrainingEstimate:
    return estimate(work, Device(properties=H200, memory=memory))


def needed(keep: RecomputeConfig, work: Training = INITIAL) -> int:
    return chosen(0, replace(work, recompute=keep)).needed


def test_nothing_is_recomputed_where_everything_fits() -> None:
    everything = needed(NONE)
    assert chosen(everything).policy == NONE
    assert chosen(everything - 1).policy != NONE


def test_less_memory_never_means_less_recompute() -> None:
    work = {part: cost.forward.products for part, cost in INITIAL.costs("none", H200, plain=True).items()}
    again = []
    for memory in range(chosen(0).needed, needed(NONE) + 2**25, 2**25):
        found = chosen(memory)
        assert found.fits
        assert found.needed <= memory
        again.append(sum(work[part] for part in work if getattr(found.policy, part, "none") != "none"))
    assert again == sorted(again, reverse=True)
    assert again[-1] == 0 < again[0]


def test_what_is_asked_for_by_name_stays() -> None:
    found = chosen(10 * 2**30, replace(INITIAL, recompute=replace(AUTO, extra_msa="inputs", structure="block"))).policy
    assert found.is_settled
    assert (found.extra_msa, found.structure) == ("inputs", "block")
    # And is not judged, even where it does not fit.
    assert chosen(0, replace(INITIAL, recompute=NONE)).settled() == NONE


def test_where_nothing_fits_the_sentence_names_what_would() -> None:
    size = replace(INITIAL.size, templates=0)
    work = replace(INITIAL, model=replace(INITIAL.model, template=None), size=size)
    least = chosen(0, work).needed
    assert chosen(least, work).fits
    # Parameters, optimizer and libraries need as much in any dtype.
    memory = int(0.9 * least)
    assert not chosen(memory, work).fits
    with pytest.raises(ConfigError) as raised:
        chosen(memory, work).settled()
    text = str(raised.value)
    assert text.startswith("a training pass of 128 residues needs")
    for name, option in (("extra_rows", "example.sampling.max_extra_msa="), ("residues", "example.crop_size=")):
        if option in text:
            most = int(text.split(option)[1].split(",", 1)[0])
            assert chosen(memory, replace(work, size=replace(size, **{name: most}))).fits
    assert "dtype=bfloat16" in text
    assert "example.crop_size=" in text
    # It is nearly the most.
    assert not chosen(memory, replace(work, size=replace(size, residues=int(1.3 * most)))).fits
    short = replace(work, recompute=NONE, size=replace(size, residues=1, extra_rows=1, dtype=torch.bfloat16))
    assert "bfloat16" not in chosen(0, short).problem


def test_the_reserve_is_kept_for_what_is_predicted_and_not_for_what_is_known() -> None:
    peak = INITIAL.memory(NONE, H200).peak
    assert needed(NONE) == INITIAL.state + int(RESERVE * peak)
    assert chosen(0, replace(INITIAL, samples=2, recompute=NONE)).peak == INITIAL.state + 2 * peak
