"""A complex to predict, with the user's files and the searches for its other features.

`AnyTarget` is a single chain or a complex.
"""

from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from data_pipeline.features.complexes.alignments import PairMode
from data_pipeline.features.complexes.chain_sequences import CHAIN_SEPARATOR
from data_pipeline.features.complexes.target import ComplexTarget, Entity
from data_pipeline.parse.fasta import filesystem_key
from data_pipeline.pipeline import Target
from data_pipeline.search.plan import SearchPlan


@dataclass(frozen=True, kw_only=True)
class ChainAlignmentFiles:
    """The user's alignments of one sequence of a complex; the sequence is the first row of each.

    Rows of `paired` are paired with the rows of the same index of the other sequences, and rows of `uniprot` by the
    species in their names.
    """

    unpaired: tuple[Path, ...] = ()
    paired: Path | None = None  # an a3m with rows paired with the rows of the same index of the other sequences
    uniprot: Path | None = None  # rows to be paired by the species in their names


@dataclass(frozen=True, kw_only=True)
class ComplexInput:
    """A complex to predict, with the user's alignments and templates.

    `files` and `shared_results` have one entry for each of `target.entities` (the distinct sequences), or are empty;
    `shared_results` are directories of search results shared with other complexes. `a3m` is ColabFold's alignment of
    all chains. `templates` are structure files or directories of these for single chains, and `cross_chain_templates`
    are structure files that show how chains are arranged. `latest_template` limits the release dates of templates in
    addition to the plan. `as_protein` accepts chains that look like DNA, RNA or three-letter codes.
    """

    target: ComplexTarget
    files: tuple[ChainAlignmentFiles, ...] = ()  # one for each of `target.entities`, or empty
    a3m: Path | None = None  # ColabFold's alignment of all chains
    templates: tuple[Path, ...] = ()  # mmCIF or PDB files, or directories of these, for all chains
    cross_chain_templates: tuple[Path, ...] = ()  # structure files of several chains, for models of complexes
    latest_template: date | None = None  # max release date of templates, in addition to the plan's limit
    pair_mode: PairMode = "unpaired_paired"
    shared_results: tuple[Path, ...] = ()  # one directory for each of `target.entities`, shared with other complexes
    as_protein: bool = False  # accept chains that look like DNA, RNA or three-letter codes

    @property
    def name(self) -> str:
        """Name of the complex."""
        return self.target.name

    @property
    def description(self) -> str:
        """Text after the names in the headers of the FASTA file."""
        return self.target.description

    @property
    def sequence(self) -> str:
        """Sequences of the chains, separated by colons; chains with the same sequence are neighbours."""
        entities = self.target.entities
        return CHAIN_SEPARATOR.join(each.sequence for each in entities for _ in each.chain_ids)

    @property
    def alignments(self) -> tuple[Path, ...]:
        """Alignment files: ColabFold's alignment of all chains, then the unpaired ones of each sequence."""
        own = [path for each in self.files for path in each.unpaired]
        return tuple(own if self.a3m is None else [self.a3m, *own])

    @property
    def paired_alignments(self) -> tuple[Path, ...]:
        """Files of each sequence with rows that are paired, or to be paired by species, without ColabFold's file."""
        return tuple(path for each in self.files for path in (each.paired, each.uniprot) if path is not None)

    def files_of(self, entity: Entity) -> ChainAlignmentFiles:
        """Return the alignment files of one of the distinct sequences, empty if the user passed none."""
        return self.files[self.target.entities.index(entity)] if self.files else ChainAlignmentFiles()

    def pair_directories(self, results: Path) -> list[Path]:
        """Return the directory of the paired rows of each sequence: below `results`, named after its first chain.

        A number is added to names that are equal to earlier ones on some file systems.
        """
        directories: dict[str, Path] = {}
        for entity_number, entity in enumerate(self.target.entities, start=1):
            name = entity.chain_ids[0]
            name = f"{name}_{entity_number}" if filesystem_key(name) in directories else name
            directories[filesystem_key(name)] = results / name
        return list(directories.values())

    def search_directories(self, results: Path) -> list[Path]:
        """Return a directory for the results of each distinct sequence, without paired rows.

        These are the shared directories, or else the directories of `pair_directories`.
        """
        return list(self.shared_results) or self.pair_directories(results)

    def needed(self, plan: SearchPlan) -> SearchPlan:
        """Return the searches of a plan that the complex may need.

        Pairs are only searched between distinct sequences, and not if files have them. With pairs and in the mode
        "paired", homologs of single sequences are only needed for a template search.
        """
        if len(self.target.entities) == 1 or self.pair_mode == "unpaired":
            return replace(plan, pairing=None, uniprot=None)
        finds_pairs = bool(self.paired_alignments) or plan.pairing is not None or plan.uniprot is not None
        if self.paired_alignments:
            plan = replace(plan, pairing=None, uniprot=None)
        has_templates = plan.of_chains().templates is not None and not self.templates
        needs_homologs = self.pair_mode != "paired" or not finds_pairs or has_templates
        return plan if needs_homologs else replace(plan, alignments=())

    def chain(self, entity: Entity) -> Target:
        """Return one of the distinct sequences as a single target, named <complex>_<first chain>.

        It has the unpaired alignment files of the sequence, and the templates of the complex.
        """
        return Target(
            name=f"{self.name}_{entity.chain_ids[0]}",
            sequence=entity.sequence,
            alignments=self.files_of(entity).unpaired,
            templates=self.templates,
            latest_template=self.latest_template,
            as_protein=self.as_protein,
        )

    def template_date(self, latest: date | None) -> date | None:
        """Return the earlier of the complex's template date and `latest`, or None if both are None."""
        return self.chain(self.target.entities[0]).template_date(latest)


AnyTarget = Target | ComplexInput
