"""All readers of TOML files have limits, and hostile files give one `InputError`."""

from collections.abc import Callable
from pathlib import Path

import pytest

from data_pipeline.io.errors import InputError
from data_pipeline.io.site_configuration import _read
from data_pipeline.io.toml_files import read_toml
from data_pipeline.search.database_profile import read_database_profile
from helixfold.apps.cluster.site import read_site
from helixfold.model.presets import tiny
from helixfold.training.finetune.jobs import read_tasks

READERS: dict[str, Callable[[Path], object]] = {
    "databases": lambda path: read_database_profile(path, ()),
    "cluster": read_site,
    "configuration": lambda path: _read((path,), None),
    "fine-tunings": lambda path: read_tasks(path, tiny(), path.parent),
}
HOSTILE = {
    "nested lists": b"a = " + b"[" * 8000,
    "a number of 5,000 digits": b"a = " + b"9" * 5000,
    "a name of 40,000 parts": b"a" + b".a" * 40_000 + b" = 1",
    "20 names of 2,000 parts": b"".join(b"a%d%s = 1\n" % (number, b".a" * 2000) for number in range(20)),
    "bytes": b"a = \xff",
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("reader", READERS)
def test_hostile_files_are_one_sentence(reader: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file.toml"
    path.write_bytes(HOSTILE[kind])
    with pytest.raises(InputError, match=r"file\.toml.*(not a TOML|longer than 8,192 bytes)"):
        READERS[reader](path)


def test_dots_are_counted_before_names_are_parsed(tmp_path: Path) -> None:
    path = tmp_path / "file.toml"
    path.write_bytes(b"a = '" + b"." * 8000 + b"'\n")
    assert read_toml(path, "file") == {"a": "." * 8000}
    path.write_bytes(b"".join(b"a%d = '%s'\n" % (number, b"." * 8000) for number in range(3)))
    with pytest.raises(InputError, match=r"it has 24,000 dots; the limit is 20,000"):
        read_toml(path, "file")
