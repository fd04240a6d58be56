"""Read the `features.pkl` of AlphaFold 2 without unpickling it, and convert it to features.

A pickle is a program for a small machine, and unpickling one may run anything. Here its instructions are read as data:
those that make numbers, text, lists, dictionaries and NumPy arrays are followed, and any other is refused by name.
"""

import math
import pickletools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.errors import InputError, printable
from data_pipeline.features.schema import Features
from data_pipeline.features.templates import no_templates
from data_pipeline.files import read_file
from data_pipeline.residues import RESTYPES_WITH_X_AND_GAP

MAX_BYTES = 4 * 2**30
_MAX_INSTRUCTIONS = 1_000_000  # AlphaFold's have two for each row of the alignment, for its species
_VALUES = {"NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1"}
_VALUES |= {"SHORT_BINUNICODE", "BINUNICODE", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_NAMES = {"numpy ndarray": "ndarray", "numpy dtype": "dtype"}
for _module in ("numpy.core", "numpy._core"):  # before NumPy 2, and since
    _NAMES |= {f"{_module}.multiarray _reconstruct": "_reconstruct", f"{_module}.numeric _frombuffer": "_frombuffer"}
_NUMBERS = re.compile(r"b1|[iu][1248]|f[248]")
# AlphaFold's alignments and templates have residue types in HHblits' order; these are their numbers in ours.
_FROM_HHBLITS = np.array(list(map(RESTYPES_WITH_X_AND_GAP.index, "ACDEFGHIKLMNPQRSTVWYX-")), dtype=np.int8)
_DAMAGE = (ValueError, LookupError, TypeError, AttributeError, OverflowError, MemoryError)


@dataclass
class _Type:
    """The data type of an array: its kind and size, such as f4, and its byte order."""

    code: str
    order: str = "|"


@dataclass
class _Array:
    """An array, which gets its content after it was made; arrays of objects become lists."""

    content: "np.ndarray | list[Any] | None" = None


@dataclass(frozen=True)
class _Function:
    name: str


def features_from_pickle(path: Path) -> Features:
    """Return the features in AlphaFold 2's `features.pkl` of a monomer.

    Raise `InputError` for the features of a complex, for anything that is no array, and for damaged files.
    """
    arrays = read_pickled_arrays(path)
    if "asym_id" in arrays or "assembly_num_chains" in arrays:
        raise InputError.at(path, "these are features of a complex, and only those of one chain are converted")
    needed = ("aatype", "residue_index", "sequence", "domain_name", "msa", "deletion_matrix_int")
    if missing := [name for name in needed if name not in arrays]:
        raise InputError.at(path, f"{', '.join(missing)} missing; give the features.pkl of AlphaFold 2")
    try:
        converted = _converted(arrays)
    except _DAMAGE as error:
        raise InputError.at(path, f"not the features of AlphaFold 2 ({printable(str(error))})") from error
    return Features.from_arrays(converted, path)


def read_pickled_arrays(path: Path) -> dict[str, "np.ndarray | list[Any]"]:
    """Return the arrays of a pickled dictionary by name; an array of Python's bytes or text becomes a list."""
    content = read_file(path, MAX_BYTES)
    try:
        found = _Machine(path).run(content)
        if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
            raise ValueError("it holds no dictionary of arrays")
        arrays = {name: value.content for name, value in found.items() if isinstance(value, _Array)}
        return {name: array for name, array in arrays.items() if array is not None}
    except InputError:
        raise
    except _DAMAGE as error:
        raise InputError.at(path, f"is damaged or no pickle ({printable(str(error))}); get the file again") from error


class _Machine:
    """The stack machine of a pickle, with the instructions that arrays need."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []  # stacks under a mark
        self._memo: dict[int, Any] = {}

    def run(self, content: bytes) -> Any:
        for number, (instruction, argument, position) in enumerate(pickletools.genops(BytesIO(content))):
            if number >= _MAX_INSTRUCTIONS:
                raise ValueError(f"more than {_MAX_INSTRUCTIONS:,} instructions")
            if instruction.name == "STOP":
                return self._stack.pop()
            if instruction.name not in ("PROTO", "FRAME"):
                self._follow(instruction.name, argument, position)
        raise ValueError("it has no end")

    def _follow(self, name: str, argument: Any, position: int | None) -> None:
        stack = self._stack
        match name:
            case _ if name in _VALUES:
                stack.append(_CONSTANTS.get(name, argument))
            case "EMPTY_DICT" | "EMPTY_LIST" | "EMPTY_TUPLE":
                stack.append({"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}[name]())
            case "MEMOIZE" | "BINPUT" | "LONG_BINPUT":
                self._memo[len(self._memo) if argument is None else argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(self._memo[argument])
            case "MARK":
                self._below.append(stack)
                self._stack = []
            case "TUPLE" | "APPENDS" | "SETITEMS":
                self._stack = self._below.pop()
                self._put(name, stack)
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                self._put("TUPLE", self._taken(int(name[-1])))
            case "APPEND" | "SETITEM":
                self._put(f"{name}S", self._taken(1 if name == "APPEND" else 2))
            case "GLOBAL" | "STACK_GLOBAL":
                stack.append(self._function(argument or " ".join(self._taken(2))))
            case "REDUCE":
                function, arguments = self._taken(2)
                stack.append(_called(function.name, arguments))
            case "BUILD":
                made, state = self._taken(2)
                _set(made, state)
                stack.append(made)
            case _:
                raise self._refused(f"the instruction {name} at byte {position}")

    def _put(self, name: str, items: list[Any]) -> None:
        if name == "TUPLE":
            self._stack.append(tuple(items))
        elif name == "APPENDS" and isinstance(self._stack[-1], list):
            self._stack[-1].extend(items)
        elif name == "SETITEMS" and isinstance(self._stack[-1], dict):
            self._stack[-1].update(zip(items[::2], items[1::2], strict=True))
        else:
            raise TypeError(f"{name} for what is no list and no dictionary")

    def _taken(self, count: int) -> list[Any]:
        if len(self._stack) < count:
            raise IndexError("the stack is empty")
        items = self._stack[-count:]
        del self._stack[-count:]
        return items

    def _function(self, name: str) -> _Function:
        if name not in _NAMES:
            raise self._refused(name.replace(" ", "."))
        return _Function(_NAMES[name])

    def _refused(self, what: str) -> InputError:
        return InputError.at(
            self._path, f"holds {printable(what)}, and only arrays are read from a pickle; nothing in it was run"
        )


def _called(function: str, arguments: tuple[Any, ...]) -> _Array | _Type:
    """Return what a function of NumPy's pickles would make."""
    if function == "_reconstruct":
        return _Array()
    if function == "dtype":
        return _Type(str(arguments[0]))
    if function == "_frombuffer":
        raw, dtype, shape, order = arguments
        return _Array(_array(shape, dtype, raw, order))
    raise TypeError(f"{function} makes nothing by itself")


def _set(made: Any, state: tuple[Any, ...]) -> None:
    """Give an array or a data type its state, which is all of an array in pickles of protocol 4."""
    if isinstance(made, _Type):
        made.order = state[1]
    elif isinstance(made, _Array):
        _, shape, dtype, in_fortran_order, raw = state
        made.content = _array(shape, dtype, raw, "F" if in_fortran_order else "C")
    else:
        raise TypeError("a state for what is no array")


def _array(shape: tuple[int, ...], dtype: _Type, raw: Any, order: Any) -> "np.ndarray | list[Any]":
    if dtype.code in ("O8", "O4"):
        if len(shape) != 1 or not isinstance(raw, list) or not all(isinstance(item, bytes | str) for item in raw):
            raise TypeError("an array of objects other than bytes or text")
        return raw
    if not _NUMBERS.fullmatch(dtype.code) or dtype.order not in ("<", ">", "|", "=") or order not in ("C", "F"):
        raise TypeError(f"an array of {dtype.order}{dtype.code}")
    kind = np.dtype(dtype.order + dtype.code)
    size = math.prod(shape) * kind.itemsize
    if not isinstance(raw, bytes | bytearray) or len(raw) != size or min(shape, default=0) < 0:
        raise ValueError(f"an array of other than its {shape} values")
    return np.frombuffer(raw, kind).reshape(shape, order=order)


def _converted(arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return AlphaFold's arrays with our names, types and order of residue types."""
    sequence = _text(arrays["sequence"][0])
    templates: Mapping[str, Any] = no_templates(len(sequence))
    if np.size(arrays.get("template_aatype", ())):
        templates = {
            "template_domain_names": [_text(name) for name in arrays["template_domain_names"]],
            "template_aatype": _from_hhblits(arrays["template_aatype"].argmax(-1)),
            **{
                name: arrays[name].astype(np.float32)
                for name in ("template_all_atom_positions", "template_all_atom_masks")
            },
            "template_sum_probs": arrays["template_sum_probs"].reshape(-1, 1).astype(np.float32),
        }
    return {
        "domain_name": np.array((_text(arrays["domain_name"][0]).split() or ["unnamed"])[0]),
        "sequence": np.array(sequence),
        "aatype": arrays["aatype"].argmax(-1).astype(np.int32),
        "residue_index": arrays["residue_index"].astype(np.int32),
        "msa": _from_hhblits(arrays["msa"]),
        "deletion_matrix": arrays["deletion_matrix_int"].astype(np.int32),
        **templates,
        "template_domain_names": np.array(templates["template_domain_names"], dtype=np.str_),
    }


def _from_hhblits(types: np.ndarray) -> np.ndarray:
    if types.size and (types.min() < 0 or types.max() >= len(_FROM_HHBLITS)):
        raise ValueError("residue types outside 0..21")
    return _FROM_HHBLITS[types]


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
