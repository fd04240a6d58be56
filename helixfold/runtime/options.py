"""Types for the options of commands: what a number, a size or a date on the command line may look like."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import date
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

from data_pipeline.io.errors import InputError, printable
from helixfold.runtime.annotations import CoercionError, Group, Parameter, Token

# Whether passes are recorded as CUDA graphs where shapes repeat.
CudaGraphs = Literal["auto", "off"]
# How a run shows its progress on stderr.
Progress = Literal["bars", "json"]
# What a network has made of a target, float32, for r residues. msa_first_row (r c_m): the target's own row of the MSA
# after the Evoformer. single (r c_s): a linear map of it, which the structure module reads; ColabFold's "single".
# pair (r r c_z): the pair stream after the Evoformer. structure (r c): the single representation after the structure
# module, from which pLDDT is read; AlphaFold calls it structure_module.
RepresentationName = Literal["msa_first_row", "single", "pair", "structure"]
RepresentationFormat = Literal["npz", "safetensors"]
Dtype = Literal["float32", "bfloat16"]
ComputeDtype = Literal["float32", "bfloat16", "float16"]
DtypeOrAuto = Literal["auto", "float32", "bfloat16", "float16"]
Executor = Literal["auto", "whole", "slabs", "spilled"]
Item = TypeVar("Item")
Options = TypeVar("Options")
# Options that most users need come first in the help of a command.
MOST_USED = Group.create_ordered("Most used options", sort_key=-1)
MAX_PROCESSES = 1024  # or threads, of one command on one machine


def integer(word: str) -> int:
    """Return a whole number. Raise ValueError for anything else."""
    if not re.fullmatch(r"[+-]?[0-9]{1,50}", word):
        raise ValueError(f"must be a whole number, got {word!r}")
    return int(word)


def positive(word: str) -> int:
    """Return a whole number of at least 1. Raise ValueError for anything else."""
    if not re.fullmatch(r"[0-9]{1,50}", word) or int(word) < 1:
        raise ValueError(f"must be a whole number of at least 1, got {word!r}")
    return int(word)


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """Return the reader of a whole number within bounds, which raises ValueError for anything else."""

    def read(word: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,50}", word) or not least <= int(word) <= most:
            raise ValueError(f"must be a whole number from {least} to {most:,}, got '{printable(word, 60)}'")
        return int(word)

    return read


def number(word: str) -> float:
    """Return a number, which may be infinite or NaN. Raise ValueError for anything else."""
    try:
        return float(word)
    except ValueError:
        raise ValueError(f"must be a number, got {word!r}") from None


def memory_size(word: str) -> int:
    """Return the bytes of a size such as 8GiB, 6000MB or 16G; units without a B are binary.

    Raise ValueError for anything else.
    """
    size = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]+)?) ?([KMGT])(i?B|)", word, re.IGNORECASE)
    if size is None or not float(size[1]):
        raise ValueError(f"must be a size with its unit, such as 8GiB or 6000MB, got {word!r}")
    base = 1000 if size[3].lower() == "b" else 1024
    return int(float(size[1]) * base ** ("KMGT".index(size[2].upper()) + 1))


def calendar_date(word: str) -> date:
    """Return a day such as 2021-11-01. Raise ValueError for anything else."""
    try:
        return date.fromisoformat(word)
    except ValueError:
        raise ValueError(f"must be a date as year-month-day, such as 2021-11-01, got {word!r}") from None


def part_of_all(word: str) -> tuple[int, int]:
    """Return the number of a part and the number of all parts. Raise ValueError for a word that is not like 0/10."""
    part = re.fullmatch(r"([0-9]+)/([0-9]+)", word)
    if part is None:
        raise ValueError(f"must be a part such as 0/10, got {word!r}")
    return int(part[1]), int(part[2])


def part_of(items: Sequence[Item], part: tuple[int, int]) -> list[Item]:
    """Return every n-th item from the i-th on, for part (i, n). Raise `InputError` if there is no such part."""
    number, count = part
    if not number < count:
        raise InputError(f"a shard is i/n with i from 0 to n - 1, got {number}/{count}")
    return list(items[number::count])


def reads(read: Callable[[str], Any], metavar: str) -> Parameter:
    """Return the annotation of an option whose word is read by `read`, and is called `metavar` in the help."""

    def convert(_: Any, tokens: Sequence[Token]) -> Any:
        try:
            return read(tokens[0].value)
        except ValueError as error:
            raise CoercionError(msg=str(error), token=tokens[0]) from None

    return Parameter(converter=convert, metavar=metavar)


Integer = Annotated[int, reads(integer, "N")]
Positive = Annotated[int, reads(positive, "N")]
Workers = Annotated[int, reads(whole_number(1, MAX_PROCESSES), "N")]
Number = Annotated[float, reads(number, "NUMBER")]
MemorySize = Annotated[int, reads(memory_size, "SIZE")]
Day = Annotated[date, reads(calendar_date, "DATE")]
Directory = Annotated[Path, Parameter(metavar="DIR")]
File = Annotated[Path, Parameter(metavar="FILE")]
# Write everything that a command makes below this directory.
Output = Annotated[Path, Parameter(alias="-o", metavar="DIR")]


@dataclass(frozen=True, kw_only=True)
class Offer:
    """How the service offers an option: as a value in a request, and as a field of its form.

    `name` is the option's name in a request, `kind` the type of its value there and `text` its description; `label` is
    its label in the form. A value is within `bounds` (a text: its length), matches `pattern`, or is one of `choices`,
    which have labels in the form. `needs` names what a worker must have to follow it. `convert` turns the value of a
    request into the option's own, or raises ValueError.
    """

    name: str
    kind: Literal["bool", "int", "str"]
    text: str
    label: str
    default: Any = None
    bounds: tuple[int, int] | None = None
    pattern: str = ""
    choices: Mapping[str, str] = field(default_factory=dict)
    needs: Literal["", "relaxes", "templates"] = ""
    convert: Callable[[Any], Any] | None = None


# Where the record of a result holds an option that changes results: among the options, in the digests of its inputs, or
# in the identities of its predictions.
Recorded = Literal["options", "inputs", "predictions"]


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What else is known about an option: where results record it, its names in other programs, and in the service.

    An option without `recorded` does not change results. `colabfold` and `alphafold` are the names of options with the
    same meaning and values, which the command line takes too.
    """

    recorded: Recorded | None = None
    colabfold: str = ""
    alphafold: str = ""
    offer: Offer | None = None

    @property
    def aliases(self) -> tuple[str, ...]:
        """Return the names in other programs."""
        return tuple(filter(None, (self.colabfold, self.alphafold)))


