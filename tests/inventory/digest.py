"""Digest files to a few names and rounded numbers that do not depend on the processor, the time or the version."""

import gzip
import io
import json
import re
import warnings
import zipfile
from collections.abc import Iterator
from typing import Any

import gemmi
import numpy as np

# A digest maps names to texts, numbers or lists of them.
Digest = dict[str, Any]
# Names of values that differ from run to run or from machine to machine; only their kind is recorded.
_VARIES = re.compile(
    r"second|time|date|memory|bytes|version|host|device|processor|cores|threads|pid|started|ended|digest|sha|size|"
    r"duration|speed|peak|available|points|forecast|estimate|created|seen|per_|median|"
    r"gflops|neighbours|pace|share_of|times_faster|torch|numpy|python|rate$|longest",
    re.IGNORECASE,
)
# Values of `doctor --json` of which a machine has some and another has others.
_OF_MACHINE = re.compile(r"machine\.|programs\.|models\.free")


def digest(name: str, content: bytes) -> Any:  # noqa: PLR0911 (one for each kind of file)
    """Return the digest of a file, chosen by the ending of its name."""
    if name.endswith(".gz"):
        name, content = name.removesuffix(".gz"), gzip.decompress(content)
    ending = name.rpartition(".")[2]
    try:
        match ending:
            case "json":
                return json_digest(content)
            case "jsonl":
                return lines_digest(content)
            case "tsv" | "csv":
                return table_digest(content, "\t" if ending == "tsv" else ",")
            case "npz":
                return arrays_digest(dict(np.load(io.BytesIO(content), allow_pickle=False)))
            case "safetensors":
                return tensors_digest(content)
            case "pdb" | "cif":
                return structure_digest(content.decode(), ending)
            case "zip":
                return sorted(zipfile.ZipFile(io.BytesIO(content)).namelist())
            case "a3m" | "fasta" | "sto":
                return f"{content.count(b'>')} records"
    except (ValueError, KeyError, OSError, RuntimeError) as error:
        return f"unreadable: {type(error).__name__}"
    return "file"


def json_digest(content: bytes) -> Digest:
    """Return the paths of a JSON file's values with their kinds, and the means of numbers."""
    return _means(_leaves(json.loads(content), ""))


def lines_digest(content: bytes) -> Digest:
    """Return the digest of a file with one JSON value in each line."""
    values = [json.loads(line) for line in content.splitlines() if line.strip()]
    return {"lines": len(values)} | _means(leaf for value in values for leaf in _leaves(value, ""))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, each in value.items():
            yield from _leaves(each, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value:
        for each in value:
            yield from _leaves(each, f"{path}[]")
    else:
        yield path, value


def _means(leaves: Iterator[tuple[str, Any]]) -> Digest:
    values: dict[str, list[Any]] = {}
    for path, value in leaves:
        values.setdefault(path, []).append(value)
    return {path: _summary(path, values[path]) for path in sorted(values)}


def _summary(path: str, values: list[Any]) -> Any:
    if _OF_MACHINE.match(path):
        return "depends on the machine"
    numbers = [each for each in values if isinstance(each, int | float) and not isinstance(each, bool)]
    if numbers:
        return "number" if _VARIES.search(path) else _rounded(np.mean(numbers))
    if all(isinstance(each, bool) for each in values):
        return "bool"
    if all(each is None for each in values):
        return None
    kinds = {type(each).__name__ for each in values if each is not None}
    return "+".join(sorted(kinds)).replace("str", "text")


def table_digest(content: bytes, separator: str) -> Digest:
    """Return the columns of a table, its number of rows, and the means of columns of numbers."""
    head, *rows = [line.split(separator) for line in content.decode().splitlines()] or [[]]
    found: Digest = {"rows": len(rows)}
    for name, column in zip(head, zip(*rows, strict=False), strict=False):
        try:
            found[name] = "number" if _VARIES.search(name) else _rounded(np.mean([float(each) for each in column]))
        except ValueError:
            found[name] = "text"
    return found | {name: "text" for name in head if name not in found}


def arrays_digest(arrays: dict[str, np.ndarray]) -> Digest:
    """Return type, shape, mean and standard deviation of each array."""
    found: Digest = {}
    for name, array in sorted(arrays.items()):
        found[name] = [f"{array.dtype} {'x'.join(map(str, array.shape))}"]
        if array.dtype.kind in "fiub" and array.size:
            numbers = array.astype(np.float64)
            found[name] += [_rounded(np.mean(numbers)), _rounded(np.std(numbers))]
    return found


def tensors_digest(content: bytes) -> Digest:
    """Return the number of arrays and elements, the names' first parts and the mean size of values of parameters."""
    import torch  # noqa: F401, PLC0415 (it knows bfloat16)
    from safetensors.torch import load  # noqa: PLC0415

    arrays = load(content)
    length = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + length]).get("__metadata__", {})
    return {
        "arrays": len(arrays),
        "elements": sum(each.numel() for each in arrays.values()),
        "types": sorted({str(each.dtype).removeprefix("torch.") for each in arrays.values()}),
        "names": sorted({name.split(".")[0] for name in arrays}),
        "metadata": sorted(metadata),
        "mean size": _rounded(float(np.mean([each.double().abs().mean().item() for each in arrays.values()]))),
    }


def structure_digest(text: str, ending: str) -> Digest:
    """Return models, chains, residues and atoms of a structure, its radius of gyration and its mean B-factor."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if ending == "pdb":
            structure = gemmi.read_pdb_string(text)
        else:
            document = gemmi.cif.read_string(text)
            structure = gemmi.make_structure_from_block(document.sole_block())
    atoms = [each.atom for each in structure[0].all()] if len(structure) else []
    places = np.array([atom.pos.tolist() for atom in atoms] or [[0.0] * 3])
    found: Digest = {
        "models": len(structure),
        "chains": "".join(f"{chain.name} {len(chain)} " for chain in structure[0]).strip() if len(structure) else "",
        "atoms": len(atoms),
        "radius": _rounded(float(np.sqrt(places.var(axis=0).sum()))),
        "b": _rounded(float(np.mean([atom.b_iso for atom in atoms] or [0.0]))),
    }
    if ending == "cif":
        found["categories"] = " ".join(
            sorted(each.strip("_.") for each in document.sole_block().get_mmcif_category_names())
        )
    return found


def _rounded(value: Any) -> float | int | str:
    """Return a number with four digits; JSON has no others than finite ones."""
    number = float(value)
    if not np.isfinite(number):
        return str(number)
    return int(number) if number == int(number) and abs(number) < 1e15 else float(f"{number:.4g}")
