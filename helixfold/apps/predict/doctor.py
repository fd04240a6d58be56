"""Report of `helixfold doctor`: installed programs, memory of models, configuration, databases and targets."""

import itertools
import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import helixfold
from data_pipeline.features.complexes.chain_sequences import CHAIN_SEPARATOR
from data_pipeline.features.complexes.complex_input import AnyTarget
from data_pipeline.io.addresses import without_password
from data_pipeline.io.errors import InputError
from data_pipeline.io.extras import extra_versions
from data_pipeline.io.processors import MACHINE, available_processors, processor_limits
from data_pipeline.io.site_configuration import ADDRESSES, KEYS, VARIABLE, configuration_files, site_configuration
from data_pipeline.io.user_cache import NO_CACHE, can_be_written, search_cache, user_cache
from data_pipeline.search.database import (
    HMMER_TOOLS,
    AlignmentDatabase,
    DatabaseProfile,
    TemplateDatabase,
    database_files,
)
from data_pipeline.search.mmseqs_program import INSTALL as INSTALL_MMSEQS
from data_pipeline.search.mmseqs_program import OLDEST_FOR_CLUSTERS, OLDEST_RELEASE, find_mmseqs, mmseqs_release
from data_pipeline.search.process import PACKAGES, find_program, program_version
from data_pipeline.search.profile_search import PYHMMER_VERSION
from helixfold.apps.predict.relaxation import INSTALL
from helixfold.execution.available import available_memory, memory_limits
from helixfold.execution.device import AUTO, pick_device, settled_dtype, untested_warning
from helixfold.execution.iteration_runner import graphs_unsupported_reason
from helixfold.model.presets import PRESETS, Preset
from helixfold.ops.cpu import loops
from helixfold.ops.device_properties import DEVICE_MODELS, properties_of
from helixfold.planning.estimate import Device, Prediction, estimate, max_residues
from helixfold.planning.executors import EXECUTORS
from helixfold.planning.memory import FeatureRows
from helixfold.planning.size import dtype_name, gib
from helixfold.relax.problem import installed
from helixfold.relax.relaxation import where
from helixfold.report.page import counted
from helixfold.weights import demonstration
from helixfold.weights.cache import parameters_directory
from helixfold.weights.find import DEFAULTS, default_models

# Environment variables of a SLURM allocation in the report.
_SLURM_PREFIXES = (
    *("SLURM_JOB_ID", "SLURM_JOB_PARTITION", "SLURM_JOB_NODELIST", "SLURM_NNODES", "SLURM_NTASKS"),
    *("SLURM_CPUS_", "SLURM_MEM_", "SLURM_JOB_GPUS", "SLURM_GPUS"),
)
_WRITTEN_SETTINGS = ("weights_directory", "cache_directory", "search_cache")
_MAX_COUNTED_FILES = 10_000  # structure files; counting the 200,000 of a PDB mirror would take long
Facts = dict[str, Any]
# Names of GPU models, which need not be in this machine.
GPU_NAMES = [name for name in DEVICE_MODELS if name != "cpu"]


def facts(
    profile: DatabaseProfile, targets: Sequence[AnyTarget], server: str | None, length: int, device: str
) -> Facts:
    """Return the content of the report as JSON values: machine, host, models, programs, databases and targets.

    The memory of models is estimated for a chain of `length` residues on `device`, a device of this machine or a name
    in `GPU_NAMES`. `server` is the URL of the MSA server, if one would be used. Sizes are in bytes.
    """
    return {
        "machine": _machine(),
        "host": {
            "name": platform.node(),
            "system": f"{platform.system()} {platform.release()}",
            "slurm": {name: value for name, value in sorted(os.environ.items()) if name.startswith(_SLURM_PREFIXES)},
            "processors": [{"by": by, "count": count} for by, count in processor_limits()],
            # Control groups without a limit report a huge one.
            "memory": [{"by": by, "left": bytes_left} for by, bytes_left in memory_limits() if bytes_left < 2**50],
            "extras": extra_versions(),
        },
        "models": _models(device, length),
        "programs": {
            "pyhmmer": {"version": PYHMMER_VERSION, "path": None},
            **{name: _program(name) for name in PACKAGES},
            "mmseqs": _mmseqs(),
        },
        "databases": {
            "alignments": [_alignments(each) for each in profile.alignments],
            "server": None if server is None else without_password(server),
            "templates": _templates(profile.templates),
            "notes": list(profile.notes),
            "complexes": {
                "pairs": None if profile.uniprot is None or server is not None else _alignments(profile.uniprot),
                "templates": _templates(profile.complex_templates),
                "notes": list(profile.complex_notes if server is None else ()),
            },
        },
        "targets": [_target(profile, target, server) for target in targets],
    }


