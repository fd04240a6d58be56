"""`helixfold doctor`: what was found on this machine, how large it is, and what each target would use."""

import argparse
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path

import torch

import helixfold
from data_pipeline.errors import InputError
from data_pipeline.pipeline import Target
from data_pipeline.search.database import HMMER, AlignmentDatabase, DatabaseProfile, TemplateDatabase, database_files
from data_pipeline.search.plan import PACKAGES
from data_pipeline.search.process import find_program, program_version
from data_pipeline.search.profile_search import PYHMMER_VERSION
from helixfold.benchmark.op_cases import OpCase, Shape, op_cases
from helixfold.execution import allocator
from helixfold.execution.available import available_memory
from helixfold.execution.device import pick_device
from helixfold.ops.card import CARDS, Card, card_of, described
from helixfold.planning.executors import Room, room_of
from helixfold.predict import memory_plan
from helixfold.predict import options as predict_options
from helixfold.predict.relaxation import INSTALL
from helixfold.predict.sizes import positive
from helixfold.predict.targets import read_targets
from helixfold.presets import PRESETS
from helixfold.relax.problem import installed
from helixfold.relax.relaxation import where
from helixfold.weights import demonstration
from helixfold.weights.download import parameters_directory
from helixfold.weights.find import DEFAULT

_MAX_COUNTED = 10_000  # structure files; a mirror of the PDB holds 200,000
# The processors of this machine are asked by their own name, not those of a described one.
_DESCRIBED = [name for name in CARDS if name != "cpu"]


def report(profile: DatabaseProfile, targets: Sequence[Target], server: str | None = None) -> Iterator[str]:
    """Yield the report's lines: machine, parameters, programs, databases, targets."""
    yield from _machine()
    yield ""
    yield "search programs"
    yield _row("pyhmmer", f"{PYHMMER_VERSION}, jackhmmer and hmmsearch in this process")
    for name, package in PACKAGES.items():
        path = find_program(name)
        if path is None:
            yield _row(name, f"not installed (package {package})")
        else:
            version = program_version(path, "version") if name == "mmseqs" else program_version(path)
            yield _row(name, f"{version}  {path}")
    yield ""
    yield from _databases(profile, server)
    if targets:
        yield ""
        yield from _targets(profile, targets, server)


def _machine() -> Iterator[str]:
    yield f"helixfold {helixfold.__version__}, Python {platform.python_version()}, PyTorch {torch.__version__}"
    device = pick_device()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    yield _row("device", f"{device} ({name}), {os.cpu_count()} processors")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield _row("memory", _size(memory))
    directory = parameters_directory()
    files = _parameter_files(directory)
    if not files:
        yield _row("parameters", f"none in {directory}; `helixfold weights download` fetches them")
        file = demonstration.WEIGHTS
        yield _row("", f"so the demonstration model: {file.name}  {_size(file.stat().st_size)}  {file.parent}")
    for file in files:
        yield _row("parameters", f"{file.name}  {_size(file.stat().st_size)}  {file.parent}")
    yield _row("relaxation", f"by OpenMM on {where(device)}" if installed() else f"not installed: {INSTALL}")


def _memory(options: argparse.Namespace) -> Iterator[str]:
    """Yield what each model that is here would take, or the published one and the one in the package."""
    if options.device in _DESCRIBED:
        card = CARDS[options.device]
        # All of the card, and as much of a host's memory as this machine has free.
        room = Room(memory=card.memory, spill=available_memory(torch.device("cpu")))
    else:
        try:
            device = pick_device(options.device)
        except InputError as error:
            yield f"memory: {error}"
            return
        card, room = card_of(device), room_of(device, Path())
    names = [file.stem.removeprefix("params_") for file in _parameter_files(parameters_directory())]
    chosen = [name for name in names if name in PRESETS] or [DEFAULT, demonstration.NAME]
    yield from memory_plan.machine([PRESETS[name]() for name in chosen], options.length, card, room)


def _parameter_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("params_model_*.npz"))


def _databases(profile: DatabaseProfile, server: str | None) -> Iterator[str]:
    yield "databases, in the order in which their rows are merged"
    if not profile.alignments and profile.templates is None and server is None:
        yield "  none; name them with --databases or --database, or give alignments with --msa"
    for database in profile.alignments:
        limit = "" if database.max_rows is None else f", at most {database.max_rows:,} rows"
        yield _row(database.name, f"{_tool(database)}{limit}")
        yield from _files(database)
    if server is not None:
        yield _row("server", f"{server}: sequences are sent there")
    if profile.templates is not None:
        date = profile.templates.latest_release
        yield _row("templates", f"{_tool(profile.templates)}{'' if date is None else f', released until {date}'}")
        yield from _files(profile.templates)
        yield _row("", f"structures in {profile.templates.structures}: {_count(profile.templates.structures)}")
    for note in profile.notes:
        yield _row("note", note)


