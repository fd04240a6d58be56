"""What is recomputed follows from the memory there is: nothing where all fits, and no more than must be."""

from dataclasses import replace

import torch

from helixfold.execution.recompute import RecomputeConfig
from helixfold.model.config import ConfigError
from helixfold.model.presets import tiny
from helixfold.ops.card import CARDS
from helixfold.planning.executors import RESERVE
from helixfold.planning.recompute_choice import least_needed, no_room, settled
from helixfold.planning.size import PassSize
from helixfold.planning.training import TrainingNeeds, part_costs

AUTO, NONE = RecomputeConfig.everywhere("auto"), RecomputeConfig.everywhere("none")
INITIAL = TrainingNeeds(
    model=tiny().model.with_settings(["evoformer.blocks=1", "structure.layers=1"]),
    size=PassSize(residues=128, msa_rows=64, extra_rows=512, templates=2, dtype=torch.float32),
    state=2**28,
    card=CARDS["h200"],
)


def chosen(asked: RecomputeConfig, memory: int) -> RecomputeConfig:
    found = settled(asked, INITIAL, memory)
    assert found is not None
    assert found.is_settled
    return found


def test_nothing_is_recomputed_where_everything_fits() -> None:
    everything = INITIAL.needed(NONE)
    assert chosen(AUTO, everything) == NONE
    assert chosen(AUTO, everything - 1) != NONE


def test_less_memory_never_means_less_recompute() -> None:
    work = {
        part: cost.forward.products
        for part, cost in part_costs(INITIAL.model, INITIAL.size, "none", INITIAL.card, plain=True).items()
    }
    again = []
    for memory in range(least_needed(AUTO, INITIAL), INITIAL.needed(NONE) + 2**25, 2**25):
        found = chosen(AUTO, memory)
        assert INITIAL.needed(found) <= memory
        again.append(sum(work[part] for part in work if getattr(found, part, "none") != "none"))
    assert again == sorted(again, reverse=True)
    assert again[-1] == 0 < again[0]


def test_what_is_asked_for_by_name_stays() -> None:
    asked = replace(AUTO, extra_msa="inputs", structure="block")
    found = chosen(asked, 10 * 2**30)
    assert (found.extra_msa, found.structure) == ("inputs", "block")
    # And is not judged, even where it does not fit.
    assert settled(NONE, INITIAL, 0) == NONE


def test_where_nothing_fits_the_sentence_names_what_would() -> None:
    needs = replace(INITIAL, model=replace(INITIAL.model, template=None), size=replace(INITIAL.size, templates=0))
    least = least_needed(AUTO, needs)
    assert settled(AUTO, needs, least) is not None
    # Parameters, optimizer and libraries need as much in any dtype.
    memory = int(0.9 * least)
    assert settled(AUTO, needs, memory) is None
    error = no_room(AUTO, needs, memory)
    assert isinstance(error, ConfigError)
    text = str(error)
    assert text.startswith("a training pass of 128 residues needs")
    size = needs.size
    for name, option in (("extra_rows", "example.sampling.max_extra_msa="), ("residues", "example.crop_size=")):
        if option in text:
            most = int(text.split(option)[1].split(",", 1)[0])
            assert least_needed(AUTO, replace(needs, size=replace(size, **{name: most}))) <= memory
            # It is nearly the most.
            assert least_needed(AUTO, replace(needs, size=replace(size, **{name: int(1.3 * most)}))) > memory
    assert "dtype=bfloat16" in text
    assert "example.crop_size=" in text
    short = replace(needs, size=replace(size, residues=1, extra_rows=1, dtype=torch.bfloat16))
    assert "bfloat16" not in str(no_room(NONE, short, least_needed(NONE, short)))


def test_the_reserve_is_kept_for_what_is_predicted_and_not_for_what_is_known() -> None:
    peak = INITIAL.forecast(NONE).peak
    assert INITIAL.needed(NONE) == INITIAL.state + int(RESERVE * peak)
    both = replace(INITIAL, samples=2)
    assert both.peak(NONE) == INITIAL.state + 2 * peak
