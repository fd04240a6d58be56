"""Content of the directory of a run, to compare two runs, without values that always differ (times, commands)."""

import gzip
import io
import json
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gemmi
import numpy as np
from safetensors.numpy import load

_LOCK = re.compile(r"\.helixfold.*\.lock|\.lock")


def values(directory: Path) -> dict[str, Any]:
    """Return the content of each file of a run by its path; of timings, only the names of the stages.

    Files that a writer has not finished are left out.
    """
    return {
        str(path.relative_to(directory)): value_of(path.name, path.read_bytes())
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not _LOCK.fullmatch(path.name) and not path.name.endswith(".partial")
    }


def value_of(name: str, content: bytes) -> Any:  # noqa: PLR0911, PLR0912  # one for each format
    """Return the content of a file as values that can be compared; fail if the file is incomplete."""
    match Path(name).suffix:
        case ".json" if name == "timings.json":
            return _of_timings(json.loads(content))
        case ".json":
            return _without_command(json.loads(content))
        case ".jsonl":
            return [json.loads(line) for line in content.splitlines()]
        case ".npz":
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                return {key: _of_array(arrays[key]) for key in arrays}
        case ".safetensors":  # its header has no fixed order
            return {key: _of_array(array) for key, array in load(content).items()}
        case ".zip":
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                return {each: value_of(Path(each).name, archive.read(each)) for each in sorted(archive.namelist())}
        case ".gz":
            return gzip.decompress(content)
        case ".html":  # with times, and with plots whose marks have random names
            assert content.rstrip().endswith(b"</html>"), name
            return sorted(set(re.findall(rb'<h[12][^>]*>[^<]*|href="[^"#:]+"', content)))
        case ".png":
            assert content.endswith(b"IEND\xaeB`\x82"), name
            return "plot"
        case ".cif":
            assert len(gemmi.cif.read_string(content.decode())) == 1, name
        case ".pdb":
            assert content.rstrip().endswith(b"END"), name
        case ".sto":
            assert content.rstrip().endswith(b"//"), name
        case ".tsv" | ".a3m":
            assert content.endswith(b"\n"), name
    return content


def _of_array(array: np.ndarray) -> tuple[str, tuple[int, ...], bytes]:
    return str(array.dtype), array.shape, array.tobytes()


def _without_command(content: Any) -> Any:
    """Leave out the words of the command, such as its --output, wherever a record has them."""
    if isinstance(content, Mapping):
        return {name: _without_command(each) for name, each in content.items() if name != "command"}
    return [_without_command(each) for each in content] if isinstance(content, list) else content


def _of_timings(content: Mapping[str, Any]) -> Any:
    models = {
        name: sorted(record) if isinstance(record, Mapping) else record
        for name, record in content.get("models", {}).items()
    }
    facts = {name: each for name, each in content.items() if name not in ("models", "stages") and "second" not in name}
    return {**facts, "models": models, "stages": sorted(content.get("stages", {}))}
