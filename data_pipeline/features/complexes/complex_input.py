"""A complex to predict with the user's own files, and the search for everything else that its features need."""

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
    """The user's alignments of one sequence of a complex, which is the first row of each."""

    unpaired: tuple[Path, ...] = ()
    paired: Path | None = None  # an a3m; each row stands beside the rows of its number of the other sequences
    uniprot: Path | None = None  # rows that are paired by the species in their names


@dataclass(frozen=True, kw_only=True)
class ComplexInput:
    """A complex to predict, with the user's own alignments and templates."""

    target: ComplexTarget
    files: tuple[ChainAlignmentFiles, ...] = ()  # of each of `target.entities`; empty: there are none
    a3m: Path | None = None  # ColabFold's alignment of all chains
    templates: tuple[Path, ...] = ()  # mmCIF or PDB files, or directories of them, for every chain
    latest_template: date | None = None  # templates must not be newer, nor newer than the plan allows
    pair_mode: PairMode = "unpaired_paired"
    shared_results: tuple[Path, ...] = ()  # of each of `target.entities`; for searches that serve other complexes too
    as_protein: bool = False  # read every letter as a residue, even if a chain looks like DNA, RNA or codes

    @property
    def name(self) -> str:
        """Return the complex's name."""
        return self.target.name

    @property
    def description(self) -> str:
        """Return what its FASTA file says about it."""
        return self.target.description

    @property
    def sequence(self) -> str:
        """Return the sequences of the chains with colons between, chains of the same sequence as neighbours."""
        entities = self.target.entities
        return CHAIN_SEPARATOR.join(each.sequence for each in entities for _ in each.chain_ids)

    @property
    def alignments(self) -> tuple[Path, ...]:
        """Return all files with rows that stand for a chain alone, or for all chains together."""
        own = [path for each in self.files for path in each.unpaired]
        return tuple(own if self.a3m is None else [self.a3m, *own])

    @property
    def paired_alignments(self) -> tuple[Path, ...]:
        """Return all files of rows that are paired, or are to be paired by species."""
        return tuple(path for each in self.files for path in (each.paired, each.uniprot) if path is not None)

    def files_of(self, entity: Entity) -> ChainAlignmentFiles:
        """Return the alignments of one of the sequences."""
        return self.files[self.target.entities.index(entity)] if self.files else ChainAlignmentFiles()

    def pair_directories(self, results: Path) -> list[Path]:
        """Return where paired rows of each sequence are stored: below `results`, in the directory of its first chain.

        If two names are one on some file system, the later one has a number behind it.
        """
        found: dict[str, Path] = {}
        for number, entity in enumerate(self.target.entities, start=1):
            name = entity.chain_ids[0]
            name = f"{name}_{number}" if filesystem_key(name) in found else name
            found[filesystem_key(name)] = results / name
        return list(found.values())

    def search_directories(self, results: Path) -> list[Path]:
        """Return where other results of each sequence are stored: in the shared directories, or beside the pairs."""
        return list(self.shared_results) or self.pair_directories(results)

    def needed(self, plan: SearchPlan) -> SearchPlan:
        """Return those searches of a plan that the complex needs, or may need.

        Rows are paired between different sequences only, and not searched if files have them. Where there are pairs and
        these alone are wanted, homologs of single sequences are needed for a template search only.
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
        """Return one of the sequences as a target of its own, named after the first chain that has it."""
        return Target(
            name=f"{self.name}_{entity.chain_ids[0]}",
            sequence=entity.sequence,
            alignments=self.files_of(entity).unpaired,
            templates=self.templates,
            latest_template=self.latest_template,
            as_protein=self.as_protein,
        )

    def template_date(self, latest: date | None) -> date | None:
        """Return the earlier of the complex's own date and a plan's; None if neither limits templates."""
        return self.chain(self.target.entities[0]).template_date(latest)


AnyTarget = Target | ComplexInput
