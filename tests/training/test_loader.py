"""Batches are the dataset's examples, whoever made them, in whatever order the workers finished."""

import sys
import time
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from data_pipeline.features.sample import SAMPLE_AXES, Sample
from data_pipeline.io.errors import InputError
from data_pipeline.sampling.msa import deletion_value
from data_pipeline.sampling.sample import DrawnSample, SamplingConfig, smallest
from data_pipeline.sampling.training import ExampleConfig
from data_pipeline.training_sets.examples import StepExamples, TrainingDataset
from helixfold.execution import nested
from helixfold.execution.device import in_threads
from helixfold.losses.labels import Labels
from helixfold.model.batch import Batch, sampled_fields
from helixfold.training import loader as loading
from helixfold.training.loader import TrainingBatch, TrainingLoader, pack
from tests.data_pipeline.training_sets.memory_store import small_store

CONFIG = ExampleConfig(crop_size=16, sampling=SamplingConfig(max_msa_clusters=4, max_extra_msa=6, max_templates=2))
CPU = torch.device("cpu")


def dataset(**settings: Any) -> TrainingDataset:
    return TrainingDataset(**({"store": small_store(), "config": CONFIG, "seed": 3, "batch_size": 2} | settings))


def tensors(batch: TrainingBatch) -> list[torch.Tensor]:
    return list(nested.tensors((batch.recycling_inputs, batch.labels)))


def padded(sample: Sample, **sizes: int) -> Sample:
    """Return the sample with zeros after the real values, up to these sizes of its axes."""

    def fill(array: np.ndarray, axes: str) -> np.ndarray:
        widths = [(0, sizes[axis] - size) for axis, size in zip(axes, array.shape, strict=False)]
        return np.pad(array, [*widths, *[(0, 0)] * (array.ndim - len(axes))])

    return replace(sample, **{name: fill(getattr(sample, name), axes) for name, axes in SAMPLE_AXES.items()})


def assert_equal(one: TrainingBatch, two: TrainingBatch) -> None:
    assert (one.step, one.names, one.refused) == (two.step, two.names, two.refused)
    for left, right in zip(tensors(one), tensors(two), strict=True):
        assert left.dtype == right.dtype
        assert torch.equal(left, right)


@pytest.mark.parametrize("clusters", [4, 9, 12], ids=["deep", "mixed", "shallow"])
@pytest.mark.parametrize("fixed_shapes", [True, False])
def test_a_batch_holds_its_examples_padded_and_their_labels(fixed_shapes: bool, clusters: int) -> None:
    """Alignments have more rows than there are clusters, or fewer, or one of two has more."""
    sampling = replace(CONFIG.sampling, max_msa_clusters=clusters, target_as_extra=True)
    config = replace(CONFIG, crop_size=40, fixed_shapes=fixed_shapes, sampling=sampling)
    drawn = dataset(config=config, batch_size=2 if fixed_shapes else 1).draw(4)
    have_members = [each.drawn[0].alignment.members.any() for each in drawn.examples]
    assert have_members == {4: [True, True], 9: [True, False], 12: [False, False]}[clusters][: len(have_members)]
    batch = pack(drawn, config.sizes() if fixed_shapes else None).on(CPU)
    assert batch.names == tuple(example.name for example in drawn.examples)
    assert len(batch.recycling_inputs) == len(drawn.examples[0].samples)
    for place, example in enumerate(drawn.examples):
        r = len(example.truth.aatype)
        for found, sample in zip(batch.recycling_inputs, example.samples, strict=True):
            expected = Batch.from_samples([padded(sample, r=40, s=clusters, e=6, t=2) if fixed_shapes else sample])
            for name in sampled_fields(Batch):
                tensor, wanted = getattr(found, name), getattr(expected, name)
                assert tensor.dtype == wanted.dtype, name
                if name in ("msa_feat", "extra_deletion_value"):  # deletion values are PyTorch's arctangents
                    torch.testing.assert_close(tensor[place], wanted[0], rtol=0, atol=2e-7, msg=name)
                else:
                    assert torch.equal(tensor[place], wanted[0]), name
        labels = {field.name: getattr(batch.labels, field.name)[place].numpy() for field in fields(Labels)}
        for field in fields(example.truth):
            label = labels.pop(field.name)
            np.testing.assert_array_equal(label[:r], getattr(example.truth, field.name))
            assert not label[r:].any()
            assert len(label) == (40 if fixed_shapes else r)
        rows = len(example.samples[-1].true_msa)
        for name in ("true_msa", "bert_mask"):
            label = labels.pop(name)
            np.testing.assert_array_equal(label[:rows, :r], getattr(example.samples[-1], name))
            assert label.shape == ((clusters, 40) if fixed_shapes else (rows, r))
        assert {name: float(value) for name, value in labels.items()} == {
            "use_clamped_fape": float(example.use_clamped_fape),
            "resolution": 2.5,
            "is_distillation": 0.0,
        }


