"""Define the command `helixfold cache`, which shows and removes cached files."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter

from data_pipeline.io.errors import InputError
from helixfold.cli.command import Command
from helixfold.runtime.options import Directory, reads, whole_number

if TYPE_CHECKING:
    from data_pipeline.io.user_cache import CacheKind

Kind = Literal["weights", "searches", "databases", "templates", "entries", "loops", "all"]
_DAY = 86400
_HELP_KINDS = """kinds:
  weights     parameters of `helixfold weights download`
  searches    results of MMseqs2 searches in ColabFold's databases
  databases   FASTA files converted for MMseqs2
  templates   structures of templates from an MSA server
  entries     sequences and structures of --fetch-inputs
  loops       loops that Numba compiled for this processor

Results of predictions, and the alignments in their directories, are not in the cache.
"""
app = Command(
    name="cache",
    usage="helixfold cache [prune KIND...] [options]\nexample: helixfold cache prune searches --older-than 90",
    help_epilogue=_HELP_KINDS,
    group_commands=Group.create_ordered("Actions"),
)
_Days = Annotated[int, reads(whole_number(0, 100_000), "DAYS")]
SearchCache = Annotated[Directory | None, Parameter(show_default="as for predict")]


@app.default
def show(*, search_cache: SearchCache = None) -> None:
    """Show what helixfold keeps on disk between runs: where, how much, and how old it is.

    Parameters
    ----------
    search_cache
        Directory of --search-cache, if predictions use another one than the configured.
    """
    total, now = 0, time.time()
    print(f"{'kind':10} {'items':>7} {'MiB':>10}  {'age in days':13} directory")
    for kind in _kinds(search_cache):
        items = list(kind.items())
        size = sum(item.size for item in items)
        days = [max(0, int((now - item.time) / _DAY)) for item in items]
        age = "-" if not days else f"{min(days):,} to {max(days):,}"
        total += size
        where = kind.directory or "no home directory"
        print(f"{kind.name:10} {len(items):7,} {size / 2**20:10,.1f}  {age:13} {where} ({kind.description})")
    print(f"{'all':10} {'':7} {total / 2**20:10,.1f}")


@app.command(usage="helixfold cache prune KIND... [options]")
def prune(
    *kinds: Annotated[Kind, Parameter(name="KIND")],
    older_than: Annotated[_Days | None, Parameter(show_default="any age")] = None,
    dry_run: bool = False,
    search_cache: SearchCache = None,
) -> None:
    """Remove what helixfold keeps on disk; it is made or downloaded again when it is needed. Nothing else in these
    directories is touched. Do not run it while searches of this cache run.

    Parameters
    ----------
    kinds
        weights, searches, databases, templates, entries, loops, or all.
    older_than
        Keep what was written within this many days.
    dry_run
        Show what would be removed, and stop.
    search_cache
        Directory of --search-cache, if predictions use another one than the configured.
    """
    if not kinds:
        raise InputError("name the KIND to remove: weights, searches, databases, templates, entries, loops, or all")
    newest_removed = time.time() - (older_than or 0) * _DAY
    for kind in _kinds(search_cache):
        if kind.name not in kinds and "all" not in kinds:
            continue
        items = [item for item in kind.items() if older_than is None or item.time <= newest_removed]
        for item in items:
            if dry_run:
                print(f"would remove {item.path}")
            else:
                item.remove()
        verb = "would remove" if dry_run else "removed"
        print(f"{kind.name}: {verb} {len(items):,}, {sum(item.size for item in items) / 2**20:,.1f} MiB")


def _kinds(search_cache: Path | None) -> "tuple[CacheKind, ...]":
    """Return the kinds of cached files with their directories."""
    from data_pipeline.io.user_cache import cache_kinds
    from helixfold.weights.cache import parameters_directory

    return cache_kinds(parameters_directory(), search_cache)
