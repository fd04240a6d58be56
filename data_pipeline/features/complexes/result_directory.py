"""Find the alignments of a chain among the results of its searches, in a directory as AlphaFold fills it."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from data_pipeline.features.complexes.chain_ids import ONLY_CHAIN
from data_pipeline.features.complexes.complex_input import ChainAlignmentFiles
from data_pipeline.io.files import without_suffix

ALIGNMENT_SUFFIXES = (".a3m", ".a3m.gz", ".sto", ".sto.gz", ".aln", ".aln.gz")
# AlphaFold's results in the order in which it merges their rows; others follow by name.
_ORDER = ("uniref90_hits", "bfd_uniref_hits", "bfd_uniclust_hits", "small_bfd_hits", "mgnify_hits")
# Rows that are paired by species, those that a search has paired, and hits of templates, which are no alignment.
_UNIPROT, _PAIRED, _TEMPLATES = "uniprot_hits", "paired_hits", "pdb_hits"
_HITS = "_hits"
RESULTS_DIRECTORY = "msas"  # in the directory of a target; it holds one directory per chain


def chain_directories(directory: Path, names: Sequence[str], chain: str, *, only: bool) -> Iterator[Path]:
    """Yield where results for a chain can be: below the directory of its complex, or, of the only one, here."""
    for parent in (*(directory / name for name in names), *([directory] if only else [])):
        yield parent / RESULTS_DIRECTORY / chain
        yield parent / chain


def alignments_of_single_chain(directory: Path, names: Sequence[str], *, only: bool) -> tuple[Path, ...]:
    """Return the alignments of a target of one chain from a directory of search results, in AlphaFold's order.

    AlphaFold writes them to <name>/msas, AlphaFold-Multimer to <name>/msas/A, and OpenFold to <name>, where only files
    named *_hits count. For a single target, <name> may be left out.
    """
    for parent in (*(directory / name for name in names), *([directory] if only else [])):
        for place in (parent / RESULTS_DIRECTORY, parent / RESULTS_DIRECTORY / ONLY_CHAIN, parent):
            found = read_directory(place)
            files = () if found is None else found.unpaired
            if place == parent:
                files = tuple(path for path in files if _stem(path).endswith(_HITS))
            if files:
                return files
    return ()


def read_directory(directory: Path) -> ChainAlignmentFiles | None:
    """Return the alignments in the directory of a chain, in AlphaFold's order; None if there is none."""
    if not os.path.isdir(directory):
        return None
    found = {_stem(path): path for path in sorted(directory.iterdir()) if _stem(path) != path.name and path.is_file()}
    paired, uniprot = found.pop(_PAIRED, None), found.pop(_UNIPROT, None)
    found.pop(_TEMPLATES, None)
    if not found and paired is None and uniprot is None:
        return None
    order = {stem: place for place, stem in enumerate(_ORDER)}
    unpaired = [found[stem] for stem in sorted(found, key=lambda stem: (order.get(stem, len(order)), stem))]
    # The rows that a search has paired are those that were wanted where both are there.
    return ChainAlignmentFiles(unpaired=tuple(unpaired), paired=paired, uniprot=None if paired else uniprot)


def _stem(path: Path) -> str:
    """Return a file's name without the suffix of an alignment, or the whole name of another file."""
    return without_suffix(path, ALIGNMENT_SUFFIXES)
