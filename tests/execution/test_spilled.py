"""`Spilled` computes what `Slabs` computes, with the streams in files that nobody sees."""

import errno
import gc
import os
import re
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_iter

from helixfold.execution import spilled, spilled_stream
from helixfold.execution.slabs import LocalStream, Slabs
from helixfold.execution.spilled import Lane, Spilled
from helixfold.execution.spilled_stream import HostMemory, SpilledStream, mapped_tensor
from helixfold.execution.stages import peak_memory, reset_peak_memory
from helixfold.model.config import ConfigError
from helixfold.model.evoformer import EvoformerBlock
from helixfold.model.update import transposed
from tests.support.live import Live
from tests.support.networks import tiny_config

CPU = torch.device("cpu")


class AcrossMemories(Spilled):
    """With memory of its own for streams, as beside a GPU, whose place the CPU takes."""

    def __init__(self, directory: Path, rows: int) -> None:
        super().__init__(directory, rows=rows)

    def _stream(self, shape: Sequence[int], dtype: torch.dtype) -> SpilledStream:
        return SpilledStream(torch.full(tuple(shape), float("nan"), dtype=dtype), HostMemory(), CPU)


@pytest.fixture
def everything_spilled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spilled, "MIN_BYTES", 0)
    monkeypatch.setattr(spilled, "MIN_CHANNELS", 0)


