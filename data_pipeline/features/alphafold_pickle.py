"""Convert AlphaFold 2's `features.pkl`, an untrusted pickle, to features.

Loading a pickle can run any code and use any amount of memory or time, so it is loaded in a process with limits. The
few allowed names map to classes of this module, which only store their arguments. All other names are errors.
"""

import math
import os
import pickle
import re
import resource
import sys
import time
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np

from data_pipeline.features.schema import Features
from data_pipeline.features.templates import no_templates
from data_pipeline.io.errors import InputError, SearchError, printable
from data_pipeline.io.files import read_file
from data_pipeline.io.npz import read_npz
from data_pipeline.residues import HHBLITS_TO_OUR_AATYPE
from data_pipeline.search.process import run_program, working_directory

_MAX_FILE_BYTES: Final = 4 * 2**30
# Converting real features takes less memory than three times the file size, and less than a second per 100 MB.
_BASE_MEMORY_BYTES: Final = 256 * 2**20
_MEMORY_PER_FILE_BYTE: Final = 4
_BASE_CPU_SECONDS: Final = 5
_FILE_BYTES_PER_CPU_SECOND: Final = 2 * 10**7
_MAX_DIMENSIONS: Final = 4
_MAX_DIMENSION_SIZE: Final = 2**31
# NumPy starts one thread per core, and the stacks of all threads count as memory of the process.
_CHILD_CODE: Final = (
    "import os, sys; sys.path[:] = sys.argv[3:]; "
    "os.environ.update(dict.fromkeys(('OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS', 'OMP_NUM_THREADS'), '1')); "
    f"import {__name__} as child; child.convert(*sys.argv[1:3])"
)
_NUMBER_TYPE_CODES: Final = re.compile(r"b1|[iu][1248]|f[248]")


def features_from_pickle(path: Path) -> Features:
    """Return the features in AlphaFold 2's `features.pkl` of a monomer.

    Raise `InputError` for features of a complex, for content other than arrays, and for damaged files.
    """
    with working_directory() as directory:
        output = directory / "features.npz"
        command = [sys.executable, "-I", "-X", "utf8", "-c", _CHILD_CODE, str(path), str(output), *sys.path]
        try:
            problem = os.fsdecode(run_program(command, timeout=None, directory=Path()).stdout)
        except SearchError as error:
            ending = str(error).partition(";")[0]
            problem = f"cannot be read within the limits on memory and time for features ({ending})"
            raise InputError.at(path, f"{problem}; it is damaged or malicious, get the file again") from error
        if problem:
            raise InputError(problem)
        return Features.from_arrays(read_npz(output), path)


def convert(path: str, output: str) -> None:
    """Convert the pickle at `path` to an `.npz` at `output`, or print an error message to standard output.

    It first limits memory, CPU time and core dumps of its own process, so it only runs in a child process.
    """
    try:
        content = read_file(path, _MAX_FILE_BYTES)
        _limit(resource.RLIMIT_DATA, _BASE_MEMORY_BYTES + _MEMORY_PER_FILE_BYTE * len(content))
        _limit(
            resource.RLIMIT_CPU,
            int(time.process_time()) + _BASE_CPU_SECONDS + len(content) // _FILE_BYTES_PER_CPU_SECOND,
        )
        _limit(resource.RLIMIT_CORE, 0)
        np.savez(output, allow_pickle=False, **_features(path, content))
    except InputError as error:
        sys.stdout.buffer.write(os.fsencode(str(error)))


def _limit(kind: int, value: int) -> None:
    """Set the soft limit of a resource `kind` of this process, at most to the hard limit, which stays."""
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _features(path: str, content: bytes) -> dict[str, np.ndarray]:
    """Return the features of a chain from the bytes of AlphaFold 2's pickle, whose code is not run."""
    try:
        content_by_name = _Unpickler(BytesIO(content)).load()
        if not isinstance(content_by_name, dict) or not all(isinstance(name, str) for name in content_by_name):
            raise ValueError("it is not a dictionary of arrays")
        arrays = {name: value.array() for name, value in content_by_name.items() if isinstance(value, _Array)}
    except _ForbiddenNameError as error:
        problem = f"contains {printable(str(error))}; only arrays are read from a pickle, and none of its code was run"
        raise InputError.at(path, problem) from error
    except Exception as error:  # a malicious file can raise any error
        reason = printable(str(error) or type(error).__name__)
        raise InputError.at(path, f"is damaged or not a pickle ({reason}); get the file again") from error
    if "asym_id" in arrays or "assembly_num_chains" in arrays:
        raise InputError.at(path, "got features of a complex; only features of a single chain can be converted")
    needed = ("aatype", "residue_index", "sequence", "domain_name", "msa", "deletion_matrix_int")
    if missing := [name for name in needed if name not in arrays]:
        raise InputError.at(path, f"{', '.join(missing)} missing; pass the features.pkl of AlphaFold 2")
    try:
        return _converted(arrays)
    except Exception as error:
        reason = printable(str(error) or type(error).__name__)
        raise InputError.at(path, f"not the features of AlphaFold 2 ({reason})") from error


