"""Checkpoints of a training run, which survive a kill, a full disk or a damaged file."""

import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from data_pipeline.io.errors import InputError, error_reason
from data_pipeline.io.file_lock import NO_LOCKS, acquire_lock
from data_pipeline.io.files import atomic_write, os_errors_as_input_errors
from data_pipeline.io.json_files import read_json
from helixfold.model.config import ConfigError
from helixfold.parallel.mesh import Mesh
from helixfold.training.checkpoint_files import (
    DamagedError,
    checkpoint_path,
    checkpoint_steps,
    mismatch,
    read_manifest,
    read_manifest_only,
    read_tensors,
    remove_checkpoint,
    remove_leftovers,
    set_aside,
    write_checkpoint,
)

# Files in the directory of checkpoints: the step of the best one, and the lock of the run that writes here.
BEST_FILE = "best.json"
LOCK = ".lock"
# Time to wait for the lock, because a killed process holds it until the system has freed its memory.
LOCK_TIMEOUT = 10.0  # seconds


@dataclass(frozen=True, kw_only=True)
class Restored:
    """Step and record of the checkpoint that a run resumes from, and messages about damaged newer ones.

    `step` is the number of completed steps, and `record` what the caller passed to `Checkpoints.save`. `damaged` has a
    sentence for each newer checkpoint that could not be used.
    """

    step: int
    record: dict[str, Any]
    damaged: tuple[str, ...]


