"""Build training records from a structure file, with the alignments and templates of its chains."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import numpy as np

from data_pipeline.features.monomer import monomer_features
from data_pipeline.features.templates import TemplateFeatures, no_templates
from data_pipeline.io.json_files import compress_json, decompress_json
from data_pipeline.parse.alignment import read_alignment
from data_pipeline.parse.gemmi_chains import BLANK_CHAIN
from data_pipeline.parse.template_hit import TemplateHit, parse_hits
from data_pipeline.parse.text_files import read_text_bytes
from data_pipeline.residues import GAP
from data_pipeline.structure import Structure
from data_pipeline.templates.filters import TemplateOptions
from data_pipeline.templates.from_hits import templates_from_hits
from data_pipeline.templates.result import UnusableHitError
from data_pipeline.templates.structure_directory import StructureDirectory
from data_pipeline.training_sets.build_cache import content_key, file_digest
from data_pipeline.training_sets.chain_alignment import alignment_for_chain, query_columns
from data_pipeline.training_sets.chain_record import RECORD_VERSION, encode_record
from data_pipeline.training_sets.chains import ChainFilter, chain_labels
from data_pipeline.training_sets.index import chain_name_problem
from data_pipeline.training_sets.source_files import AlignmentDirectory, SearchResults

_MAX_HITS_BYTES = 2**28
# Matches the entry id in hit names of hhsearch, hmmsearch and MMseqs2: ">1abc_A", "#=GS 1abc_A/5-80", "query\t1abc_A".
_HIT_NAMES = re.compile(rb"^(?:>|#=GS |[^\t\n]*\t)((?:pdb_)?[A-Za-z0-9-]{4,})_", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class ChainSummary:
    """Names and sequence of an accepted chain, before its alignments are read.

    `name` is its name in the training set, such as 1abc_A, and `chain` its name in the structure file, such as A.
    """

    name: str  # name in the training set, "1abc_A"
    chain: str  # name in the structure file, "A"
    sequence: str


@dataclass(frozen=True, kw_only=True)
class StructureSummary:
    """Summary of a structure file: the chains to train on, and the reasons why other chains are excluded.

    `resolution` is in Å. `refused` has the reasons by name in the training set.
    """

    release_date: date | None
    resolution: float | None
    chains: tuple[ChainSummary, ...]
    refused: dict[str, str]  # reason by name in the training set

    def pack(self) -> bytes:
        """Return the summary as compressed bytes; equal summaries give equal bytes."""
        return compress_json(
            {
                "release_date": self.release_date and self.release_date.isoformat(),
                "resolution": self.resolution,
                "chains": [[chain.name, chain.chain, chain.sequence] for chain in self.chains],
                "refused": self.refused,
            }
        )

    @classmethod
    def unpack(cls, content: bytes) -> "StructureSummary":
        """Return the summary from the bytes of `pack`; raise `ValueError` if they are damaged."""
        values = decompress_json(content)
        released = values["release_date"]
        return cls(
            release_date=None if released is None else date.fromisoformat(released),
            resolution=values["resolution"],
            chains=tuple(
                ChainSummary(name=name, chain=chain, sequence=sequence) for name, chain, sequence in values["chains"]
            ),
            refused=values["refused"],
        )


@dataclass(frozen=True, kw_only=True)
class TemplateLibrary:
    """Structure files for templates; a chain's own entry and entries released later are not its templates.

    With `any_date`, templates may be newer than the chain, or have an unknown date, within the limit in `options`.
    """

    source: StructureDirectory
    options: TemplateOptions
    any_date: bool = False

    def inputs(self, content: bytes) -> list[tuple[str, int]]:
        """Return the sorted names and sizes (bytes) of the structure files of the hits in a result file's `content`.

        Hits without a structure file are left out. They are part of the cache key of a record, because hashing hundreds
        of files for each chain would be slow.
        """
        inputs: set[tuple[str, int]] = set()
        for entry in {match.decode().lower() for match in _HIT_NAMES.findall(content)}:
            # If a missing file is added later, the inputs differ and the record is built again.
            with suppress(UnusableHitError):
                path = self.source.path(self.source.current_entry(entry))
                inputs.add((path.name, path.stat().st_size))
        return sorted(inputs)

    def features(
        self, target: str, hits: Sequence[TemplateHit], own_entry: str, released: date | None
    ) -> TemplateFeatures:
        """Return the template features of hits, without `own_entry` and, unless `any_date`, entries after `released`.

        `target` is the sequence with which the hits were searched. Unless `any_date`, `released` replaces the date in
        the options; if it is None, entries of any date are used. AlphaFold 2, Suppl. Sec. 1.2.3.
        """
        others = [hit for hit in hits if not hit.name.lower().startswith(f"{own_entry.lower()}_")]
        options = self.options if self.any_date else replace(self.options, latest_release=released)
        return templates_from_hits(target, others, self.source, options).features


@dataclass(frozen=True, kw_only=True)
class RecordBuilder:
    """Builder of training records; its fields are the settings of the content of a training set.

    `only` has the names of the chains to use; None: all. With `require_alignments`, chains without an alignment are
    left out. `is_distillation` is for predicted structures. With `assemblies`, the first biological assembly of each
    file is recorded too.
    """

    filter: ChainFilter
    alignments: AlignmentDirectory | None = None
    require_alignments: bool = False
    templates: TemplateLibrary | None = None
    is_distillation: bool = False
    assemblies: bool = False  # also record the first biological assembly of each file
    only: frozenset[str] | None = None  # names of the chains to use; None: all

    def summary_key(self, path: Path, digest: str) -> str:
        """Return the hash of all inputs of a file's summary, its key in the cache.

        `digest` is the hash of the structure file at `path`, whose name is an input too.
        """
        only = () if self.only is None else (sorted(self.only),)
        return content_key("survey", RECORD_VERSION, path.name, digest, repr(self.filter), self.is_distillation, *only)

    def summary(self, structure: Structure, path: Path) -> StructureSummary:
        """Return the chains of a structure to train on, and the reasons why other chains are excluded.

        Names of chains may be from the file name `path`; see `chain_name`.
        """
        chains: list[ChainSummary] = []
        refused = {chain_name(structure, name, path): reason for name, reason in structure.skipped.items()}
        for chain in structure.chains:
            name = chain_name(structure, chain.name, path)
            problem = chain_name_problem(name)
            reason = f"its name {problem}" if problem else None
            if self.only is not None and name not in self.only:
                reason = "it is not one of the chains to take"
            reason = reason or self.filter.exclusion_reason(structure, chain)
            if reason is None:
                chains.append(ChainSummary(name=name, chain=chain.name, sequence=chain.sequence))
            else:
                refused[name] = reason
        return StructureSummary(
            release_date=structure.release_date,
            resolution=structure.resolution,
            chains=tuple(chains),
            refused=refused,
        )

    def results(self, chain_summary: ChainSummary) -> SearchResults:
        """Return the files of search results of a chain, which are empty if it has no directory of results."""
        results = None if self.alignments is None else self.alignments.find(chain_summary.name)
        return results or SearchResults()

    def record_key(self, path: Path, digest: str, chain_summary: ChainSummary, results: SearchResults) -> str:
        """Return the hash of all inputs of a chain's record, its key in the cache and the database.

        `digest` is the hash of the structure file at `path`. Alignments and template hits are read for their hashes.
        """
        alignments = [[file.path.name, file.max_rows, file_digest(file.path)] for file in results.alignments]
        templates: list[object] = []
        if results.template_hits is not None and self.templates is not None:
            content = read_text_bytes(results.template_hits, _MAX_HITS_BYTES)
            options = f"{self.templates.options!r}{' of any date' if self.templates.any_date else ''}"
            name = results.template_hits.name
            templates = [name, file_digest(results.template_hits), options, self.templates.inputs(content)]
        return content_key(
            "chain", RECORD_VERSION, path.name, digest, chain_summary.chain, self.is_distillation, alignments, templates
        )

    def record(self, key: str, structure: Structure, chain_summary: ChainSummary, results: SearchResults) -> bytes:
        """Build the record of one chain of `structure` with its alignments and templates, as bytes.

        `key` is stored in its header. Alignments and templates of a slightly different sequence are adapted. Raise
        `InputError` if a search result cannot be read or an alignment does not fit the chain.
        """
        chain = next(chain for chain in structure.chains if chain.name == chain_summary.chain)
        sequence = chain.sequence
        parsed = [(file.path, read_alignment(file.path, max_rows=file.max_rows)) for file in results.alignments]
        alignments = [alignment_for_chain(alignment, sequence, path) for path, alignment in parsed]
        searched_sequence = parsed[0][1].query if parsed else sequence
        templates = self._templates(results, searched_sequence, sequence, structure)
        features = monomer_features(chain_summary.name, sequence, alignments, templates)
        return encode_record(key, features, chain_labels(structure, chain, is_distillation=self.is_distillation))

    def _templates(
        self, results: SearchResults, searched: str, sequence: str, structure: Structure
    ) -> TemplateFeatures:
        """Return the templates from the hits of `searched`, in the columns of `sequence`; none without hits."""
        if results.template_hits is None or self.templates is None:
            return no_templates(len(sequence))
        path = results.template_hits
        content = read_text_bytes(path, _MAX_HITS_BYTES)
        suffix = path.name.lower().removesuffix(".gz").rpartition(".")[2]
        hits = parse_hits(content, searched, file_format=suffix, path=path)
        features = self.templates.features(searched, hits, structure.name, structure.release_date)
        return features if searched == sequence else _on_columns(features, query_columns(searched, sequence))


def chain_name(structure: Structure, chain: str, path: Path) -> str:
    """Return a chain's name in the training set, made of entry and chain, such as "1abc_A".

    If the structure has a single chain and the file is named after it ("1abc_A.cif", "target_A_v2.pdb"), the file name
    up to the first dot is used instead, because such files often have the entry id of another entry. A chain without a
    name gets the name of the entry.
    """
    stem = path.name.split(".")[0]
    if len(structure.chains) == 1 and chain == structure.chains[0].name and chain in stem.split("_")[1:]:
        return stem
    return structure.name if chain == BLANK_CHAIN else f"{structure.name}_{chain}"


def _on_columns(features: TemplateFeatures, columns: np.ndarray) -> TemplateFeatures:
    """Return template features with the residues at `columns`, with gaps where a column is -1."""
    is_aligned = columns >= 0
    aatype, masks = features["template_aatype"][:, columns], features["template_all_atom_masks"][:, columns]
    positions = features["template_all_atom_positions"][:, columns]
    aatype[:, ~is_aligned], masks[:, ~is_aligned], positions[:, ~is_aligned] = GAP, 0, 0
    return TemplateFeatures(
        template_domain_names=features["template_domain_names"],
        template_aatype=aatype,
        template_all_atom_positions=positions,
        template_all_atom_masks=masks,
        template_sum_probs=features["template_sum_probs"],
    )
