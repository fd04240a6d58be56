"""Find the alignments of a chain in a directory of search results with AlphaFold's layout.

`RESULTS_DIRECTORY` is AlphaFold's name of the directory, in the directory of a target, with one directory per chain.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from data_pipeline.features.complexes.chain_ids import ONLY_CHAIN
from data_pipeline.features.complexes.complex_input import ChainAlignmentFiles
from data_pipeline.io.files import without_suffix

ALIGNMENT_SUFFIXES = (".a3m", ".a3m.gz", ".sto", ".sto.gz", ".aln", ".aln.gz")
# AlphaFold's results in the order in which their rows are merged; other files follow by name.
_ALPHAFOLD_ORDER = ("uniref90_hits", "bfd_uniref_hits", "bfd_uniclust_hits", "small_bfd_hits", "mgnify_hits")
# Rows to be paired by species, rows paired by a search, and template hits, which are not an alignment.
_UNIPROT_STEM, _PAIRED_STEM, _TEMPLATES_STEM = "uniprot_hits", "paired_hits", "pdb_hits"
_HITS_ENDING = "_hits"
RESULTS_DIRECTORY = "msas"


def chain_directories(directory: Path, names: Sequence[str], chain: str, *, only: bool) -> Iterator[Path]:
    """Yield possible paths of the results of a chain: <name>/msas/<chain> and <name>/<chain> for each of `names`.

    `names` are the possible names of its complex's directory. If the complex is the `only` target, the same paths
    without <name> follow.
    """
    for parent in (*(directory / name for name in names), *([directory] if only else [])):
        yield parent / RESULTS_DIRECTORY / chain
        yield parent / chain


def alignments_of_single_chain(directory: Path, names: Sequence[str], *, only: bool) -> tuple[Path, ...]:
    """Return the alignments of a single-chain target from a directory of search results, in AlphaFold's order.

    AlphaFold writes them to <name>/msas, AlphaFold-Multimer to <name>/msas/A, and OpenFold to <name>, where only files
    named *_hits count. <name> may be omitted for a single target.
    """
    for parent in (*(directory / name for name in names), *([directory] if only else [])):
        for place in (parent / RESULTS_DIRECTORY, parent / RESULTS_DIRECTORY / ONLY_CHAIN, parent):
            alignments = read_directory(place)
            files = () if alignments is None else alignments.unpaired
            if place == parent:
                files = tuple(path for path in files if _stem(path).endswith(_HITS_ENDING))
            if files:
                return files
    return ()


def read_directory(directory: Path) -> ChainAlignmentFiles | None:
    """Return the alignments in the directory of a chain, in AlphaFold's order, or None if there are none.

    Files named `paired_hits` and `uniprot_hits` have rows for pairing, of which `uniprot_hits` is ignored if both are
    present. Template hits (`pdb_hits`) are left out.
    """
    if not os.path.isdir(directory):
        return None
    hits = {_stem(path): path for path in sorted(directory.iterdir()) if _stem(path) != path.name and path.is_file()}
    paired, uniprot = hits.pop(_PAIRED_STEM, None), hits.pop(_UNIPROT_STEM, None)
    hits.pop(_TEMPLATES_STEM, None)
    if not hits and paired is None and uniprot is None:
        return None
    order = {stem: place for place, stem in enumerate(_ALPHAFOLD_ORDER)}
    unpaired = [hits[stem] for stem in sorted(hits, key=lambda stem: (order.get(stem, len(order)), stem))]
    # If both are present, rows paired by a search take precedence.
    return ChainAlignmentFiles(unpaired=tuple(unpaired), paired=paired, uniprot=None if paired else uniprot)


def _stem(path: Path) -> str:
    """Return a file name without the suffix of an alignment; other names are unchanged."""
    return without_suffix(path, ALIGNMENT_SUFFIXES)
