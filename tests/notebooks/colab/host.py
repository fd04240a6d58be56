"""What a kernel runs before the notebook for Colab: small parameters under DeepMind's names, and a simulated T4."""

import io
import tarfile
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from helixfold.apps.predict import run
from helixfold.execution.iteration_runner import EAGER
from helixfold.folding import planned
from helixfold.model import presets
from helixfold.ops import device_properties
from helixfold.ops.dispatch import forced
from helixfold.planning import estimate
from helixfold.weights import alphafold, download
from helixfold.weights.untrained import untrained_model

SUFFIXES = ("_ptm", "", "_multimer_v3", "_multimer_v2", "_multimer")
MODELS = [f"model_{index}{suffix}" for suffix in SUFFIXES for index in range(1, 6)]


def small_preset(name: str) -> presets.Preset:
    """A tiny network under the name of one of DeepMind's."""
    preset = presets.tiny_multimer() if "multimer" in name else presets.tiny()
    heads = replace(preset.model.heads, aligned_error=name.endswith("_ptm") or "multimer" in name)
    return replace(preset, name=name, model=replace(preset.model, heads=heads))


def archive() -> bytes:
    """An archive as DeepMind's, with random parameters of tiny networks."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for seed, name in enumerate(MODELS):
            config, content = small_preset(name).model, io.BytesIO()
            np.savez(content, **alphafold.from_state_dict(untrained_model(config, seed).state_dict(), config))
            member = tarfile.TarInfo(f"params_{name}.npz")
            member.size = len(content.getvalue())
            tar.addfile(member, io.BytesIO(content.getvalue()))
    return stream.getvalue()


_patches: list[pytest.MonkeyPatch] = []
_forced: list[AbstractContextManager[object]] = []


def _patch(*given: object) -> None:
    _patches.append(pytest.MonkeyPatch())
    _patches[-1].setattr(*given)


def restore() -> None:
    """Undo what was done since the session began."""
    while _patches:
        _patches.pop().undo()
    while _forced:
        _forced.pop().__exit__(None, None, None)


def use_small_parameters(url: str) -> None:
    """Have DeepMind's names mean tiny networks, whose parameters an archive at this address has."""
    for name in MODELS:
        presets.PRESETS[name] = partial(small_preset, name)
    _patch(download, "ARCHIVE_URL", url)
    _patch(download, "EARLIER_ARCHIVES", dict.fromkeys(download.EARLIER_ARCHIVES, url))
    _patch(
        download.download_parameters, "__kwdefaults__", {**download.download_parameters.__kwdefaults__, "sha256": {}}
    )


def use_cache(name: str) -> None:
    """Have another cache directory, without parameters."""
    _patches.append(pytest.MonkeyPatch())
    _patches[-1].setenv("XDG_CACHE_HOME", name)


def limit_memory(size: int) -> None:
    """Have so many bytes of memory."""
    _patch(estimate, "available_memory", lambda _: size)


def simulate(name: str) -> None:
    """Have the CPU pass for a GPU of this name: its memory, precision and backends."""
    _patch(device_properties, "_present_properties", lambda _: device_properties.DEVICE_MODELS[name])
    _patch(estimate, "_product_rate", lambda *_: 8e12)  # is measured on the GPU otherwise
    _patch(run, "runner_for", lambda *_: EAGER)  # the CPU has no CUDA graphs
    _forced.append(forced("reference"))  # nor the operator of PyTorch's memory-efficient attention
    _forced[-1].__enter__()


def begin(url: str) -> None:
    """Begin a session, in which bars are shown at once, not after two seconds."""
    use_small_parameters(url)
    _patch(planned, "_BAR_AFTER", 0)
    _patches.clear()