def test_small_whole_numbers_travel_as_bytes_and_others_as_they_are() -> None:
    drawn = dataset().draw(4)
    first = drawn.examples[0].drawn[0]
    assert isinstance(first, DrawnSample)
    for index, dtype in ((first.others["residue_index"], np.int8), (np.arange(16, dtype=np.int32) + 1000, np.int32)):
        sample = replace(first, others={**first.others, "residue_index": index})
        packed = pack(replace(drawn, examples=(replace(drawn.examples[0], drawn=(sample,)),)), CONFIG.sizes())
        assert packed.slots["0/residue_index"][0].dtype == dtype
        assert packed.slots["0/extra_msa"][0].dtype == packed.slots["atom14_gt_exists"][0].dtype == np.int8
        assert packed.slots["0/template_all_atom_positions"][0].dtype == np.float32
        np.testing.assert_array_equal(packed.on(CPU).recycling_inputs[0].residue_index[0], index)


def test_arrays_begin_where_any_type_may() -> None:
    packed = pack(dataset().draw(4), CONFIG.sizes())
    assert not any(slot.offset % 64 for slots in packed.slots.values() for slot in slots)


def test_padding_is_no_part_of_what_is_sent() -> None:
    wide = replace(CONFIG, crop_size=4000, sampling=SamplingConfig(max_msa_clusters=508, max_extra_msa=5120))
    assert pack(dataset(config=wide).draw(4), wide.sizes()).buffer.nbytes < 2**20


class SlowAtFirst(TrainingDataset):
    """The same examples, of which the third takes longer than several others."""

    def draw(self, step: int, micro_batch: int = 0) -> StepExamples:
        if step == 3:
            time.sleep(0.5)
        return super().draw(step, micro_batch)


def test_workers_change_nothing_and_a_run_resumes_where_it_stood() -> None:
    """What is made early waits for its turn."""
    alone = list(TrainingLoader(dataset(), first_step=0, last_step=8))
    assert [batch.step for batch in alone] == list(range(8))
    slow = SlowAtFirst(store=small_store(), config=CONFIG, seed=3, batch_size=2)
    resumed = list(TrainingLoader(slow, first_step=3, last_step=8, workers=2, prefetch=1))
    for batch, expected in zip(resumed, alone[3:], strict=True):
        assert_equal(batch, expected)


def test_padding_of_an_alignment_has_no_features() -> None:
    steps = (dataset(config=replace(CONFIG, crop_size=40)).draw(step) for step in range(100))
    sorted_steps = (sorted(step.examples, key=lambda example: len(example.truth.aatype)) for step in steps)
    short, long = next(pair for pair in sorted_steps if len(pair[0].truth.aatype) < len(pair[1].truth.aatype))
    step = replace(dataset().draw(0), examples=(short, long))
    r, count = len(short.truth.aatype), len(long.truth.aatype)
    batch = pack(step, {"r": count, "s": 9, "e": 9, "t": 2}).on(CPU).recycling_inputs[0]
    rows, extra = short.samples[0].msa_mask.shape[0], short.samples[0].extra_msa_mask.shape[0]
    for features, real in ((batch.msa_feat, rows), (batch.msa_mask, rows), (batch.extra_deletion_value, extra)):
        assert features[0, :real, :r].any()
        assert not features[0, real:].any()
        assert not features[0, :, r:].any()
    np.testing.assert_array_equal(batch.msa_mask[0, :rows, :r], short.samples[0].msa_mask)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has pipes of a chosen size")
def test_micro_batches_have_room_in_the_pipe_and_are_unpacked_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl  # noqa: PLC0415 (Windows has none)

    sizes: list[int] = []
    threads: list[int] = []
    enlarge, unpack = loading._enlarge_pipe, loading.PackedBatch.on

    def enlarged(batches: Any) -> None:
        enlarge(batches)
        if hasattr(batches, "_worker_result_queue"):
            sizes.append(fcntl.fcntl(batches._worker_result_queue._reader.fileno(), fcntl.F_GETPIPE_SZ))

    def unpacked(packed: loading.PackedBatch, device: torch.device) -> TrainingBatch:
        threads.append(torch.get_num_threads())
        return unpack(packed, device)

    monkeypatch.setattr(loading, "_enlarge_pipe", enlarged)
    monkeypatch.setattr(loading.PackedBatch, "on", unpacked)
    with in_threads(2):
        for workers in (1, 0):
            next(iter(TrainingLoader(dataset(), first_step=0, last_step=1, workers=workers)))
        assert torch.get_num_threads() == 2
    assert sizes == [2**20]
    assert threads == [1, 2]


