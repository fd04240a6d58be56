"""Measure the effect of each technique for `helixfold benchmark ablation`, by switching off one at a time.

Most of the techniques are described by Wang et al. 2022 (arXiv 2207.05477): fused operators, fused tensors,
recomputation, bfloat16 and updates in place. `KINDS` groups the fused operators, each group for one technique.
`TECHNIQUES` lists the techniques of both parts, and `STAGES` has the settings of AlphaFold's stages of training.
"""

import math
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from data_pipeline.io.errors import InputError
from data_pipeline.sampling import training as examples
from helixfold.benchmark.measurement import measured_device, peak_of, settle, write_json
from helixfold.benchmark.options import AblationOptions, AblationPart
from helixfold.execution.allocator import keep_few_kernels, keeping_freed_memory
from helixfold.execution.device import DTYPES, pick_device
from helixfold.execution.random_inputs import random_batch, random_labels
from helixfold.execution.recompute import RecomputeConfig, recompute
from helixfold.execution.slabs import LocalStream, Slabs
from helixfold.execution.stages import mean_seconds
from helixfold.execution.whole import Whole
from helixfold.losses import config as losses
from helixfold.losses.config import LossConfig
from helixfold.losses.total import total_loss
from helixfold.model.alphafold import IN_FLOAT32
from helixfold.model.config import ModelConfig
from helixfold.model.outputs import Outputs
from helixfold.model.presets import preset
from helixfold.model.update import Context, ContextInput, Stream, Update
from helixfold.ops.dispatch import forced
from helixfold.optim.config import OptimizerConfig
from helixfold.optim.flat import FlatOptimizer
from helixfold.parallel.launch import on_ranks
from helixfold.parallel.mesh import Mesh
from helixfold.planning.executors import executor
from helixfold.planning.size import dtype_name
from helixfold.weights.untrained import untrained_model

