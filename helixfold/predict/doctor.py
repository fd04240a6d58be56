"""Report what is installed on this machine, how much memory models take, and what targets would be made from."""

import os
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

import helixfold
from data_pipeline.errors import InputError
from data_pipeline.pipeline import Target
from data_pipeline.processors import available_processors
from data_pipeline.search.database import (
    HMMER_TOOLS,
    AlignmentDatabase,
    DatabaseProfile,
    TemplateDatabase,
    database_files,
)
from data_pipeline.search.process import PACKAGES, find_program, program_version
from data_pipeline.search.profile_search import PYHMMER_VERSION
from helixfold.execution.available import available_memory
from helixfold.execution.device import pick_device
from helixfold.ops.card import CARDS, card_of
from helixfold.planning.executors import AvailableMemory, read_available_memory
from helixfold.predict import memory_plan
from helixfold.predict.relaxation import INSTALL
from helixfold.presets import PRESETS
from helixfold.relax.problem import installed
from helixfold.relax.relaxation import where
from helixfold.weights import demonstration
from helixfold.weights.download import parameters_directory
from helixfold.weights.find import DEFAULT

_MAX_COUNTED = 10_000  # structure files; counting the 200,000 of a PDB mirror would take long
# Cards by name, which need not be in this machine, without its CPU.
CARD_NAMES = [name for name in CARDS if name != "cpu"]


def report(profile: DatabaseProfile, targets: Sequence[Target], server: str | None = None) -> Iterator[str]:
    """Yield the lines of the report: machine, parameters, search programs, databases and targets.

    `server` is the URL of the MSA server, if one would be used.
    """
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
    yield _row("device", f"{device} ({name}), {available_processors()} of {os.cpu_count()} processors")
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


def memory_table(device_name: str, length: int) -> Iterator[str]:
    """Yield lines on the memory that each model would take for `length` residues on a device or a named card.

    The models are those whose parameters are on this machine, or else the default one and the demonstration model.
    """
    if device_name in CARD_NAMES:
        card = CARDS[device_name]
        # A named card has all its memory free; its host is assumed to have as much free memory as this machine.
        available = AvailableMemory(memory=card.memory, spill=available_memory(torch.device("cpu")))
    else:
        try:
            device = pick_device(device_name)
        except InputError as error:
            yield f"memory: {error}"
            return
        card, available = card_of(device), read_available_memory(device, Path())
    names = [file.stem.removeprefix("params_") for file in _parameter_files(parameters_directory())]
    chosen = [name for name in names if name in PRESETS] or [DEFAULT, demonstration.NAME]
    yield from memory_plan.machine([PRESETS[name]() for name in chosen], length, card, available)


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
    in_process = database.tool in HMMER_TOOLS and database.engine == "pyhmmer"
    return f"{database.tool} in this process" if in_process else database.tool


def _files(database: AlignmentDatabase | TemplateDatabase) -> Iterator[str]:
    files = database_files(database)
    total = sum(file.stat().st_size for file in files)
    yield _row("", f"{_size(total)} in {len(files)} files: {', '.join(map(str, database.paths))}")


def _count(directory: Path) -> str:
    count = sum(1 for _, entry in zip(range(_MAX_COUNTED), directory.rglob("*"), strict=False) if entry.is_file())
    return f"{count:,} files" if count < _MAX_COUNTED else f"{_MAX_COUNTED:,} files or more"


def _size(size: int) -> str:
    units = ("bytes", "KiB", "MiB", "GiB")
    power = min(max(size.bit_length() - 1, 0) // 10, len(units) - 1)
    return f"{size / 1024**power:,.{min(power, 1)}f} {units[power]}"


def _row(name: str, value: str) -> str:
    return f"  {name:<12}{value}" if len(name) < 12 else f"  {name}\n  {'':<12}{value}"