def test_an_alignment_travels_as_whole_numbers_of_the_smallest_types() -> None:
    (example,) = dataset(batch_size=1).draw(4).examples
    drawn = example.drawn[0]
    assert isinstance(drawn, DrawnSample)
    for most, dtype in ((255, np.uint8), (256, np.int16), (2**15 - 1, np.int16), (2**15, np.int32)):
        deletions = np.zeros(drawn.alignment.extra_msa.shape, np.int64)
        deletions[0, :3] = most, 1, 2
        alignment = replace(drawn.alignment, extra_deletions=smallest(deletions))
        step = dataset(batch_size=1).draw(4)
        changed = replace(example, drawn=(replace(drawn, alignment=alignment),))
        packed = pack(replace(step, examples=(changed,)), None)
        assert packed.slots["0/extra_deletions"][0].dtype == dtype
        found = packed.on(CPU).recycling_inputs[0].extra_deletion_value[0]
        expected = deletion_value(deletions)
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-7)
        assert np.unique(expected).size == 4


def test_examples_of_own_shapes_make_batches_of_one() -> None:
    unpadded = dataset(batch_size=1, config=replace(CONFIG, fixed_shapes=False, crop_size=100))
    batches = list(TrainingLoader(unpadded, first_step=0, last_step=4))
    assert len({batch.recycling_inputs[0].aatype.shape for batch in batches}) > 1


def test_errors_of_workers_name_chain_and_step() -> None:
    store = small_store()
    faulty = replace(store, faulty=frozenset(entry.name for entry in store.entries))
    with pytest.raises(ZeroDivisionError, match=r"(?s)made of chain 'chain\d+', step 6, place 0 in the batch"):
        next(iter(TrainingLoader(dataset(store=faulty), first_step=6, last_step=7, workers=1)))


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.long)])
def test_wrong_input_stays_one_sentence(workers: int) -> None:
    store = small_store()
    damaged = replace(store, damaged=frozenset(entry.name for entry in store.entries))
    with pytest.raises(InputError) as caught:
        next(iter(TrainingLoader(dataset(store=damaged), first_step=6, last_step=7, workers=workers)))
    assert "\n" not in str(caught.value)
    assert "10 chains drawn one after the other for step 6" in str(caught.value)


def test_refused_chains_are_told() -> None:
    some = dataset(store=small_store(damaged=frozenset(f"chain{index}" for index in range(6))))
    batches = list(TrainingLoader(some, first_step=0, last_step=6))
    assert any(batch.refused for batch in batches)


def test_large_buffers_are_shared_and_small_ones_or_those_without_room_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, sizes = dataset().draw(1), CONFIG.sizes()
    sent = pack(drawn, sizes)
    assert isinstance(sent.buffer, np.ndarray)
    monkeypatch.setattr(loading, "_MIN_SHARED", 1)
    shared = pack(drawn, sizes)
    assert isinstance(shared.buffer, torch.Tensor)
    assert_equal(sent.on(CPU), shared.on(CPU))
    monkeypatch.setattr(loading, "_fits_shared_memory", lambda size: False)
    assert isinstance(pack(drawn, sizes).buffer, np.ndarray)


def test_room_is_what_the_file_system_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(loading, "_SHARED_MEMORY", str(tmp_path))
    assert loading._fits_shared_memory(1)
    assert not loading._fits_shared_memory(2**60)
    monkeypatch.setattr(loading, "_SHARED_MEMORY", str(tmp_path / "missing"))
    assert not loading._fits_shared_memory(1)


@pytest.mark.parametrize("settings", [{"first_step": 3}, {"workers": -1}, {"prefetch": 0}])
def test_impossible_loaders_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="first_step <= last_step"):
        TrainingLoader(dataset(), **({"first_step": 0, "last_step": 2} | settings))  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_batches_arrive_on_the_gpu_unchanged() -> None:
    device = torch.device("cuda")
    for workers in (0, 1):
        on_gpu = list(TrainingLoader(dataset(), first_step=0, last_step=3, device=device, workers=workers))
        for batch, expected in zip(on_gpu, TrainingLoader(dataset(), first_step=0, last_step=3), strict=True):
            assert all(tensor.device.type == "cuda" for tensor in tensors(batch))
            moved = [tensor.cpu() for tensor in tensors(batch)]
            assert all(map(torch.equal, moved, tensors(expected)))


def test_parts_come_step_by_step_in_the_order_they_are_asked_for() -> None:
    loaded = list(TrainingLoader(dataset(), first_step=2, last_step=4, micro_batches=(1, 3)))
    assert [(batch.step, batch.micro_batch) for batch in loaded] == [(2, 1), (2, 3), (3, 1), (3, 3)]
    assert_equal(loaded[3], pack(dataset().draw(3, 3), CONFIG.sizes()).on(CPU))