Results = Mapping[str, Tensor]
# Names of the fused operators, by the kind that is switched off together. Each kind is one technique.
KINDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "attention": frozenset({"attention", "self_attention", "global_attention"}),
        "triangle multiplication": frozenset({"triangle_operand", "triangle_multiplication", "triangle_update"}),
        "outer product mean": frozenset({"outer_product_operand", "outer_product_operands", "outer_product_mean"}),
        "transition": frozenset({"transition"}),
        "norms and linear layers": frozenset({"layer_norm", "norm_linear", "linear", "multiply"}),
        "residual addition": frozenset({"add_change"}),
        "invariant point attention": frozenset({"point_attention", "invariant_point_attention"}),
    }
)
ALL_OPERATORS = frozenset().union(*KINDS.values())
_ADAM_LEARNING_RATE = 1e-3
_NO_RECOMPUTATION = RecomputeConfig.everywhere("none")


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The network, its losses in training, and the sizes of its random inputs.

    `rows` is the number of MSA rows without templates. `recycles` is the number of recycling iterations before the last
    one. `draw` is the seed of the random inputs and of dropout.
    """

    model: ModelConfig
    losses: LossConfig
    residues: int
    rows: int
    extra_rows: int
    templates: int
    recycles: int
    draw: int = 0

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """The numbers of residues, MSA rows, extra MSA rows and templates."""
        return self.residues, self.rows, self.extra_rows, self.templates


@dataclass(frozen=True, kw_only=True)
class TrainingSetup:
    """Settings of a training step: the techniques that are switched on.

    `dtype` is the precision of the trunk. `plain` names the operators that use PyTorch's own functions. With
    `flat_optimizer`, the optimizer is `FlatAdam`, whose buffers hold all parameters, gradients and moments; otherwise
    it is `AdamByTensor`.
    """

    dtype: torch.dtype
    plain: frozenset[str] = frozenset()
    recompute: RecomputeConfig = field(default_factory=RecomputeConfig)
    flat_optimizer: bool = True

    def plainest(self) -> "TrainingSetup":
        """Return the setup of the same dtype with every technique switched off."""
        return TrainingSetup(dtype=self.dtype, plain=ALL_OPERATORS, recompute=_NO_RECOMPUTATION, flat_optimizer=False)

    def run(self, problem: Problem, device: torch.device) -> "TrainingRun":
        """Create the network, inputs and optimizer for a training step with this setup, without running the step."""
        return TrainingRun(problem, self, device)


@dataclass(frozen=True, kw_only=True)
class PredictionSetup:
    """Settings of a prediction.

    `plain` names the operators that use PyTorch's own functions. `way` is the executor; "slabs, not in place" is the
    executor `NotInPlace`.
    """

    dtype: torch.dtype
    plain: frozenset[str] = frozenset()
    way: Literal["whole", "slabs", "slabs, not in place", "spilled"] = "slabs"

    def plainest(self) -> "PredictionSetup":
        """Return the setup of the same dtype with every technique switched off."""
        return PredictionSetup(dtype=self.dtype, plain=ALL_OPERATORS, way="whole")

    def run(self, problem: Problem, device: torch.device) -> "PredictionRun":
        """Create the network, inputs and executor for a prediction with this setup, without running it."""
        return PredictionRun(problem, self, device)


Setup = TrainingSetup | PredictionSetup


@dataclass(frozen=True, kw_only=True)
class Technique:
    """A technique, and the two setups that are compared: with it (`on`) and without it (`off`)."""

    name: str
    on: Setup
    off: Setup


def training_techniques(dtype: torch.dtype) -> list[Technique]:
    """Return the techniques of a training step whose normal precision is `dtype`.

    They are the fused operators (all, then each of `KINDS`), the precision unless it is float32, flat buffers and
    recomputation.
    """
    on = TrainingSetup(dtype=dtype)
    return [
        *_operators_and_dtype(on),
        Technique(name="flat buffers of the optimizer", on=on, off=replace(on, flat_optimizer=False)),
        Technique(name="recomputed blocks", on=on, off=replace(on, recompute=_NO_RECOMPUTATION)),
    ]


def prediction_techniques(dtype: torch.dtype) -> list[Technique]:
    """Return the techniques of a prediction whose normal precision is `dtype`.

    They are the fused operators (all, then each of `KINDS`), the precision unless it is float32, slabs, updates in
    place and spilled streams.
    """
    on = PredictionSetup(dtype=dtype)
    return [
        *_operators_and_dtype(on),
        Technique(name="slabs", on=on, off=replace(on, way="whole")),
        Technique(name="updates in place", on=on, off=replace(on, way="slabs, not in place")),
        Technique(name="spilled streams", on=replace(on, way="spilled"), off=on),
    ]


def _operators_and_dtype(on: Setup) -> Iterator[Technique]:
    for kind, names in {"operators, all": ALL_OPERATORS, **KINDS}.items():
        yield Technique(name=f"fused {kind}", on=on, off=replace(on, plain=names))
    if on.dtype != torch.float32:
        yield Technique(name=dtype_name(on.dtype), on=on, off=replace(on, dtype=torch.float32))


class AdamByTensor:
    """Optimizer that processes tensor by tensor with `torch.optim.Adam`: clipping, update, moving average, rounding.

    The model's parameters are cast to `dtype`, except in submodules that stay in float32. `masters` are the float32
    copies of all parameters, which Adam updates.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self._parameters = list(model.parameters())
        self.masters = [nn.Parameter(parameter.detach()) for parameter in self._parameters]
        self._averages = [master.detach().clone() for master in self.masters]
        float32_ids = {id(each) for name in IN_FLOAT32 for each in model.get_submodule(name).parameters()}
        for parameter in self._parameters:
            parameter.data = parameter.detach() if id(parameter) in float32_ids else parameter.detach().to(dtype)
        self._adam = torch.optim.Adam(self.masters, lr=_ADAM_LEARNING_RATE, eps=1e-6, foreach=False)

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of the loss and store them, in float32, as the gradients of the masters."""
        loss.backward()
        for parameter, master in zip(self._parameters, self.masters, strict=True):
            master.grad = None if parameter.grad is None else parameter.grad.to(master.dtype)
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Clip the gradients, update masters, moving averages and the model's parameters, and clear the gradients."""
        nn.utils.clip_grad_norm_(self.masters, 0.1, foreach=False)
        self._adam.step()
        for parameter, master, average in zip(self._parameters, self.masters, self._averages, strict=True):
            average.lerp_(master, 1e-3)
            parameter.copy_(master)
        self._adam.zero_grad()

    def gradient(self) -> Tensor:
        """Return the gradients of all masters as one vector, in the order of the model's parameters.

        Parameters without a gradient have zeros.
        """
        return torch.cat(
            [(torch.zeros_like(each) if each.grad is None else each.grad).flatten() for each in self.masters]
        )