class _ForbiddenNameError(Exception):
    """Error for a name in the pickle that arrays do not need."""


class _Type:
    """Stand-in for `numpy.dtype`: stores a code such as f4, and the byte order from its state."""

    def __init__(self, code: Any, *_: Any) -> None:
        self.code, self.order = code, "|"

    def __setstate__(self, state: Any) -> None:
        self.order = state[1]


class _Array:
    """Stand-in for arrays: stores the arguments of functions that create arrays, or the state of an empty array."""

    def __init__(self, *arguments: Any) -> None:
        self.content = arguments

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, raw = state
        self.content = raw, dtype, shape, "F" if is_fortran else "C"

    def array(self) -> "np.ndarray | list[Any]":
        """Return the array, or a list for an array of Python bytes or strings."""
        raw, dtype, shape, order = self.content
        if not isinstance(dtype, _Type) or not isinstance(shape, tuple) or len(shape) > _MAX_DIMENSIONS:
            raise TypeError(f"an array needs a type and at most {_MAX_DIMENSIONS} dimensions")
        if dtype.code in ("O8", "O4"):
            if len(shape) != 1 or not isinstance(raw, list) or not all(isinstance(item, bytes | str) for item in raw):
                raise TypeError("an array of objects other than bytes or text")
            return raw
        if (
            not isinstance(dtype.code, str)
            or not _NUMBER_TYPE_CODES.fullmatch(dtype.code)
            or dtype.order not in ("<", ">", "|")
        ):
            raise TypeError(f"an array of {dtype.order}{dtype.code}")
        kind = np.dtype(dtype.order + dtype.code)
        if not all(isinstance(size, int) and 0 <= size < _MAX_DIMENSION_SIZE for size in shape):
            raise ValueError("an array of impossible shape")
        if not isinstance(raw, bytes | bytearray) or len(raw) != math.prod(shape) * kind.itemsize:
            raise ValueError(f"the data of an array do not fit its shape {shape}")
        return np.frombuffer(raw, kind).reshape(shape, order=order)


class _Scalar(_Array):
    """Stand-in for `numpy.scalar`: an array without dimensions."""

    def __init__(self, dtype: Any, raw: Any) -> None:
        self.content = raw, dtype, (), "C"


_CLASSES: Final = {("numpy", "ndarray"): _Array, ("numpy", "dtype"): _Type}
for _module in ("numpy.core", "numpy._core"):  # before and since NumPy 2
    _CLASSES[f"{_module}.multiarray", "_reconstruct"] = _CLASSES[f"{_module}.numeric", "_frombuffer"] = _Array
    _CLASSES[f"{_module}.multiarray", "scalar"] = _Scalar


class _Unpickler(pickle.Unpickler):
    """Unpickler that only maps names to the classes of this module."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _CLASSES:
            raise _ForbiddenNameError(f"{module}.{name}")
        return _CLASSES[module, name]


def _converted(arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return AlphaFold's arrays with the names, types and order of residue types of `Features`."""
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
    """Return our residue types for the types in the order of HHblits, which AlphaFold 2's files have."""
    if types.size and (types.min() < 0 or types.max() >= len(HHBLITS_TO_OUR_AATYPE)):
        raise ValueError("residue types outside 0..21")
    return HHBLITS_TO_OUR_AATYPE.astype(np.int8)[types]


def _text(value: bytes | str) -> str:
    """Return text, decoded from UTF-8 if it is bytes."""
    return value.decode() if isinstance(value, bytes) else value