def _targets(profile: DatabaseProfile, targets: Sequence[Target], server: str | None) -> Iterator[str]:
    yield "targets"
    searched = [f"{database.name} ({_tool(database)})" for database in profile.alignments]
    searched += [] if server is None else ["server"]
    for target in targets:
        sources = [str(path) for path in target.alignments] + searched
        templates = ", ".join(map(str, target.templates))
        if not templates:
            templates = "none" if profile.templates is None else _tool(profile.templates)
        yield _row(target.name, f"{len(target.sequence):,} residues")
        yield _row("", f"alignment from {', '.join(sources) if sources else 'nothing but the sequence itself'}")
        yield _row("", f"templates from {templates}")


def _tool(database: AlignmentDatabase | TemplateDatabase) -> str:
    in_process = database.tool in HMMER and database.engine == "pyhmmer"
    return f"{database.tool} in this process" if in_process else database.tool


def _files(database: AlignmentDatabase | TemplateDatabase) -> Iterator[str]:
    files = database_files(database)
    total = sum(file.stat().st_size for file in files)
    yield _row("", f"{_size(total)} in {len(files)} files: {', '.join(map(str, database.paths))}")


def _count(directory: Path) -> str:
    count = sum(1 for _, entry in zip(range(_MAX_COUNTED), directory.rglob("*"), strict=False) if entry.is_file())
    return f"{count:,} files" if count < _MAX_COUNTED else f"{_MAX_COUNTED:,} files or more"


def _size(size: int) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024  # type: ignore[assignment]
    return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"


def _row(name: str, value: str) -> str:
    return f"  {name:<12}{value}" if len(name) < 12 else f"  {name}\n  {'':<12}{value}"


def _operators(options: argparse.Namespace) -> Iterator[str]:
    """Yield which backend computes each operator at a size, and why no other."""
    is_described = options.device in _DESCRIBED
    try:
        card = CARDS[options.device] if is_described else card_of(pick_device(options.device))
    except InputError as error:
        yield f"operators: {error}, or a card: {', '.join(_DESCRIBED)}"
        return
    shape = Shape(residues=options.length, rows=options.rows, dtype=getattr(torch, options.dtype))
    yield f"operators on {card.name}, {options.length} residues, {options.rows} rows, {options.dtype}"
    for case in op_cases(shape, "meta"):
        with described(card) if is_described else nullcontext():
            lines = _operator_lines(case, card)
        yield from (f"  {case.name if line is lines[0] else '':48}{line}" for line in lines)
    if card.kind == "cpu":
        refused = allocator.refusal()
        kept = "kept for later ones by predict, train and benchmark"
        yield f"  {'memory that tensors leave':48}{kept if refused is None else f'left as it is: {refused}'}"


def _operator_lines(case: OpCase, card: Card) -> list[str]:
    with torch.no_grad():
        predicting = _choices(case, card)
    with torch.enable_grad():
        training = predicting if case.in_place else _choices(case, card)
    if predicting == training:
        return predicting
    return [f"{line}, in prediction" for line in predicting] + [f"{line}, in training" for line in training]


def _choices(case: OpCase, card: Card) -> list[str]:
    """Return of each of its operators the first backend that can, and why none before it."""
    lines = []
    for op, arguments in case.calls:
        before: list[str] = []
        for name, reason in op.refusals(card, *arguments).items():
            if reason is None:
                because = f" ({'; '.join(before)})" if before else ""
                lines.append(f"{op.name}: {name}{because}")
                break
            before.append(f"{name}: {reason}")
    return lines


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Describe `helixfold doctor` to the command line."""
    parser = commands.add_parser(
        "doctor",
        help="what is installed, what memory suffices for, and what each target and each operator would use",
        description="Show machine, parameters, search programs and databases, what targets would be made from, and, "
        "for a number of residues, what each model takes of the memory and what computes each operator.",
    )
    parser.set_defaults(run=_run)
    parser.add_argument("inputs", nargs="*", type=Path, metavar="FILE", help="targets, as for `helixfold predict`")
    predict_options.add_search_options(parser)
    _add_operator_options(parser)


def _add_operator_options(parser: argparse.ArgumentParser) -> None:
    """Let the parser take the size and the place that operators are asked about."""
    group = parser.add_argument_group("operators")
    group.add_argument("--length", type=positive, default=256, metavar="N", help="residues (%(default)s)")
    group.add_argument("--rows", type=positive, default=128, metavar="N", help="of the alignment (%(default)s)")
    group.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="(%(default)s)")
    group.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda", "mps", *_DESCRIBED),
        default="auto",
        help="of this machine, or the name of a card that need not be here (%(default)s)",
    )


def _run(options: argparse.Namespace) -> None:
    targets = read_targets(options.inputs, options.msa, options.templates)
    profile = predict_options.profile_of(options)
    parts = report(profile, targets, options.msa_server), [""], _memory(options), [""], _operators(options)
    for line in chain.from_iterable(parts):
        print(line, flush=True)