class FlatAdam:
    """The same optimizer as `AdamByTensor`, computed by `FlatOptimizer` on flat buffers of parameters and moments."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self._model = model
        config = OptimizerConfig(clipping="global")
        self._optimizer = FlatOptimizer(model, config, working_dtype=dtype, keep_float32=IN_FLOAT32)

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of the loss and collect them in the optimizer's flat buffer."""
        self._optimizer.backward(loss)
        self._optimizer.collect(last=True)

    def step(self) -> None:
        """Clip the gradients, update parameters, moments and moving average, and clear the gradients."""
        self._optimizer.step(_ADAM_LEARNING_RATE, micro_batches=1)

    def gradient(self) -> Tensor:
        """Return the collected gradients as one vector, in the order of the model's parameters."""
        offsets = {id(parameter): start for parameter, start, _ in self._optimizer.trained}
        values = self._optimizer.gradient_sum
        return torch.cat([values[offsets[id(each)] :][: each.numel()] for each in self._model.parameters()])


class TrainingRun:
    """A training step with a setup, which can be run several times.

    The network, its optimizer and the random inputs are created at once. They are the same for all setups of a problem.
    """

    def __init__(self, problem: Problem, setup: TrainingSetup, device: torch.device) -> None:
        self._problem, self._setup = problem, setup
        self._model = untrained_model(problem.model, seed=0).to(device).train()
        recompute(self._model, setup.recompute)
        self._optimizer = (FlatAdam if setup.flat_optimizer else AdamByTensor)(self._model, setup.dtype)
        torch.manual_seed(problem.draw)
        self._batch = random_batch(*problem.sizes, device)
        self._labels = random_labels(self._batch)

    def step(self) -> None:
        """Run one whole training step: recycling, forward, loss, backward and the optimizer's update."""
        self._gradients()
        self._optimizer.step()

    def results(self) -> Results:
        """Return the loss [1] and its gradient with respect to all parameters as one vector [n], on the CPU.

        The parameters are not updated.
        """
        loss = self._gradients()
        return {"loss": loss.cpu()[None], "gradient": self._optimizer.gradient().cpu()}

    def _gradients(self) -> Tensor:
        """Compute the gradients of the parameters, which the optimizer holds, and return the loss."""
        torch.manual_seed(self._problem.draw)  # for dropout
        inputs, dtype = [self._batch], self._setup.dtype
        with _operators(self._setup.plain):
            previous = self._model.recycle(Whole(), [inputs] * self._problem.recycles, dtype)
            outputs = self._model(Whole(), inputs, previous, dtype)
            loss = total_loss(outputs, self._batch, self._labels, self._problem.losses).total.mean()
            del outputs
            self._optimizer.backward(loss)
        return loss.detach()