def configuration_facts() -> Facts:
    """Return the paths of configuration files, and either the error in one of them or all settings.

    The source of a setting is the file that sets it, or "default". A directory that runs write also has `is_writable`.
    """
    files = [{"path": str(path), "is_read": os.path.exists(path)} for path in configuration_files()]
    try:
        site = site_configuration()
        values: Facts = {
            **{key: getattr(site, key) for key in KEYS},
            "cache_directory": user_cache(),
            "weights_directory": parameters_directory(),
            **{f"{method}_models": list(default_models(method)) for method in DEFAULTS},
            "search_cache": search_cache(),
        }
    except InputError as error:
        return {"files": files, "error": str(error), "settings": {}}
    values |= {key: without_password(values[key]) for key in ADDRESSES if values[key] is not None}
    settings = {
        key: {
            "value": str(value) if isinstance(value, Path) else value,
            "source": str(site.sources.get(key, "default")),
            **({"is_writable": can_be_written(value)} if isinstance(value, Path) and key in _WRITTEN_SETTINGS else {}),
        }
        for key, value in values.items()
    }
    return {"files": files, "error": None, "settings": settings}


def report(content: Facts) -> Iterator[str]:
    """Yield the lines of the report. `content` is the result of `facts`, and of `configuration_facts` as a key."""
    machine = content["machine"]
    yield f"helixfold {machine['helixfold']}, Python {machine['python']}, PyTorch {machine['pytorch']}"
    yield _row("device", f"{machine['device']} ({machine['device_name']})")
    if machine["warning"] is not None:
        yield _row("", machine["warning"])
    yield _row("precision", f"{machine['dtype']} by default (--dtype)")
    problem = machine["cuda_graphs"]
    yield _row("CUDA graphs", f"none: {problem}" if problem else "for short targets whose size repeats (--cuda-graphs)")
    problem = machine["compiled_loops"]
    yield _row("CPU loops", f"none: {problem}" if problem else "compiled by Numba, for streams of two million elements")
    yield from _host_lines({**content["host"], "all_memory": machine["memory"]})
    is_downloaded = machine["has_downloaded_parameters"]
    if not is_downloaded:
        directory = parameters_directory()
        problem = NO_CACHE if directory is None else "`helixfold weights download` fetches them"
        yield _row("parameters", f"none{'' if directory is None else f' in {directory}'}; {problem}")
    for file in machine["parameters"]:
        path = Path(file["path"])
        text = f"{path.name}  {_size(file['size'])}  {path.parent}"
        yield _row("parameters", text) if is_downloaded else _row("", f"so the demonstration model: {text}")
    if not is_downloaded and not machine["allows_demonstration_model"]:
        yield _row("", "which a configuration file forbids (allow_demonstration_model)")
    platform_name = machine["relaxation"]
    yield _row("relaxation", f"not installed: {INSTALL}" if platform_name is None else f"by OpenMM on {platform_name}")
    yield ""
    yield from _memory_lines(content["models"])
    yield ""
    yield from _configuration_lines(content["configuration"])
    yield ""
    yield "search programs"
    for name, program in content["programs"].items():
        if name == "pyhmmer":
            yield _row(name, f"{program['version']}, jackhmmer and hmmsearch in this process")
        elif program is None:
            where_from = INSTALL_MMSEQS if name == "mmseqs" else f"package {PACKAGES[name]}"
            yield _row(name, f"not installed ({where_from})")
        else:
            yield _row(name, f"{program['version']}  {program['path']}")
            if program.get("problem"):
                yield _row("", program["problem"])
    yield ""
    yield from _database_lines(content["databases"])
    if content["targets"]:
        yield ""
        yield "targets"
    for target in content["targets"]:
        yield _row(target["name"], f"{target['residues']:,} residues")
        yield _row("", f"alignment from {', '.join(target['alignment_from']) or 'nothing but the sequence itself'}")
        yield _row("", f"templates from {', '.join(target['templates_from']) or 'none'}")


