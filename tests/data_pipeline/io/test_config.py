"""Settings out of their bounds are refused, whatever the place of the bound in the annotation."""

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest

from data_pipeline.io.config import (
    ABOVE_ZERO,
    BELOW_ONE,
    FRACTION,
    POSITIVE,
    Checked,
    Config,
    ConfigError,
    at_least,
    at_most,
    between,
)

Count = Annotated[int, at_least(1)]


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    """A class with each kind of bound."""

    count: Count | None = None
    rows: Annotated[float | None, at_least(0), at_most(1999)] = None
    rounds: Annotated[int | None, between(1, 10)] = None
    above: Annotated[float | None, ABOVE_ZERO] = None
    seconds: Annotated[float | None, POSITIVE] = None
    share: Annotated[float | None, FRACTION] = None
    dropout: Annotated[float | None, BELOW_ONE] = None
    kind: Literal["fast", "slow"] = "fast"


@dataclass(frozen=True, kw_only=True)
class Subclass(Options):
    """A class with another bound."""

    own: Annotated[int, at_most(5)] = 5


@dataclass(frozen=True, kw_only=True)
class Settings(Config):
    """Settings that files hold."""

    count: Annotated[int, at_least(1)] = 1


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"count": 1, "rows": 0, "rounds": 1, "above": float("inf"), "seconds": 0.1, "share": 0, "dropout": 0},
        {"rows": 1999, "rounds": 10, "share": 1, "kind": "slow", "own": -3},
    ],
)
def test_bounds_are_inclusive_and_none_is_within_them(options: dict[str, Any]) -> None:
    assert vars(Subclass(**options)).items() >= options.items()


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("count", 0, "must be at least 1, got 0"),
        ("rows", -1, "must be at least 0, got -1"),
        ("rows", 2000, "must be at most 1,999, got 2000"),
        ("rows", float("nan"), "must be at least 0, got nan"),
        ("rounds", 11, "must be between 1 and 10, got 11"),
        ("above", 0, "must be greater than 0, got 0"),
        ("seconds", 0, "must be a positive number, got 0"),
        ("seconds", float("inf"), "must be a positive number, got inf"),
        ("share", -0.5, "must be within 0..1, got -0.5"),
        ("share", float("nan"), "must be within 0..1, got nan"),
        ("dropout", 1.0, "must be at least 0 and below 1, got 1.0"),
        ("kind", "fasst", "must be one of fast, slow, got 'fasst'; did you mean fast?"),
        ("own", 6, "must be at most 5, got 6"),
    ],
)
def test_values_out_of_bounds_are_named(name: str, value: object, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(f'{name} {problem}')}$"):
        Subclass(**{name: value})


def test_settings_are_named_with_their_class() -> None:
    with pytest.raises(ConfigError, match=r"^Settings\.count must be at least 1, got 0$"):
        Settings(count=0)