class PredictionRun:
    """A prediction with a setup, which can be run several times.

    The network, its executor and the random inputs are created at once. They are the same for all setups of a problem.
    """

    def __init__(self, problem: Problem, setup: PredictionSetup, device: torch.device) -> None:
        self._problem, self._setup = problem, setup
        self._model = untrained_model(problem.model, seed=0).requires_grad_(False).to(device)
        not_in_place = setup.way == "slabs, not in place"
        self._executor = NotInPlace() if not_in_place else executor(setup.way, Path(tempfile.gettempdir()), device)
        torch.manual_seed(problem.draw)
        self._batch = random_batch(*problem.sizes, device)

    def step(self) -> Outputs:
        """Run one prediction, with recycling, and return its outputs."""
        inputs, dtype = [self._batch], self._setup.dtype
        with torch.no_grad(), _operators(self._setup.plain):
            previous = self._model.recycle(self._executor, [inputs] * self._problem.recycles, dtype)
            return self._model(self._executor, inputs, previous, dtype)

    def results(self) -> Results:
        """Run one prediction and return, by name, the pair stream, the atom positions and all logits, on the CPU."""
        outputs = self.step()
        logits = {each.name: getattr(outputs.logits, each.name) for each in fields(outputs.logits)}
        return {
            "pair stream": self._executor.gather(outputs.representations.pair).float().cpu(),
            "atoms": outputs.structure.positions.cpu(),
            **{name.replace("_", " "): each.cpu() for name, each in logits.items() if each is not None},
        }


class NotInPlace(Slabs):
    """Executor like `Slabs` that writes the result of each update to new memory instead of updating in place."""

    @torch.no_grad()
    def apply(
        self,
        update: Update,
        stream: Stream,
        mask: Tensor,
        context_input: ContextInput,
        *,
        context: Context,
        dropout_mask: Tensor | None,
    ) -> LocalStream:
        """Return the updated stream in new memory, and leave `stream` unchanged."""
        copy = self.gather(stream).clone()
        return super().apply(update, copy, mask, context_input, context=context, dropout_mask=dropout_mask)


def _operators(plain: frozenset[str]) -> AbstractContextManager[object]:
    """Return a context in which these operators use PyTorch's own functions."""
    return forced("reference", plain) if plain else nullcontext()


TECHNIQUES = {"training": training_techniques, "prediction": prediction_techniques}
STAGES = {
    "initial": (examples.initial_training(), losses.initial_training(), "initial training"),
    "finetuning": (examples.finetuning(), losses.finetuning(), "fine-tuning"),
}
_EXIT_CODE_OF_WRONG_RESULTS = 1
_MIB = 2**20
# Minimum time of a measurement; shorter steps are repeated.
_MIN_SECONDS = 0.3
# Largest allowed errors, in float32 and in lower precision, relative to the norm of plain PyTorch's result in float32.
# In lower precision, twice plain PyTorch's own error is allowed if that is larger.
_MAX_FLOAT32_ERROR, _MAX_LOW_PRECISION_ERROR, _MAX_RATIO_TO_PLAIN_ERROR = 1e-4, 2e-3, 2.0
_TABLE_HEADER = (
    f"{'':38} {'with, ms':>10} {'without':>10} {'faster':>8} {'(range)':>13}  {'with, MiB':>10} {'without':>10} "
    f"{'less':>6}"
)