def stream(run: Slabs, *shape: int, dtype: torch.dtype = torch.float32) -> LocalStream:
    """A random stream, made by the executor."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)
    return run.map_rows(cloned, values)


def cloned(_: slice, rows: Tensor) -> Tensor:
    return rows.clone()


@pytest.mark.usefixtures("everything_spilled")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("executor", [Spilled, AcrossMemories])
@pytest.mark.parametrize("rows", [2, 10**6])
def test_a_block_gives_the_same_bits_as_slabs(
    rows: int, executor: type[Spilled], dtype: torch.dtype, tmp_path: Path
) -> None:
    config = tiny_config()
    block = EvoformerBlock(config.evoformer, config.c_z, global_columns=False).eval()
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    masks = (torch.rand(2, 5, 7) > 0.2).float(), (torch.rand(2, 7, 7) > 0.2).float()
    ours, theirs = (
        block(run, stream(run, 2, 5, 7, 64, dtype=dtype), stream(run, 2, 7, 7, 32, dtype=dtype), *masks)
        for run in (executor(tmp_path, rows=rows), Slabs(rows=rows))
    )
    for changed, expected in zip(ours, theirs, strict=True):
        assert isinstance(changed, SpilledStream)
        assert torch.equal(changed.gather(), expected)


@pytest.mark.usefixtures("everything_spilled")
@pytest.mark.parametrize("executor", [Spilled, AcrossMemories])
def test_a_stream_is_made_in_the_memory_of_one_that_it_is_made_from(executor: type[Spilled], tmp_path: Path) -> None:
    run = executor(tmp_path, rows=2)
    pair, other = stream(run, 1, 7, 7, 4), stream(run, 1, 7, 7, 5)
    before, columns = run.gather(pair).clone(), other[:, :, :, :4].transpose(1, 2)
    made = run.replace_rows(lambda _, left, right: left - 2 * right, pair, columns)
    assert torch.equal(run.gather(made), before - 2 * run.gather(columns))
    assert isinstance(made, SpilledStream)
    assert made.same_rows(pair)


@pytest.mark.usefixtures("everything_spilled")
def test_parts_of_a_stream_share_its_memory_and_what_is_written_there_is_read(tmp_path: Path) -> None:
    run = Spilled(tmp_path, rows=2)
    msa = stream(run, 1, 5, 7, 4)
    msa[:, 1:3].copy_(torch.ones(1))
    expected = run.gather(msa).clone()
    assert (expected[:, 1:3] == 1).all()
    doubled = run.map_rows(lambda _, rows: 2 * rows, msa[:, :4].transpose(1, 2))
    assert torch.equal(run.gather(doubled).transpose(1, 2), 2 * expected[:, :4])


def test_a_new_stream_is_read_after_either_kind_of_write(tmp_path: Path) -> None:
    """A blank stream is not read; writing by slabs, or as a whole, changes that."""
    values = torch.randn(1, 4, 3)

    def written_by_slabs(made: SpilledStream) -> None:
        lane = Lane(made, 2)
        for part in (slice(0, 2), slice(2, 4)):
            lane.slab(0, part).copy_(values[:, part])
            lane.store(0, part)

    for write in (written_by_slabs, lambda made: made.copy_(values)):
        tensor, home = mapped_tensor(tmp_path, values.shape, torch.float32)
        assert home.blank
        made = SpilledStream(tensor, home, CPU)
        write(made)
        lane = Lane(made, 2)
        lane.fetch(0, slice(2, 4))
        assert torch.equal(lane.slab(0, slice(2, 4)), values[:, 2:])


@pytest.mark.usefixtures("everything_spilled")
def test_files_are_seen_by_nobody_and_gone_with_their_tensors(tmp_path: Path) -> None:
    run = Spilled(tmp_path)
    pair = stream(run, 1, 4, 4, 4)
    assert isinstance(pair, SpilledStream)
    row, file = pair[:, :1], weakref.ref(pair.home)
    del pair
    gc.collect()
    assert file() is not None
    assert not list(tmp_path.iterdir())
    del row
    gc.collect()
    assert file() is None


def test_what_is_small_or_narrow_stays_in_memory(tmp_path: Path) -> None:
    run = Spilled(tmp_path)
    made = [stream(run, 1, rows, 512, channels) for rows, channels in ((512, 31), (64, 64), (512, 32))]
    assert [isinstance(each, SpilledStream) for each in made] == [False, False, True]


@pytest.mark.usefixtures("everything_spilled")
@pytest.mark.parametrize("executor", [Spilled, AcrossMemories])
def test_slabs_before_a_failure_are_kept_and_the_failed_one_is_as_it_was(
    executor: type[Spilled], tmp_path: Path
) -> None:
    run = executor(tmp_path, rows=2)
    pair = stream(run, 1, 8, 8, 4)
    before, threads = run.gather(pair).clone(), set(threading.enumerate())
    made = []

    def fail_at_last(_: slice, slab: Tensor) -> Tensor:
        made.append(slab.add_(1))
        if len(made) == 3:
            raise RuntimeError("no more")
        return slab

    with pytest.raises(RuntimeError, match="no more"):
        run.replace_rows(fail_at_last, pair)
    assert set(threading.enumerate()) <= threads
    found = run.gather(pair)
    assert torch.equal(found[:, :4], before[:, :4] + 1)
    assert torch.equal(found[:, 4:], before[:, 4:])


@pytest.mark.usefixtures("everything_spilled")
def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    run = Spilled(tmp_path, rows=2)
    pair = stream(run, 1, 6, 6, 4)
    assert isinstance(pair, SpilledStream)
    assert isinstance(pair.home, spilled_stream.MappedFile)
    pair.home.file.truncate(6 * 6 * 4 * 4 // 2)
    with pytest.raises(OSError, match="shorter"):
        run.map_rows(cloned, pair)


@pytest.mark.usefixtures("everything_spilled")
def test_a_full_disk_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    expected = (
        rf"too little space in {re.escape(str(tmp_path))}: a spilled stream needs 0.00 GiB \(1024 bytes\), .* GiB are"
    )
    with pytest.raises(OSError, match=expected) as raised:
        stream(Spilled(tmp_path), 1, 8, 8, 4)
    assert raised.value.errno == errno.ENOSPC


def test_a_directory_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        Spilled(tmp_path / "nowhere")


class Touched(Live):
    """Also records the operators that read or write memory of a mapped file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.mapped, self.operators = set[int](), list[str]()
        make = spilled.mapped_tensor

        def mapped_tensor(*arguments: Any) -> tuple[Tensor, spilled_stream.MappedFile]:
            tensor, file = make(*arguments)
            self.mapped.add(tensor.data_ptr())
            return tensor, file

        monkeypatch.setattr(spilled, "mapped_tensor", mapped_tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = super().__torch_dispatch__(func, types, args, kwargs)
        if not (func.is_view or "empty" in str(func)):  # those only read the layout
            given = (each for each in tree_iter((args, kwargs, results)) if isinstance(each, Tensor))
            if any(each.untyped_storage().data_ptr() in self.mapped for each in given):
                self.operators.append(str(func))
        return results


def test_updates_read_and_write_the_file_and_hold_no_more_than_slabs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Spilled(tmp_path, rows=32)
    with Touched(monkeypatch) as touched:
        pair = stream_of_ones(run)  # 32 MiB, slabs of 2
        for axis in ("rows", "columns"):
            run.replace_rows(lambda _, slab: slab.add_(1), transposed(pair, axis))
    assert isinstance(pair, SpilledStream)
    assert pair.tensor.nbytes == 32 * 2**20
    # The mapping's pages would count as memory of the process.
    assert touched.mapped == {pair.tensor.data_ptr()}
    assert touched.operators == []
    assert touched.peak - pair.tensor.nbytes < 12 * 2**20
    assert run.gather(pair).sum() == 3 * pair.tensor.numel()


def test_an_update_releases_pages_of_a_stream_that_was_used_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, released = Spilled(tmp_path, rows=32), list[spilled_stream.MappedFile]()
    pair = stream_of_ones(run)
    assert isinstance(pair, SpilledStream)
    run.gather(pair).sum()

    def release(home: spilled_stream.MappedFile) -> None:
        released.append(home)

    monkeypatch.setattr(spilled_stream.MappedFile, "release", release)
    run.map_rows(lambda _, slab: slab[..., :1], pair)
    assert pair.home in released


@pytest.mark.long  # reads the memory of the process
@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="counts pages as Linux does")
def test_a_stream_takes_no_memory(tmp_path: Path) -> None:
    run, mib = Spilled(tmp_path, rows=32), 2**20
    stream(run, 1, 512, 512, 32)  # 32 MiB, slabs of 2
    reset_peak_memory(CPU)
    start = peak_memory(CPU)
    pair = stream_of_ones(run)
    for axis in ("rows", "columns"):
        run.replace_rows(lambda _, slab: slab.add_(1), transposed(pair, axis))
    assert peak_memory(CPU) - start < 12 * mib
    # Whoever uses it whole has its pages in memory, until the next update.
    whole = run.gather(pair)
    assert whole.sum() == 3 * whole.numel()
    reset_peak_memory(CPU)
    used = peak_memory(CPU)
    run.map_rows(lambda _, slab: slab[..., :1], pair)
    reset_peak_memory(CPU)
    assert used - peak_memory(CPU) > 24 * mib


