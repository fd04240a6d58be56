"""Write docs/reference/settings.md and presets.md from the classes of settings: `python scripts/settings_pages.py`."""

import ast
import inspect
import json
import re
import typing
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

from data_pipeline.io.config import Bound, Config
from data_pipeline.sampling.sample import SamplingConfig
from helixfold.apps.presets import PREDICTION_PRESETS
from helixfold.model.config import ModelConfig
from helixfold.model.presets import PRESETS, Preset
from helixfold.training.config import TrainingConfig
from helixfold.training.presets import TRAINING_PRESETS

PAGES = [Path(__file__).parents[1] / "docs/reference" / name for name in ("settings.md", "presets.md")]
DEFAULTS = TrainingConfig(model=ModelConfig())
_PART = re.compile(r"(<!-- (settings|models|trainings|predictions) -->\n).*?(?=<!-- end -->)", re.DOTALL)


def renewed(text: str) -> str:
    """Return the text of a page with the current settings and presets."""
    return _PART.sub(lambda match: match[1] + _PARTS[match[2]](), text)


def _table(*rows: tuple[str, ...]) -> str:
    lines = [rows[0], ("---",) * len(rows[0]), *rows[1:]]
    return "".join(f"| {' | '.join(cell.replace('|', ',') for cell in line)} |\n" for line in lines)


def _settings() -> str:
    """Return a section for each class, with the places of its settings in a training run."""
    places: dict[type[Config], list[str]] = defaultdict(list)
    for place, config in _configs("", DEFAULTS):
        places[type(config)].append(place)
    return "\n".join(_section(kind, names) for kind, names in places.items())


def _configs(place: str, config: Config) -> Iterator[tuple[str, Config]]:
    yield place, config
    for field in fields(config):
        value = getattr(config, field.name)
        if isinstance(value, Config):
            yield from _configs(f"{place}{field.name}.", value)


def _section(kind: type[Config], places: list[str]) -> str:
    title = ", ".join(f"`{place.rstrip('.')}`" for place in places if place) or "The run"
    comments, values = _comments(kind), DEFAULTS.flat()
    rows = [("setting", "values", "default", "meaning")]
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        if f"{places[0]}{name}" in values:
            defaults = dict.fromkeys(f"`{_written(values[f'{place}{name}'])}`" for place in places)
            rows.append((f"`{name}`", _kind(hint), "; ".join(defaults), comments.get(name, "")))
    return f"## {title}\n\n{inspect.getdoc(kind)}\n\n{_table(*rows)}"


def _comments(kind: type[Config]) -> dict[str, str]:
    """Return the comments on the fields of a class: behind them, or else on the lines above."""
    lines, comments = inspect.getsource(kind).splitlines(), {}
    for node in ast.parse("\n".join(lines)).body[0].body:  # type: ignore[attr-defined]
        if isinstance(node, ast.AnnAssign):
            above = node.lineno - 1
            while lines[above - 1].strip().startswith("#"):
                above -= 1
            texts = [lines[(node.end_lineno or 0) - 1].partition("  # ")[2]]
            texts += [line.strip().removeprefix("# ") for line in lines[above : node.lineno - 1]]
            comments[ast.unparse(node.target)] = " ".join(filter(None, texts))
    return comments


def _kind(hint: Any) -> str:
    """Return the values that a field may have, in words."""
    bounds = [note.text.removeprefix("be ") for note in getattr(hint, "__metadata__", ()) if isinstance(note, Bound)]
    hint = typing.get_args(hint)[0] if bounds else hint
    if typing.get_origin(hint) is Literal:
        return ", ".join(f"`{word}`" for word in typing.get_args(hint))
    if bounds and bounds[0].startswith("a "):
        return ", ".join(bounds)
    kinds = typing.get_args(hint) or (hint,)
    words = {bool: "true or false", int: "integer", float: "number", type(None): "`null`"}
    return " or ".join(words.get(kind, kind.__name__) for kind in kinds) + "".join(f", {each}" for each in bounds)


def _models() -> str:
    """Return a table of model presets; presets with the same settings share a row."""
    names = defaultdict(list)
    for name, make in PRESETS.items():
        usual = Preset(name=name, model=ModelConfig(), sampling=SamplingConfig())
        names[_differences(make(), usual)].append(name)
    rows = [(", ".join(f"`{name}`" for name in each), settings) for settings, each in names.items()]
    return _table(("preset", "settings that differ from the defaults"), *rows)


def _trainings() -> str:
    """Return a table of the presets of training runs, each with the preset of the most similar network."""
    rows = [("preset", "what it is", "network", "other settings that differ from the defaults")]
    for name, make in TRAINING_PRESETS.items():
        usual = {network: replace(DEFAULTS, model=each().model) for network, each in PRESETS.items()}
        texts = {network: _differences(make(), defaults) for network, defaults in usual.items()}
        network = min(texts, key=lambda each: texts[each].count("="))
        rows.append((f"`{name}`", _first_line(make), f"`{network}`", texts[network]))
    return _table(*rows)


def _first_line(function: Callable[[], Config]) -> str:
    text = (inspect.getdoc(function) or "").partition("\n")[0].removeprefix("Return ").rstrip(".")
    return text[:1].upper() + text[1:]


def _predictions() -> str:
    """Return a table of the presets of `helixfold predict`."""
    rows = [
        (f"`{name}`", preset.summary, ", ".join(f"`{model}`" for model in preset.models))
        for name, preset in PREDICTION_PRESETS.items()
    ]
    return _table(("preset", "what it is", "models"), *rows)


def _differences(settings: Config, defaults: Config) -> str:
    usual = defaults.flat()
    values = {name: value for name, value in settings.flat().items() if value != usual.get(name, ...)}
    return ", ".join(f"`{name}={_written(value)}`" for name, value in values.items()) or "none"


def _written(value: Any) -> str:
    """Return a value as `--set` reads it."""
    return value if isinstance(value, str) else json.dumps(value)


_PARTS = {"settings": _settings, "models": _models, "trainings": _trainings, "predictions": _predictions}

if __name__ == "__main__":
    for page in PAGES:
        page.write_text(renewed(page.read_text()))