def _configuration_lines(configuration: Facts) -> Iterator[str]:
    """Yield the section of the report about configuration files and settings."""
    yield "configuration"
    if not configuration["files"]:
        yield f"  no files are read, because {VARIABLE} is {os.devnull}"
    for file in configuration["files"]:
        yield f"  {file['path']}: {'read' if file['is_read'] else 'not there'}"
    if configuration["error"] is not None:
        yield f"  error: {configuration['error']}"
        yield "  The rest of this report is for the built-in defaults."
    for key, setting in configuration["settings"].items():
        value, source = setting["value"], setting["source"]
        text = ", ".join(value) if isinstance(value, list) else "none" if value is None else str(value)
        note = "" if setting.get("is_writable", True) else "; cannot be written"
        yield f"  {key:<27}{text.lower() if isinstance(value, bool) else text} ({source}{note})"


def _machine() -> Facts:
    """Return the facts of this machine: versions, device, precision, parameters."""
    device = pick_device()
    properties = properties_of(device)
    downloaded_files = _parameter_files(parameters_directory())
    return {
        "helixfold": helixfold.__version__,
        "python": platform.python_version(),
        "pytorch": torch.__version__,
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "dtype": settled_dtype(AUTO, properties),
        "cuda_graphs": graphs_unsupported_reason(properties),
        "compiled_loops": loops.unsupported_reason(),
        "warning": untested_warning(properties),
        "processors": available_processors(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "has_downloaded_parameters": bool(downloaded_files),
        "allows_demonstration_model": site_configuration().allow_demonstration_model,
        "parameters": [
            {"path": str(file), "size": file.stat().st_size} for file in downloaded_files or [demonstration.WEIGHTS]
        ],
        "relaxation": where(device) if installed() else None,
    }


def _host_lines(host: Facts) -> Iterator[str]:
    """Yield the lines about the host, its processors, memory and optional packages."""
    slurm = ", ".join(f"{name.removeprefix('SLURM_').lower()} {value}" for name, value in host["slurm"].items())
    yield _row("host", f"{host['name']}, {host['system']}; SLURM: {slurm or 'no allocation'}")
    limit = min(host["processors"], key=lambda each: each["count"])
    yield _row("processors", f"{limit['count']:g} of {os.cpu_count()}{_limited(limit)}")
    limit = min(host["memory"], key=lambda each: each["left"])
    yield _row("memory", f"{_size(limit['left'])} free of {_size(host['all_memory'])}{_limited(limit)}")
    missing = [f"{name} [{extra}]" for extra, each in host["extras"].items() for name in each if each[name] is None]
    installed = [f"{name} {each[name]}" for each in host["extras"].values() for name in each if each[name] is not None]
    yield _row("extras", f"{', '.join(installed) or 'none'}; not installed: {', '.join(missing) or 'none'}")


def _limited(limit: Facts) -> str:
    """Return by what processors or memory are limited, as the end of a line; "" if only by the machine."""
    return "" if limit["by"] == MACHINE else f", limited by {limit['by']}"


def _program(name: str) -> Facts | None:
    """Return the version and path of a search program; None if it is not installed."""
    path = find_program(name)
    if path is None:
        return None
    return {"version": program_version(path), "path": str(path)}


def _mmseqs() -> Facts | None:
    """Return version, path and release of the MMseqs2 for searches, and a problem if it is too old; None without it."""
    path = find_mmseqs()
    if path is None:
        return None
    release, version = mmseqs_release(path), program_version(path, "version")
    problem = None
    if release is not None and release < OLDEST_RELEASE:
        problem = f"too old: release {OLDEST_RELEASE} or a newer one is needed"
    elif release is not None and release < OLDEST_FOR_CLUSTERS:
        problem = f"too old for ColabFold's databases: they need release {OLDEST_FOR_CLUSTERS} or a newer one"
    text = version if release is None else f"release {release} ({version[:16]})"
    return {"version": text, "path": str(path), "release": release, "problem": problem}


def _models(device_name: str, length: int) -> Facts:
    """Return the memory that each model would take for `length` residues on a device or GPU model.

    The models are those with parameters on this machine, or else the default model and the demonstration model.
    """
    if device_name in GPU_NAMES:
        properties = DEVICE_MODELS[device_name]
        # All memory of a GPU model counts as free; its host is assumed to have the free memory of this machine.
        target = Device(properties=properties, memory=properties.memory, spill=available_memory(torch.device("cpu")))
    else:
        try:
            target = Device.at_hand(pick_device(device_name), Path())
        except InputError as error:
            return {"problem": str(error)}
    names = [file.stem.removeprefix("params_") for file in _parameter_files(parameters_directory())]
    models = [name for name in names if name in PRESETS] or [DEFAULTS["monomer"], demonstration.NAME]
    return _memory([PRESETS[name]() for name in models], length, target)


def _memory(presets: Iterable[Preset], residues: int, device: Device) -> Facts:
    """Return the facts about the memory of each model, in float32 and in bfloat16.

    They are the peak in bytes of each executor for a target of `residues`, and the length of the longest chain that
    fits with slabs and with spilled streams.
    """
    models = []
    for preset, dtype in itertools.product(presets, (torch.float32, torch.bfloat16)):
        size = FeatureRows.at_most(residues, preset.sampling).size(preset, dtype)
        workload = Prediction(model=preset.model, size=size)
        plan = estimate(workload, device)
        models.append(
            {
                "model": preset.name,
                "dtype": dtype_name(dtype),
                "executor": plan.executor if plan.fits else None,
                "peak": {name: plan.of(name).memory.peak for name in EXECUTORS},
                # Not for "whole", which is used for short chains only.
                "longest": {name: max_residues(workload, device, [name]) for name in EXECUTORS[1:]},
            }
        )
    return {
        "device": device.properties.name,
        "free": device.memory,
        "spill": device.spill,
        "residues": residues,
        "models": models,
    }


def _memory_lines(models: Facts) -> Iterator[str]:
    """Yield the table of the memory of models, or one line with the key "problem" if `models` has it."""
    if "problem" in models:
        yield f"memory: {models['problem']}"
        return
    yield (
        f"memory of {models['device']}, {gib(models['free'])} free and {gib(models['spill'])} here to spill to, for "
        f"{models['residues']:,} residues and all rows that a model reads: GiB at the peak (residues of the longest "
        "chain)"
    )
    yield f"  {'':24}{''.join(f'{name:>18}' for name in EXECUTORS)}   chosen"
    for model in models["models"]:
        cells = ""
        for name, peak in model["peak"].items():
            longest = f" ({model['longest'][name]:,})" if name in model["longest"] else ""
            gibibytes = f"{peak / 2**30:,.1f}"
            cells += f"{gibibytes + longest:>18}"
        yield f"  {model['model']:13}{model['dtype']:11}{cells}   {model['executor'] or 'none'}"


def _parameter_files(directory: Path | None) -> list[Path]:
    """Return the files with parameters of published models in a directory."""
    return [] if directory is None else sorted(directory.glob("params_model_*.npz"))


def _alignments(database: AlignmentDatabase) -> Facts:
    """Return the facts of a database that is searched for alignments."""
    return {"name": database.name, "tool": _tool(database), "max_rows": database.max_rows, **_files(database)}


def _templates(database: TemplateDatabase | None) -> Facts | None:
    """Return the facts of the database that is searched for templates."""
    if database is None:
        return None
    entries = database.structures.rglob("*")
    return {
        "tool": _tool(database),
        "latest_release": None if database.latest_release is None else str(database.latest_release),
        **_files(database),
        "structures": str(database.structures),
        "structure_files": sum(entry.is_file() for entry in itertools.islice(entries, _MAX_COUNTED_FILES)),
    }


def _database_lines(databases: Facts) -> Iterator[str]:
    """Yield the section of the report about databases."""
    yield "databases, in the order in which their rows are merged"
    templates = databases["templates"]
    if not databases["alignments"] and templates is None and databases["server"] is None:
        yield "  none; pass --databases or --database, or alignments with --msa"
    for database in databases["alignments"]:
        yield from _alignment_lines(database)
    if databases["server"] is not None:
        yield _row("server", f"{databases['server']}: sequences are sent there")
    if templates is not None:
        yield from _template_lines(templates)
    for note in databases["notes"]:
        yield _row("note", note)
    complexes = databases["complexes"]
    if any(complexes.values()):
        yield "  of complexes"
    if complexes["pairs"] is not None:
        yield from _alignment_lines(complexes["pairs"])
    if complexes["templates"] is not None:
        yield from _template_lines(complexes["templates"])
    for note in complexes["notes"]:
        yield _row("note", note)


def _alignment_lines(database: Facts) -> Iterator[str]:
    """Yield the lines about a database that is searched for alignments."""
    limit = "" if database["max_rows"] is None else f", at most {database['max_rows']:,} rows"
    yield _row(database["name"], f"{database['tool']}{limit}")
    yield _row("", _files_text(database))


def _template_lines(database: Facts) -> Iterator[str]:
    """Yield the lines about the database that is searched for templates."""
    date = database["latest_release"]
    yield _row("templates", f"{database['tool']}{'' if date is None else f', released until {date}'}")
    yield _row("", _files_text(database))
    or_more = " or more" if database["structure_files"] == _MAX_COUNTED_FILES else ""
    yield _row("", f"structures in {database['structures']}: {counted(database['structure_files'], 'file')}{or_more}")


def _target(profile: DatabaseProfile, target: AnyTarget, server: str | None) -> Facts:
    """Return what a target's alignment and templates would come from."""
    sources = [f"{database.name} ({_tool(database)})" for database in profile.alignments]
    sources += [] if server is None else ["server"]
    templates = [str(path) for path in target.templates]
    if not templates and profile.templates is not None:
        templates = [_tool(profile.templates)]
    return {
        "name": target.name,
        "residues": len(target.sequence.replace(CHAIN_SEPARATOR, "")),
        "alignment_from": [str(path) for path in target.alignments] + sources,
        "templates_from": templates,
    }


def _tool(database: AlignmentDatabase | TemplateDatabase) -> str:
    """Return the name of the program that searches a database, and whether it runs in this process."""
    in_process = database.tool in HMMER_TOOLS and database.engine == "pyhmmer"
    return f"{database.tool} in this process" if in_process else database.tool


def _files(database: AlignmentDatabase | TemplateDatabase) -> Facts:
    """Return the number, total size in bytes and paths of a database's files."""
    files = database_files(database)
    return {
        "files": len(files),
        "size": sum(file.stat().st_size for file in files),
        "paths": [str(path) for path in database.paths],
    }


def _files_text(database: Facts) -> str:
    """Return the sizes and paths of a database's files as text."""
    return f"{_size(database['size'])} in {counted(database['files'], 'file')}: {', '.join(database['paths'])}"


def _size(size: int) -> str:
    """Return a size in bytes as text with a unit."""
    units = ("bytes", "KiB", "MiB", "GiB")
    power = min(max(size.bit_length() - 1, 0) // 10, len(units) - 1)
    return f"{size / 1024**power:,.{min(power, 1)}f} {units[power]}"


def _row(name: str, value: str) -> str:
    """Return a line of the report with a name and a value; a long name has its own line."""
    return f"  {name:<12}{value}" if len(name) < 12 else f"  {name}\n  {'':<12}{value}"
