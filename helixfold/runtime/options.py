"""Types of command-line options, such as numbers, sizes and dates, and their properties in results and the service."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import date
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

from data_pipeline.io.errors import InputError, printable
from helixfold.runtime.annotations import CoercionError, Group, Parameter, Token

# Whether the network runs as CUDA graphs where shapes repeat.
CudaGraphs = Literal["auto", "off"]
# How a run shows its progress on stderr.
Progress = Literal["bars", "json"]
# Representations of a target in float32, for r residues. msa_first_row (r c_m): the target's row of the MSA after the
# Evoformer. single (r c_s): a linear map of it, the input of the structure module; ColabFold's "single".
# pair (r r c_z): the pair stream after the Evoformer. structure (r c): the single representation after the structure
# module, from which pLDDT is read; AlphaFold calls it structure_module.
RepresentationName = Literal["msa_first_row", "single", "pair", "structure"]
# Format of the files of representations.
RepresentationFormat = Literal["npz", "safetensors"]
# Dtypes of files of parameters and of benchmarks, and of the trunk at inference.
Dtype = Literal["float32", "bfloat16"]
ComputeDtype = Literal["float32", "bfloat16", "float16"]
DtypeOrAuto = Literal["auto", "float32", "bfloat16", "float16"]
# How updates are carried out: on the whole stream, by slabs, or by slabs of streams outside the device's memory.
Executor = Literal["auto", "whole", "slabs", "spilled"]
Item = TypeVar("Item")
Options = TypeVar("Options")
# The options that most users need come first in the help of a command.
MOST_USED = Group.create_ordered("Most used options", sort_key=-1)
MAX_PROCESSES = 1024  # maximum processes, or threads, of one command on one machine


def integer(word: str) -> int:
    """Parse an integer. Raise ValueError for anything else."""
    if not re.fullmatch(r"[+-]?[0-9]{1,50}", word):
        raise ValueError(f"must be a whole number, got {word!r}")
    return int(word)


def positive(word: str) -> int:
    """Parse an integer of at least 1. Raise ValueError for anything else."""
    if not re.fullmatch(r"[0-9]{1,50}", word) or int(word) < 1:
        raise ValueError(f"must be a whole number of at least 1, got {word!r}")
    return int(word)


def whole_number(minimum: int, maximum: int) -> Callable[[str], int]:
    """Return a function that parses an integer from `minimum` to `maximum`, both included.

    The function raises ValueError for anything else.
    """

    def read(word: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,50}", word) or not minimum <= int(word) <= maximum:
            raise ValueError(f"must be a whole number from {minimum} to {maximum:,}, got '{printable(word, 60)}'")
        return int(word)

    return read


def number(word: str) -> float:
    """Parse a number, which may be infinite or NaN. Raise ValueError for anything else."""
    try:
        return float(word)
    except ValueError:
        raise ValueError(f"must be a number, got {word!r}") from None


def memory_size(word: str) -> int:
    """Parse a size such as 8GiB, 6000MB or 16G, and return it in bytes; units without a B are binary.

    A unit is required, and 0 is not a size. Raise ValueError for anything else.
    """
    size = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]+)?) ?([KMGT])(i?B|)", word, re.IGNORECASE)
    if size is None or not float(size[1]):
        raise ValueError(f"must be a size with its unit, such as 8GiB or 6000MB, got {word!r}")
    base = 1000 if size[3].lower() == "b" else 1024
    return int(float(size[1]) * base ** ("KMGT".index(size[2].upper()) + 1))


def calendar_date(word: str) -> date:
    """Parse a date such as 2021-11-01. Raise ValueError for anything else."""
    try:
        return date.fromisoformat(word)
    except ValueError:
        raise ValueError(f"must be a date as year-month-day, such as 2021-11-01, got {word!r}") from None


def part_of_all(word: str) -> tuple[int, int]:
    """Parse a part such as 0/10: the index of the part, from 0, and the number of parts.

    Raise ValueError for anything else, and if the index is not less than the number.
    """
    match = re.fullmatch(r"([0-9]+)/([0-9]+)", word)
    if match is None or not int(match[1]) < int(match[2]):
        raise ValueError(f"a shard must be i/n with i from 0 to n - 1, got {word!r}")
    return int(match[1]), int(match[2])


def part_of(items: Sequence[Item], part: tuple[int, int]) -> list[Item]:
    """Return every n-th item starting at index i, for part (i, n). Raise `InputError` unless i < n."""
    index, count = part
    if not index < count:
        raise InputError(f"a shard must be i/n with i from 0 to n - 1, got {index}/{count}")
    return list(items[index::count])


def reads(read: Callable[[str], Any], metavar: str) -> Parameter:
    """Return the annotation of an option whose value is parsed by `read`, and shown as `metavar` in the help."""

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
# The directory of all output files of a command.
Output = Annotated[Path, Parameter(alias="-o", metavar="DIR")]


@dataclass(frozen=True, kw_only=True)
class Offer:
    """How the service offers an option: as a value in a request and as a field of its form.

    `name` is the name in a request, `kind` the type of its value there and `text` its description; `label` is the label
    in the form. A value must be within `bounds` (for text, its length), match `pattern`, or be one of `choices`, whose
    values are labels in the form. `needs` is a capability that a worker must have. `convert` converts the value of a
    request to the option's value, or raises ValueError.
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


