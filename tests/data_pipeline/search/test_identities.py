"""The identity of a search changes with every option that changes its results, and with no other option."""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.search import colabfold_search, hhsuite, hmmsearch, jackhmmer, mmseqs
from data_pipeline.search.alignment_server import AlignmentServer, ServerOptions
from data_pipeline.search.colabfold_databases import ClusterDatabase, with_ending
from data_pipeline.search.colabfold_search import ColabfoldPairing, ColabfoldSearch, ColabfoldTemplates, MmseqsBatch
from data_pipeline.search.hhsuite import Hhblits, Hhsearch
from data_pipeline.search.hmmsearch import HmmsearchOptions, HmmsearchProgram, InProcessHmmsearch
from data_pipeline.search.jackhmmer import InProcessJackhmmer, JackhmmerOptions, JackhmmerProgram
from data_pipeline.search.mmseqs import Mmseqs
from data_pipeline.search.mmseqs_server import ServerPairing, ServerSearch

# Fields that say where a search runs, on how many processors and for how long at most.
_OF_THE_MACHINE = {"program", "hmmbuild", "cpus", "timeout", "cache"}
_OF_A_SERVER = {"batch", "max_wait", "connect_timeout", "read_timeout", "instead", "timeout"}
PROGRAM = Path("program")


def database(path: Path, size: int = 8) -> Path:
    """The files of a database for each program, with so many residues."""
    for part in product(("_a3m", "_hhm", "_cs219"), (".ffdata", ".ffindex")):
        with_ending(path, "".join(part)).write_text("A" * size)
    for name in ("", "_h", "_seq", "_seq_h", "_aln"):
        with_ending(path, name).write_text(">a\n" + "A" * size)
        with_ending(path, f"{name}.index").touch()
        with_ending(path, f"{name}.dbtype").write_bytes(bytes([5 if name == "_aln" else 0, 0, 0, 0]))
    return path


def searches(tmp_path: Path) -> dict[str, tuple[Any, set[str]]]:
    """Return a search of each kind, with the fields that do not affect its results beside `_OF_THE_MACHINE`."""
    one, two = database(tmp_path / "one"), database(tmp_path / "two")
    batch, server = MmseqsBatch(program=PROGRAM), AlignmentServer(ServerOptions(url="http://127.0.0.1:1"))
    colabfold = ColabfoldSearch(batch=batch, uniref=ClusterDatabase(one), environmental=ClusterDatabase(two))
    return {
        "hhblits": (Hhblits(program=PROGRAM, databases=(one,)), set()),
        "hhsearch": (Hhsearch(program=PROGRAM, databases=(one,)), set()),
        "hmmsearch": (HmmsearchProgram(one, HmmsearchOptions(), PROGRAM, PROGRAM), set()),
        "hmmsearch in process": (InProcessHmmsearch(one, HmmsearchOptions()), set()),
        "jackhmmer": (JackhmmerProgram(one, JackhmmerOptions(), PROGRAM), set()),
        "jackhmmer in process": (InProcessJackhmmer(one, JackhmmerOptions()), set()),
        "mmseqs": (Mmseqs(program=PROGRAM, database=one, cache=tmp_path), set()),
        "colabfold": (colabfold, {"templates"}),
        # The profile is made of UniRef before rows are filtered.
        "colabfold's templates": (
            ColabfoldTemplates(alignments=replace(colabfold, templates=two)),
            {"environmental", "filtered"},
        ),
        "colabfold's pairs": (
            ColabfoldPairing(batch=batch, database=ClusterDatabase(one)),
            {"filtered"},
        ),
        "server": (ServerSearch(server), {*_OF_A_SERVER, "with_templates", "pair_strategy", "pair_environmental"}),
        "server's pairs": (ServerPairing(server), {*_OF_A_SERVER, "mode"}),
    }


def changed(value: Any, tmp_path: Path) -> Any:
    """Another valid value of a field."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, tuple):
        return tuple(changed(each, tmp_path) for each in value)
    if isinstance(value, Path):
        return database(tmp_path / "three", size=9)
    if isinstance(value, str):
        return {"env": "all", "greedy": "complete"}.get(value, f"{value}0")
    if value is None:
        return 5.0
    return value + 1 if isinstance(value, int) else 1.25 * value


def variants(search: Any, tmp_path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the search with each field changed, in the fields' own fields too, and the names of the fields."""
    for each in fields(search):
        value = getattr(search, each.name)
        if not each.init or callable(value) or each.name in {"rng", "shared"}:
            continue
        if is_dataclass(value):
            for name, other in variants(value, tmp_path):
                yield f"{each.name} {name}", replace(search, **{each.name: other})
        elif each.name == "templates" and value is None:
            continue
        elif each.name == "gpu_server":
            yield each.name, replace(search, gpu=True, gpu_server=True)  # on a GPU only
        else:
            yield each.name, replace(search, **{each.name: changed(value, tmp_path)})


@pytest.fixture(autouse=True)
def versions(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Function that sets the version of every program."""

    def set_to(version: str) -> None:
        for module in (hhsuite, hmmsearch, jackhmmer, mmseqs, colabfold_search):
            monkeypatch.setattr(module, "program_version", lambda *_: version)

    set_to("1.0")
    return set_to


KINDS = (
    *("hhblits", "hhsearch", "hmmsearch", "hmmsearch in process", "jackhmmer", "jackhmmer in process", "mmseqs"),
    *("colabfold", "colabfold's templates", "colabfold's pairs", "server", "server's pairs"),
)


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_that_changes_results_is_in_the_identity(kind: str, tmp_path: Path) -> None:
    search, without_effect = searches(tmp_path)[kind]
    identity = search.identity()
    same = without_effect | _OF_THE_MACHINE
    found = {names: other.identity() for names, other in variants(search, tmp_path)}
    wrong = [names for names, other in found.items() if (other == identity) == same.isdisjoint(names.split())]
    assert wrong == []
    differing = [other for other in found.values() if other != identity]
    assert len(set(differing)) == len(differing)
    assert len(differing) >= 2


@pytest.mark.parametrize("kind", KINDS[:10])
def test_another_release_of_a_database_or_program_has_another_identity(
    kind: str, versions: Callable[[str], None], tmp_path: Path
) -> None:
    search, _ = searches(tmp_path)[kind]
    identity = search.identity()
    assert search.identity() == identity
    if "in process" not in kind:
        versions("1.1")
        assert search.identity() != identity
        versions("1.0")
    database(tmp_path / "one", size=100)
    assert search.identity() != identity