@dataclass(kw_only=True)
class Reading:
    """Measurements of one setup.

    `seconds` has the mean time of a step in each round. `memory` is the peak in bytes, without the memory of the
    program itself, but with parameters, moments and inputs. `faults` has a sentence for each wrong result.
    """

    setup: Setup
    seconds: list[float] = field(default_factory=list)
    memory: int = 0
    faults: list[str] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        """Return the reading as a dict for JSON, with all values of the setup as text."""
        setup = {name: str(value) for name, value in vars(self.setup).items()}
        setup |= {"dtype": dtype_name(self.setup.dtype), "plain": " ".join(sorted(self.setup.plain))}
        return vars(self) | {"setup": setup}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A technique with the readings with and without it."""

    technique: Technique
    on: Reading
    off: Reading

    def lines(self) -> Iterator[str]:
        """Yield the row of the table as text, and a line for each wrong result.

        The row has the median step times and peak memory with and without the technique, and their ratios.
        """
        on, off = self.on, self.off
        # These are the ratios of step times without and with the technique, in each round.
        ratios = [longer / shorter for shorter, longer in zip(on.seconds, off.seconds, strict=True)]
        spread = f"({min(ratios):.2f}-{max(ratios):.2f})"
        yield (
            f"{self.technique.name:38} {1e3 * statistics.median(on.seconds):10,.1f} "
            f"{1e3 * statistics.median(off.seconds):10,.1f} {statistics.median(ratios):7.2f}x {spread:>13}  "
            f"{on.memory / _MIB:10,.1f} {off.memory / _MIB:10,.1f} {off.memory / max(on.memory, 1):5.2f}x"
        )
        yield from (f"    WRONG, with: {fault}" for fault in on.faults)
        yield from (f"    WRONG, without: {fault}" for fault in off.faults)

    def row(self, part: AblationPart) -> dict[str, Any]:
        """Return the readings with and without the technique as a dict for JSON; `part` is training or prediction."""
        return {
            "technique": self.technique.name,
            "part": part,
            "with": self.on.row(),
            "without": self.off.row(),
        }


def run(options: AblationOptions) -> int:
    """Measure and print the time and memory with and without each technique. Return 0, or 1 if any result is wrong.

    With `--json`, the measurements are also written to a file. Raise `InputError` if the file cannot be written, or no
    technique matches `--only`.
    """
    if options.json is not None and not options.json.parent.is_dir():
        raise InputError(f"{options.json} cannot be written: {options.json.parent} is not a directory")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    device, dtype = pick_device(options.device), DTYPES[options.dtype]
    techniques = {
        part: [each for each in TECHNIQUES[part](dtype) if options.only in each.name] for part in options.parts
    }
    if not any(techniques.values()):
        raise InputError(f"--only {options.only!r}: no technique has this in its name")
    machine = measured_device(device, list(dict.fromkeys([torch.float32, dtype])), options.repeats)
    problem, name = _problem(options)
    print("\n".join(machine.lines()))
    print(f"\n{name}; medians of {options.repeats}, memory without the program itself")
    rows = []
    for part, matching in techniques.items():
        if matching:
            what = "a training step" if part == "training" else "a prediction"
            print(f"\n{what}, {options.dtype}\n{_TABLE_HEADER}", flush=True)
            for comparison in comparisons(matching, problem, options.repeats, str(device)):
                rows.append(comparison.row(part))
                print("\n".join(comparison.lines()), flush=True)
    content = {"machine": machine.to_dict(), "name": name, "options": asdict(options), "techniques": rows}
    write_json(options.json, content)
    return _EXIT_CODE_OF_WRONG_RESULTS if any(row[way]["faults"] for row in rows for way in ("with", "without")) else 0


def comparisons(techniques: Sequence[Technique], problem: Problem, repeats: int, device: str) -> list[Comparison]:
    """Measure all setups of these techniques in a new process, and return a comparison for each technique."""
    setups = list(dict.fromkeys(setup for each in techniques for setup in (each.on, each.off)))
    threads = torch.get_num_threads()
    readings: list[Reading] = on_ranks(1, measure, problem, setups, repeats, device=device, threads=threads)
    by_setup = dict(zip(setups, readings, strict=True))
    return [Comparison(technique=each, on=by_setup[each.on], off=by_setup[each.off]) for each in techniques]


def measure(mesh: Mesh, problem: Problem, setups: Sequence[Setup], repeats: int) -> list[Reading]:
    """Check the results of each setup, then measure its peak memory and, in `repeats` rounds, the time of a step.

    `mesh` is a mesh of one rank, which gives the device. Each round rebuilds and measures every setup once, so that
    changes in the machine's speed affect all setups alike.
    """
    if all(isinstance(setup, PredictionSetup) for setup in setups):
        keep_few_kernels()  # `helixfold predict` does the same, but not `helixfold train`.
    device, readings = mesh.device, judge(problem, setups, mesh.device)

    def two_steps(setup: Setup) -> None:
        run = setup.run(problem, device)
        run.step()
        run.step()  # The second step includes moments and buffers.

    for reading in readings:
        settle()
        reading.memory = peak_of(lambda setup=reading.setup: two_steps(setup), device)  # type: ignore[misc]
    with keeping_freed_memory():
        for _ in range(repeats):
            for reading in readings:
                step = reading.setup.run(problem, device).step
                step()
                once = mean_seconds(step, device=device)
                times = math.ceil(_MIN_SECONDS / once) - 1
                reading.seconds.append(mean_seconds(step, times, device) if times else once)
    return readings


def judge(problem: Problem, setups: Sequence[Setup], device: torch.device) -> list[Reading]:
    """Check the results of each setup, and return readings that list wrong results but have no measurements yet.

    Results are compared with plain PyTorch in float32. A setup is wrong only if it fails for two random inputs.
    """
    # Recycling is off, because recycled distances are sorted into bins, where rounding may change the bin.
    problem = replace(problem, recycles=0)

    def results(setup: Setup, draw: int) -> Results:
        return setup.run(replace(problem, draw=draw), device).results()

    plain_results = cache(results)

    def faults(setup: Setup, draw: int) -> list[str]:
        in_float32 = replace(setup, dtype=torch.float32)
        true = plain_results(in_float32.plainest(), draw)
        allowed = dict.fromkeys(true, _MAX_FLOAT32_ERROR)
        wrong = list(_faults(errors(results(in_float32, draw), true), allowed, "float32"))
        if setup != in_float32:
            plain = errors(plain_results(setup.plainest(), draw), true)
            allowed = {
                name: max(_MAX_LOW_PRECISION_ERROR, _MAX_RATIO_TO_PLAIN_ERROR * error) for name, error in plain.items()
            }
            wrong += _faults(errors(results(setup, draw), true), allowed, dtype_name(setup.dtype))
        return wrong

    # The results must be right for one of two random inputs. If a hidden value is almost 0, rounding can change whether
    # ReLU passes it on, and thus the gradient. Wrong code fails for both inputs.
    return [Reading(setup=setup, faults=faults(setup, 0) and faults(setup, 1)) for setup in setups]


def errors(results: Results, true: Results) -> dict[str, float]:
    """Return the norm of each result's difference from the true result, relative to the norm of the true result."""
    return {
        name: float((results[name].double() - right.double()).norm() / right.double().norm())
        for name, right in true.items()
    }