# Where the record of a result has an option that changes results: in its options, in the digests of its inputs, or in
# the identities of its predictions.
Recorded = Literal["options", "inputs", "predictions"]


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Properties of an option: where results record it, its names in other programs, and its offer in the service.

    An option without `recorded` does not change results. `colabfold` and `alphafold` are names of options with the same
    meaning and values, which the command line also accepts.
    """

    recorded: Recorded | None = None
    colabfold: str = ""
    alphafold: str = ""
    offer: Offer | None = None

    @property
    def aliases(self) -> tuple[str, ...]:
        """Names of the option in other programs."""
        return tuple(filter(None, (self.colabfold, self.alphafold)))


@cache
def traits_of(options: type) -> dict[str, Traits]:
    """Return the traits of each option of a command, by name."""
    traits = {}
    for name, annotation in get_type_hints(options, include_extras=True).items():
        notes = getattr(annotation, "__metadata__", ())
        traits[name] = next((note for note in notes if isinstance(note, Traits)), Traits())
    return traits


def option_group(group: Group) -> Callable[[type[Options]], type[Options]]:
    """Return a decorator for a dataclass of options that form one group in the help of every command with them.

    A command with several groups inherits from all of them, so that each option is a field of one flat dataclass.
    """

    def decorate(options: type[Options]) -> type[Options]:
        """Add the group and the names in other programs to the annotation of each option."""
        annotations = options.__annotations__
        for name, annotation in annotations.items():
            kind, *notes = get_args(annotation) if hasattr(annotation, "__metadata__") else (annotation,)
            parameters = [note for note in notes if isinstance(note, Parameter)]
            others = [note for note in notes if not isinstance(note, Parameter)]
            # Annotations of the field follow, so that the field's own group overrides this one.
            combined = Parameter.combine(Parameter(group=group), *parameters, *_aliased(notes))
            annotations[name] = Annotated[(kind, combined, *others)]
        return Parameter(name="*")(options)

    return decorate


def _aliased(notes: Sequence[Any]) -> list[Parameter]:
    """Return an annotation with the names in other programs and the aliases of a field."""
    names = tuple(name for note in notes if isinstance(note, Traits) for name in note.aliases)
    own = tuple(name for note in notes if isinstance(note, Parameter) for name in note.alias or ())
    return [Parameter(alias=(*own, *names))] if names else []


def values_of(options: Any, group: type) -> dict[str, Any]:
    """Return the values of the attributes of `options` that are also fields of the dataclass `group`, by name."""
    return {field.name: getattr(options, field.name) for field in fields(group) if hasattr(options, field.name)}


def changed_options(options: Any, *groups: type) -> list[str]:
    """Return the command-line names, such as --max-rounds, of options that differ from their defaults.

    Only options of the dataclasses `groups` are compared, or all without groups.
    """
    defaults = type(options)()
    names = [field.name for group in groups or (type(options),) for field in fields(group)]
    different = [name for name in names if getattr(options, name) != getattr(defaults, name)]
    return [f"--{name.replace('_', '-')}" for name in different]
