"""Download UniProt accessions and PDB ids among the inputs of a run, for --fetch-inputs."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from data_pipeline.io.errors import InputError
from data_pipeline.io.user_cache import NO_CACHE, user_cache, writable_cache
from data_pipeline.search import entries
from data_pipeline.search.entries import EntryServers, fetch_sequence, is_entry
from helixfold.apps.options import PredictOptions
from helixfold.runtime.standard_streams import print_note

_CACHE_FOLDER = "entries"  # in the cache


def fetch_structure(name: str) -> Path:
    """Return the path of the mmCIF file of a PDB id, or of a UniProt accession from AlphaFold DB.

    The file is downloaded once and stays in the cache. Raise `InputError` if it cannot be downloaded.
    """
    return entries.fetch_structure(name, _cache(), EntryServers.configured(), print_note)


def _cache() -> Path:
    """Return the directory in the user's cache for fetched files. Raise `InputError` if there is none."""
    if (cache := user_cache()) is None:
        raise InputError(NO_CACHE)
    return writable_cache(cache / _CACHE_FOLDER)


def with_fetched_inputs(options: PredictOptions) -> PredictOptions:
    """Return the options with every UniProt accession and PDB id replaced by a downloaded file.

    The name of an existing file is never an id. Raise `InputError` for an id without --fetch-inputs, and for an id that
    cannot be downloaded.
    """
    paths = [*options.inputs, *(options.templates or ()), *options.cross_chain_templates, *options.reference]
    paths += [options.initial_guess] if options.initial_guess is not None else []
    ids = [path for path in paths if is_entry(str(path)) and not path.exists()]
    if not ids:
        return options
    if not options.fetch_inputs:
        raise InputError(
            f"{ids[0]}: no such file; if it is a UniProt accession or a PDB id, pass --fetch-inputs to download it"
        )
    cache, servers = _cache(), EntryServers.configured()

    def file_of(path: Path, *, is_structure: bool = True) -> Path:
        """Return the fetched file if a path is an id, else the path."""
        fetch = entries.fetch_structure if is_structure else fetch_sequence
        return fetch(str(path), cache, servers, print_note) if path in ids else path

    return replace(
        options,
        inputs=tuple(map(partial(file_of, is_structure=False), options.inputs)),
        templates=None if options.templates is None else tuple(map(file_of, options.templates)),
        cross_chain_templates=tuple(map(file_of, options.cross_chain_templates)),
        reference=tuple(map(file_of, options.reference)),
        initial_guess=options.initial_guess and file_of(options.initial_guess),
    )
