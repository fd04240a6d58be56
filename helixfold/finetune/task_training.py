"""Train low-rank changes of a network together with the head of a task; a killed training goes on to the same bits."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from data_pipeline.datasets.chain_sampling import StreamUse, random_stream
from data_pipeline.errors import InputError
from helixfold.execution.dtypes import dtype_on
from helixfold.finetune.adapted import FrozenParameters, LowRankTrained
from helixfold.finetune.task_heads import LinearHead, loss_of
from helixfold.finetune.task_run import Task, head_input
from helixfold.ops.card import card_of
from helixfold.parallel.mesh import Mesh
from helixfold.parallel.parallelize import parallelize
from helixfold.training.checkpoint import Checkpoints
from helixfold.training.progress import print_message
from helixfold.training.stopping import StopRequest

_HEAD = "task_head"


class TaskTraining:
    """Training of a head and of low-rank changes of the network that it reads, one step after another.

    Another one of the same directory goes on from the newest checkpoint that is whole. A step depends on the state
    before it, the settings and the table alone.
    """

    def __init__(self, task: Task, base: FrozenParameters, fitted: LinearHead, mesh: Mesh, checkpoints: Path) -> None:
        """Prepare the training of a head that was fitted to the frozen network."""
        self.task, self.mesh = task, mesh
        config = task.config.run
        self.trained = LowRankTrained(base, task.config.low_rank, seed=config.seed)
        self.head = LinearHead(len(fitted.weight)).to(mesh.device)
        self.head.load_state_dict(fitted.state_dict())
        self.trained.numbers.add_module(_HEAD, self.head)
        dtype = dtype_on(config.dtype, card_of(mesh.device))
        self.optimizer = self.trained.optimizer(config.optimizer, dtype, averages=True)
        self.checkpoints = Checkpoints(checkpoints, keep=config.keep, mesh=mesh)
        self.step = self.skipped_in_a_row = 0
        restored = self.checkpoints.restore(self.optimizer.tensors())
        if restored is not None:
            self.optimizer.restored()
            self.step, self.skipped_in_a_row = restored.step, int(restored.record["skipped_in_a_row"])
            for text in (*restored.damaged, f"going on after {self.step} steps"):
                print_message(text)

    def run(self, stop: StopRequest) -> bool:
        """Make the steps that are left; return False if `stop` ended them earlier, with everything saved.

        Raise `InputError` if the loss or gradient of too many steps in a row is not finite.
        """
        config = self.task.config.run
        bar = tqdm(initial=self.step, total=config.steps, desc="training", unit="step", disable=None)
        with bar:
            while self.step < config.steps:
                self._make_step()
                bar.update()
                stopping = stop.is_requested()
                if self.step % config.save_every == 0 or self.step == config.steps or stopping:
                    record = {"config": config.to_dict(), "skipped_in_a_row": self.skipped_in_a_row}
                    self.checkpoints.save(self.step, self.optimizer.tensors(), record)
                for problem in self.checkpoints.problems():
                    print_message(problem)
                if stopping:
                    break
        self.trained.release()
        self.checkpoints.finish()
        return self.step >= config.steps

    def averages(self) -> tuple[LinearHead, dict[str, Tensor]]:
        """Return the head and the low-rank changes by name, as moving averages over the steps."""
        averages: Mapping[str, Tensor] = self.optimizer.averaged()
        own = {name: tensor for name, tensor in averages.items() if name.startswith(f"{_HEAD}.")}
        head = LinearHead(len(self.head.weight))
        head.load_state_dict(
            {**self.head.state_dict(), **{name.removeprefix(f"{_HEAD}."): tensor for name, tensor in own.items()}}
        )
        return head, {name: tensor for name, tensor in averages.items() if name not in own}

    def _make_step(self) -> None:
        task, config = self.task, self.task.config.run
        run = parallelize(self.trained.model.train(), self.mesh, config.recompute)
        rows = task.of("train")
        rng = random_stream(config.seed, StreamUse.DROPOUT, self.step, 0)
        chosen = rng.choice(rows, min(config.batch_size, len(rows)), replace=False)
        for part, number in enumerate(chosen):
            torch.manual_seed(int(rng.integers(2**62)))
            self.trained.apply()
            numbers = head_input(
                task, int(number), self.trained.model, run, self.mesh.device, position=1 + self.step, part=part
            )
            value = task.values([int(number)]).to(self.mesh.device)
            self.optimizer.backward(loss_of(self.head(numbers[None]), value, task.kind))
            self.optimizer.collect(last=part == len(chosen) - 1)
        report = self.optimizer.step(config.optimizer.rate(self.step), micro_batches=len(chosen))
        self.step += 1
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if report.skipped else 0
        if self.skipped_in_a_row >= config.max_skipped:
            raise InputError(
                f"{self.skipped_in_a_row} steps in a row had a loss or gradient that is not finite; lower "
                "--learning-rate and name another directory"
            )