def stream_of_ones(run: Spilled) -> LocalStream:
    return run.map_rows(lambda _, ones: ones[..., None, None].expand(-1, -1, 512, 32), torch.ones(1, 512))


def test_pieces_of_a_write_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spilled_stream, "_WRITE_SIZE", 7)
    tensor, file = spilled_stream.mapped_tensor(tmp_path, (3, 5, 4), torch.int16)
    values = torch.arange(24, dtype=torch.int16).view(3, 2, 4)
    file.store(tensor[:, 1:3], values)
    assert torch.equal(tensor[:, 1:3], values)
    assert tensor[:, 0].count_nonzero() + tensor[:, 3:].count_nonzero() == 0
    room = torch.empty_like(values)
    file.fetch(tensor[:, 1:3], room)
    assert torch.equal(room, values)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.usefixtures("everything_spilled")
def test_streams_beside_a_gpu_are_in_pinned_memory(tmp_path: Path) -> None:
    run, values = Spilled(tmp_path, rows=2, device="cuda"), torch.randn(1, 7, 7, 32, device="cuda")
    pair = run.map_rows(cloned, values)
    assert isinstance(pair, SpilledStream)
    for axis in ("rows", "columns"):
        run.replace_rows(lambda _, slab: 2 * slab, transposed(pair, axis))
    assert pair.tensor.is_pinned()
    assert torch.equal(run.gather(pair), 4 * values)