class Checkpoints:
    """Checkpoints of one run in one directory: the newest `keep` and the best.

    All ranks have the same state, so the first rank writes it, reads it and broadcasts it. Every rank creates this
    object and calls the same methods; only the first needs access to the directory. A failed save leaves earlier
    checkpoints unchanged and is reported by `problems`; training continues, and the next save tries again.
    """

    def __init__(self, directory: Path, *, keep: int = 3, mesh: Mesh) -> None:
        """Lock the directory for this run, and remove incomplete files that a killed run left."""
        if keep < 1:
            raise ConfigError(f"keep must be the number of checkpoints to keep, at least 1, got {keep}")
        self._directory = directory
        self._keep = keep
        self._mesh = mesh
        self._pending: Future[None] | None = None
        self._staged: dict[str, Tensor] = {}
        self._problems: list[str] = []
        self._failure: str | None = None  # the error message of the last save; None if it succeeded
        _on_first_rank(mesh, self._open)

    def save(self, step: int, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
        """Write a checkpoint of `step` in the background: tensors, and a record that is written as JSON.

        The tensors may change as soon as this method returns. It first waits for the previous save to finish.
        """
        if not self._mesh.is_first:
            return
        self._wait()
        text = json.dumps(dict(record), allow_nan=False)
        staged = self._stage(tensors)
        executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending = executor.submit(self._write, step, staged, text)
        executor.shutdown(wait=False)  # The thread ends after the save, and the program waits for it.

    def finish(self) -> None:
        """Wait on all ranks until the last save is on disk. Raise `InputError` if it could not be written."""
        _on_first_rank(self._mesh, self._finish)

    def problems(self) -> list[str]:
        """Return a sentence for each problem since the last call, on the first rank; empty on other ranks.

        None of these problems stops the run.
        """
        problems = self._problems[:]
        del self._problems[: len(problems)]  # A save in the background may append to the list meanwhile.
        return problems

    def restore(self, tensors: Mapping[str, Tensor]) -> Restored | None:
        """Fill the tensors in place from the newest intact checkpoint, on all ranks.

        Return None if there is no checkpoint. Damaged checkpoints are skipped and renamed. Raise `InputError` if none
        is intact, or if the checkpoint's tensors have other names, shapes or dtypes.
        """
        restored = _on_first_rank(self._mesh, lambda: self._restore(tensors))
        if restored is None:
            return None
        if self._mesh.size > 1:
            for tensor in tensors.values():
                _broadcast(tensor.detach())
        return Restored(step=restored["step"], record=restored["record"], damaged=tuple(restored["damaged"]))

    def mark_best(self, step: int) -> None:
        """Keep the checkpoint of this step until another one is marked as the best.

        It first waits for the save in the background. A failure is only reported by `problems`.
        """
        if not self._mesh.is_first:
            return
        self._wait()
        try:
            if not checkpoint_path(self._directory, step).is_dir():
                self._problems.append(f"step {step} has the best score but no checkpoint in {self._directory}")
                return
            with atomic_write(self._directory / BEST_FILE) as temporary:
                temporary.write_text(json.dumps({"step": step}))
            self._prune()
        except OSError as error:
            self._problems.append(
                f"step {step} could not be marked as the best in {self._directory}: {error_reason(error)}"
            )

    def latest(self) -> int | None:
        """Return the newest step with a checkpoint, as seen by this rank; None if there is none."""
        return max(checkpoint_steps(self._directory), default=None)

    def best(self) -> int | None:
        """Return the step marked as the best, as seen by this rank; None if none is marked."""
        try:
            step = read_json(self._directory / BEST_FILE, "delete it")["step"]
        except (ValueError, KeyError, TypeError):
            return None  # At worst, the best checkpoint is deleted; the newest ones never are.
        return step if step in checkpoint_steps(self._directory) else None

    def _open(self) -> None:
        """Create the directory, lock it, and remove leftovers of a killed run."""
        with os_errors_as_input_errors(self._directory, "cannot hold checkpoints"):
            self._directory.mkdir(parents=True, exist_ok=True)
            problem = "another run writes its checkpoints here; wait for it, or train in another directory"
            try:
                # The lock is released when this object is freed. One process may open its directory again.
                self._lock = acquire_lock(self._directory / LOCK, problem, timeout=LOCK_TIMEOUT, is_singleton=True)
            except OSError as error:
                # Some cluster file systems have no locks. Training is possible there.
                if error.errno not in NO_LOCKS:
                    raise
                reason = f"cannot be locked ({error_reason(error)})"
                self._problems.append(f"{self._directory} {reason}; make sure that no other run writes there")
            remove_leftovers(self._directory)

    def _stage(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copy tensors to CPU memory and return the copies.

        Every save reuses this memory, which is page-locked for tensors on a GPU.
        """
        staged = {}
        for name, tensor in tensors.items():
            copy = self._staged.get(name)
            if copy is None or copy.shape != tensor.shape or copy.dtype != tensor.dtype:
                copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            copy.copy_(tensor.detach(), non_blocking=tensor.is_cuda)
            staged[name] = copy
        if any(tensor.is_cuda for tensor in tensors.values()):
            torch.cuda.current_stream(self._mesh.device).synchronize()
        self._staged = staged
        return staged

    def _write(self, step: int, tensors: Mapping[str, Tensor], record: str) -> None:
        """Write a checkpoint and delete old ones; failures are recorded as problems."""
        self._failure = None
        try:
            write_checkpoint(self._directory, step, tensors, record)
        except OSError as error:
            newest = self.latest()
            newest_text = "there is none yet" if newest is None else f"the newest checkpoint is from step {newest}"
            destination = f"to {self._directory} ({error_reason(error)})"
            self._failure = f"the checkpoint of step {step} could not be written {destination}; {newest_text}"
            self._problems.append(self._failure)
            return
        try:
            self._prune()
        except OSError as error:
            self._problems.append(f"old checkpoints in {self._directory} could not be deleted: {error_reason(error)}")

    def _prune(self) -> None:
        """Delete all checkpoints except the newest and the best."""
        best = self.best()
        for step in checkpoint_steps(self._directory)[: -self._keep]:
            if step != best:
                remove_checkpoint(self._directory, step)

    def _wait(self) -> None:
        """Wait for the save in the background, if any."""
        if self._pending is not None:
            self._pending.result()

    def _finish(self) -> None:
        """Wait for the last save, and raise `InputError` if it failed."""
        self._wait()
        if self._failure is not None:
            self._problems = [problem for problem in self._problems if problem != self._failure]
            raise InputError(f"{self._failure}; free space or allow writing there, and start the run again")

    def _restore(self, tensors: Mapping[str, Tensor]) -> dict[str, Any] | None:
        """Fill the tensors from the newest intact checkpoint, and return its step, record and damaged newer ones.

        Return None if there is no checkpoint.
        """
        self._wait()
        damaged: dict[int, str] = {}
        for step in reversed(checkpoint_steps(self._directory)):
            try:
                manifest = read_manifest(self._directory, step)
                if (difference := mismatch(manifest, tensors)) is not None:
                    raise InputError.at(
                        checkpoint_path(self._directory, step),
                        f"{difference}; resume with the settings that wrote it, or train in another directory",
                    )
                read_tensors(self._directory, manifest, tensors)
            except DamagedError as error:
                damaged[step] = str(error)
                continue
            return {
                "step": step,
                "record": manifest.record,
                "damaged": [self._set_aside(other, problem) for other, problem in damaged.items()],
            }
        if not damaged:
            return None
        step = max(damaged)
        raise InputError.at(
            self._directory,
            f"all checkpoints are damaged (step {step}: {damaged[step]}); restore a copy, or train in "
            "another directory",
        )

    def _set_aside(self, step: int, problem: str) -> str:
        """Rename a damaged checkpoint if possible, and return a sentence about it."""
        sentence = f"the checkpoint of step {step} in {self._directory} is damaged and was skipped: {problem}"
        try:
            return f"{sentence}; it is kept as {set_aside(self._directory, step).name}"
        except OSError:
            return sentence


def newest_record(directory: Path) -> dict[str, Any] | None:
    """Return the record of the newest checkpoint in a directory with an intact manifest; None if there is none."""
    for step in reversed(checkpoint_steps(directory)):
        with suppress(DamagedError):
            return read_manifest_only(directory, step).record
    return None


def _on_first_rank(mesh: Mesh, action: Callable[[], Any]) -> Any:
    """Run `action` on the first rank only. Return its result or raise its `InputError` on every rank."""
    outcome: dict[str, Any] = {}
    if mesh.is_first:
        try:
            outcome = {"value": action()}
        except InputError as error:
            if mesh.size == 1:
                raise
            outcome = {"error": str(error)}
    outcome = mesh.broadcast(outcome)
    if "error" in outcome:
        raise InputError(outcome["error"])
    return outcome["value"]


def _broadcast(tensor: Tensor) -> None:
    """Copy the first rank's tensor to all ranks, bit for bit and in any dtype."""
    flat = tensor.reshape(-1)
    if flat.numel():
        dist.broadcast(flat.view(torch.uint8), src=0)
        if not tensor.is_contiguous():
            tensor.copy_(flat.view(tensor.shape))
