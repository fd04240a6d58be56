"""Choose the searches of ColabFold's databases: alignments, templates with the same profile, and pairs of complexes."""

from dataclasses import dataclass
from pathlib import Path

from data_pipeline.errors import InputError
from data_pipeline.search.colabfold_databases import ClusterDatabase, check_sequences
from data_pipeline.search.colabfold_search import ColabfoldPairing, ColabfoldSearch, ColabfoldTemplates, MmseqsBatch
from data_pipeline.search.colabfold_steps import ColabfoldOptions
from data_pipeline.search.database import DatabaseProfile
from data_pipeline.search.mmseqs_program import OLDEST_FOR_CLUSTERS, require_mmseqs
from data_pipeline.search.shared_results import SharedResults

_NEEDED = (
    "mmseqs searches templates with the profile of a search of UniRef30; "
    'add [[alignments]] with tool = "colabfold", or search the templates with hmmsearch or hhsearch'
)


@dataclass(frozen=True, kw_only=True)
class ColabfoldPlan:
    """The searches of ColabFold's databases in a profile."""

    alignments: ColabfoldSearch
    pairing: ColabfoldPairing | None  # None: the database does not say the species of its sequences

    def template_search(self) -> ColabfoldTemplates:
        """Return the search for templates with the profile of the alignments."""
        return ColabfoldTemplates(alignments=self.alignments)


def plan_colabfold(
    profile: DatabaseProfile, options: ColabfoldOptions | None, *, cpus: int, cache: Path | None
) -> ColabfoldPlan | None:
    """Return the searches of the profile's ColabFold databases; None if it has none.

    Results are shared between runs in a folder of `cache`, unless that is None. Raise `InputError` if a file is
    missing or of a wrong kind, MMseqs2 is missing or too old, or if templates need a search that is not there.
    """
    templates = profile.templates
    path = templates.paths[0] if templates is not None and templates.tool == "mmseqs" else None
    if profile.complex_templates is not None and profile.complex_templates.tool == "mmseqs":
        raise InputError("[complex_templates]: mmseqs searches the [templates] alone; choose hmmsearch or hhsearch")
    if options is None:
        if path is not None:
            raise InputError(f"[templates]: {_NEEDED}")
        return None
    (database,) = (database for database in profile.alignments if database.tool == "colabfold")
    uniref, *environmental = (ClusterDatabase(path.absolute()) for path in database.paths)
    if path is not None:
        check_sequences(path)
    batch = MmseqsBatch(program=require_mmseqs(OLDEST_FOR_CLUSTERS), cpus=cpus)
    shared = None if cache is None else SharedResults(cache / "searches")
    alignments = ColabfoldSearch(
        batch=batch,
        uniref=uniref,
        environmental=environmental[0] if environmental else None,
        templates=None if path is None else path.absolute(),
        options=options,
        shared=shared,
    )
    pairing = ColabfoldPairing(batch=batch, database=uniref, options=options, shared=shared)
    return ColabfoldPlan(alignments=alignments, pairing=pairing if uniref.has_taxonomy else None)
