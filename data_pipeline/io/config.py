"""Base class of settings: frozen, validated dataclasses that are stored with the results made from them.

Constants that begin with `MAX` are bounds of settings that occur in several places. `RestraintKind` is whether distance
restraints are contacts (a max distance with its probability) or distributions of a distance. `POSITIVE` excludes
infinity, `ABOVE_ZERO` does not; `FRACTION` is from 0 to 1, and `BELOW_ONE` from 0 to below 1.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from typing import Any, Literal, Self

from data_pipeline.io.errors import InputError, choice_problem, did_you_mean, printable

# Bounds of settings that occur in several places; no calculation needs more.
MAX_SEED = 2**62  # random number generators accept it
MAX_RECYCLES = 1000
MAX_ENSEMBLE = 100
# Distance restraints: upper bounds, each with the probability that it holds, or distributions of a distance.
RestraintKind = Literal["contacts", "distances"]


class ConfigError(InputError):
    """Invalid value of a setting, or stored settings that do not match this version."""


@dataclass(frozen=True)
class Bound:
    """Bound of a setting's values, written as `Annotated[int, at_least(1)]`; `text` completes "must ...".

    `includes` returns whether a value is allowed.
    """

    text: str
    includes: Callable[[Any], bool]


def at_least(minimum: float) -> Bound:
    """Return a bound that allows `minimum` and larger values."""
    return Bound(f"be at least {minimum}", lambda value: value >= minimum)


def at_most(maximum: float) -> Bound:
    """Return a bound that allows `maximum` and smaller values."""
    return Bound(f"be at most {maximum:,}", lambda value: value <= maximum)


def between(minimum: float, maximum: float) -> Bound:
    """Return a bound that allows values from `minimum` to `maximum`, both included."""
    return Bound(f"be between {minimum} and {maximum}", lambda value: minimum <= value <= maximum)


ABOVE_ZERO = Bound("be greater than 0", lambda value: value > 0)
POSITIVE = Bound("be a positive number", lambda value: 0 < value < math.inf)
FRACTION = Bound("be within 0..1", lambda value: 0 <= value <= 1)
BELOW_ONE = Bound("be at least 0 and below 1", lambda value: 0 <= value < 1)


class Checked:
    """Base class of dataclasses whose fields are annotated with a `Bound` or are one of several words (`Literal`).

    The constructor raises `ConfigError` for the first value that is not allowed; None is allowed by any bound.
    """

    def __post_init__(self) -> None:
        """Raise `ConfigError` for the first value that is not allowed; None always is."""
        kind: type = type(self)
        place = f"{kind.__name__}." if isinstance(self, Config) else ""
        for name, rule in _rules_of(kind):
            value = getattr(self, name)
            if isinstance(rule, Bound):
                if value is not None and not rule.includes(value):
                    raise ConfigError(f"{place}{name} must {rule.text}, got {value}")
            elif value not in rule:
                raise ConfigError(f"{place}{name} {choice_problem(value, rule)}")


@cache
def _rules_of(kind: type) -> list[tuple[str, Bound | tuple[Any, ...]]]:
    """Return the rules of a dataclass's fields: bounds, and the choices of `Literal` fields."""
    rules: list[tuple[str, Bound | tuple[Any, ...]]] = []
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        if typing.get_origin(hint) is Literal:
            rules.append((name, typing.get_args(hint)))
        for each in (hint, *typing.get_args(hint)):
            notes = getattr(each, "__metadata__", ())
            rules += [(name, note) for note in notes if isinstance(note, Bound)]
    return rules


# Mark of the settings that files of an earlier version may lack.
_ADDED_LATER = "added after files were written without it"


def added_setting(default: Any) -> Any:
    """Return the dataclass field of a setting that was added later; files without it mean the value `default`.

    This is also its default.
    """
    return dataclasses.field(default=default, metadata={_ADDED_LATER: True})