@cache
def traits_of(options: type) -> dict[str, Traits]:
    """Return the traits of each option of a command, by its name."""
    found = {}
    for name, annotation in get_type_hints(options, include_extras=True).items():
        notes = getattr(annotation, "__metadata__", ())
        found[name] = next((note for note in notes if isinstance(note, Traits)), Traits())
    return found


def option_group(group: Group) -> Callable[[type[Options]], type[Options]]:
    """Return a decorator for a dataclass of options, which are one group in the help of every command that has them.

    A command with several groups inherits from all of them, so that each option is a field of one flat dataclass.
    """

    def decorate(options: type[Options]) -> type[Options]:
        own = options.__annotations__
        for name, annotation in own.items():
            kind, *notes = get_args(annotation) if hasattr(annotation, "__metadata__") else (annotation,)
            parameters = [note for note in notes if isinstance(note, Parameter)]
            others = [note for note in notes if not isinstance(note, Parameter)]
            # Combined here, once; a group of the field's own comes later, and counts.
            combined = Parameter.combine(Parameter(group=group), *parameters, *_aliased(notes))
            own[name] = Annotated[(kind, combined, *others)]
        return Parameter(name="*")(options)

    return decorate


def _aliased(notes: Sequence[Any]) -> list[Parameter]:
    """Return the annotation that adds the names in other programs to those that a field's annotations give."""
    names = tuple(name for note in notes if isinstance(note, Traits) for name in note.aliases)
    own = tuple(name for note in notes if isinstance(note, Parameter) for name in note.alias or ())
    return [Parameter(alias=(*own, *names))] if names else []


def values_of(options: Any, group: type) -> dict[str, Any]:
    """Return the values, by name, of the fields of a dataclass that the options of a command have too."""
    return {field.name: getattr(options, field.name) for field in fields(group) if hasattr(options, field.name)}


def given(options: Any, *groups: type) -> list[str]:
    """Return the names on the command line of options that differ from their defaults: of these groups, or all."""
    usual = type(options)()
    names = [field.name for group in groups or (type(options),) for field in fields(group)]
    different = [name for name in names if getattr(options, name) != getattr(usual, name)]
    return [f"--{name.replace('_', '-')}" for name in different]