def _faults(relative_errors: dict[str, float], allowed: dict[str, float], dtype: str) -> Iterator[str]:
    for name, error in relative_errors.items():
        if not error <= allowed[name]:  # This is also true for NaN.
            yield f"{name} is off by {error:.1e} in {dtype}; at most {allowed[name]:.1e} is allowed"


def _problem(options: AblationOptions) -> tuple[Problem, str]:
    """Return the problem for these options, and its description for the table."""
    example, loss, stage = STAGES[options.stage]
    model, sampling = preset(options.preset).model, preset(options.preset).sampling
    blocks = ""
    if options.blocks is not None:
        evoformer, extra_msa = replace(model.evoformer, blocks=options.blocks), replace(model.extra_msa, blocks=1)
        model, blocks = replace(model, evoformer=evoformer, extra_msa=extra_msa), f" with {options.blocks} + 1 blocks"
    problem = Problem(
        model=model,
        losses=loss,
        residues=options.crop or (64 if options.preset == "tiny" else example.crop_size),
        rows=options.rows or min(example.sampling.max_msa_clusters, sampling.max_msa_clusters),
        extra_rows=options.extra_rows or min(example.sampling.max_extra_msa, sampling.max_extra_msa),
        templates=sampling.max_templates if model.template else 0,
        recycles=options.num_recycles,
    )
    name = (
        f"{options.preset}{blocks}, {problem.residues} residues, {problem.rows} + {problem.templates} rows, "
        f"{problem.extra_rows} extra rows, {options.num_recycles} recycles, losses of {stage}"
    )
    return problem, name