@dataclass(frozen=True, kw_only=True)
class Config(Checked):
    """Base class of all settings, which can be converted to dictionaries that JSON can hold and back without loss."""

    def to_dict(self) -> dict[str, Any]:
        """Return all settings as nested dictionaries of JSON values."""
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}

    def to_dict_of_first_version(self) -> dict[str, Any]:
        """Return all settings, as `to_dict` does, except settings that were added later and have their default.

        The result is equal in all versions, so that results of earlier versions are recognised.
        """
        values = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not field.metadata.get(_ADDED_LATER) or value != field.default:
                values[field.name] = value.to_dict_of_first_version() if isinstance(value, Config) else _plain(value)
        return values

    def flat(self) -> dict[str, Any]:
        """Return the JSON value of every setting by its full name, such as `outer.inner`, in one dictionary."""
        return dict(_flat(self.to_dict()))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the settings that `to_dict` wrote, in this version or an earlier one (see `added_setting`).

        Raise `ConfigError` for missing or unknown keys and for values of a wrong type.
        """
        if not isinstance(values, Mapping):
            raise ConfigError(f"{cls.__name__}: expected an object of settings, got {printable(repr(values), 40)}")
        kinds = typing.get_type_hints(cls)
        added = {field.name for field in dataclasses.fields(cls) if field.metadata.get(_ADDED_LATER)}
        unknown, missing = sorted(values.keys() - kinds.keys()), sorted(kinds.keys() - values.keys() - added)
        if unknown or missing:
            advice = (
                f"; if {cls.__name__} has them since the file was written, give them added_setting(DEFAULT) in the "
                "code, where DEFAULT is what the file means"
            )
            problem = f"{cls.__name__}: unknown settings {unknown}, missing settings {missing}"
            raise ConfigError(problem + advice * bool(missing))
        return cls(**{name: _restore(f"{cls.__name__}.{name}", kinds[name], value) for name, value in values.items()})

    def with_settings(self, settings: Sequence[str]) -> Self:
        """Return a copy with some settings changed; each change is written `outer.inner=value`.

        A value is parsed as JSON, or else taken as text (`model_1`, `2018-04-30`). All changes are validated together,
        so that settings that must agree can be changed at once. Raise `ConfigError` for an unknown name or a value that
        is not allowed.
        """
        from data_pipeline.io.json_files import parse_json  # noqa: PLC0415  the bounds above are read by every `--help`

        values = self.to_dict()
        for setting in settings:
            name, equals, text = setting.partition("=")
            if not equals:
                raise ConfigError(f"a setting is written name=value, got '{printable(setting)}'")
            try:
                value = parse_json(text)
            except ValueError:
                value = text.strip()
            table: Any = values
            parts = name.strip().split(".")
            for depth, part in enumerate(parts, start=1):
                if not isinstance(table, dict) or part not in table:
                    raise ConfigError(_unknown(name.strip(), part, table))
                if depth == len(parts):
                    table[part] = value
                table = table[part]
        return type(self).from_dict(values)

    def _require_divisible(self, channels: str, heads: str) -> None:
        """Raise `ConfigError` unless the value of the setting `heads` divides the value of `channels`."""
        c, h = getattr(self, channels), getattr(self, heads)
        if c % h:
            raise ConfigError(f"{type(self).__name__}.{heads} ({h}) must divide {channels} ({c})")


def _restore(where: str, kind: Any, value: Any) -> Any:
    """Return a value of a settings file as the first type of the annotation `kind` that it fits.

    `where` names the setting in the error if it fits none.
    """
    options = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    for option in options:
        if typing.get_origin(option) is Literal:
            if value in typing.get_args(option):
                return value
        elif option is type(None):
            if value is None:
                return None
        elif issubclass(option, Config):
            if isinstance(value, Mapping):
                return option.from_dict(value)
        elif option is float and type(value) in (int, float):
            return float(value)
        elif option is date:
            if isinstance(value, str):
                try:
                    return date.fromisoformat(value)
                except ValueError:
                    continue
        elif type(value) is option:
            return value
    words = [str(word) for each in options if typing.get_origin(each) is Literal for word in typing.get_args(each)]
    hint = did_you_mean(value, words) if isinstance(value, str) else ""
    raise ConfigError(f"{where} must be {' or '.join(map(_named, options))}, got {printable(repr(value))}{hint}")


def _named(kind: Any) -> str:
    """Return the words for a type in an error message."""
    if typing.get_origin(kind) is Literal:
        return " or ".join(map(str, typing.get_args(kind)))
    if kind is type(None):
        return "null"
    return "a table of settings" if issubclass(kind, Config) else str(kind.__name__)


def _unknown(name: str, part: str, table: Any) -> str:
    """Return the message for the unknown setting `name`, whose part `part` is not in `table`."""
    if not isinstance(table, dict):
        return f"unknown setting '{printable(name)}': the setting before '{printable(part)}' has no parts"
    choices = f"'{printable(part)}' could be one of {', '.join(table)}{did_you_mean(part, table)}"
    return f"unknown setting '{printable(name)}': {choices}"


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of nested tables with dotted names, such as "structure.heads"."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _plain(value: Any) -> Any:
    """Return a setting's value as JSON can write it."""
    if isinstance(value, Config):
        return value.to_dict()
    return value.isoformat() if isinstance(value, date) else value
