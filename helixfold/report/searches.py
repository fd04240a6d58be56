"""Say what files and searches gave for a target: a line for the screen, and the content of templates.json."""

from collections.abc import Mapping
from pathlib import Path

from data_pipeline.complexes.pipeline import PreparedComplex
from data_pipeline.pipeline import PreparedTarget
from data_pipeline.templates.result import TemplateResult
from helixfold.report.page import counted

TEMPLATES_FILE = "templates.json"


def template_report(result: TemplateResult, chain: str | None = None) -> dict[str, list[dict[str, object]]]:
    """Return the content of templates.json: the templates that the model reads, and why other hits are rejected.

    Of a complex, each entry says for which `chain` it was found.
    """
    of_chain = {} if chain is None else {"chain": chain}
    return {
        "used": [
            {
                **of_chain,
                "name": template.name,
                "rank": template.rank,
                "release_date": None if template.release_date is None else template.release_date.isoformat(),
                "aligned_residues": template.aligned,
                "identity": round(template.identity, 3),
                "note": template.note,
            }
            for template in result.used
        ],
        "rejected": [
            {**of_chain, "name": hit.name, "rank": hit.rank, "reason": hit.reason.value, "detail": hit.sentence}
            for hit in result.rejected
        ],
    }


def templates_of(prepared: PreparedTarget | PreparedComplex) -> dict[str, list[dict[str, object]]] | None:
    """Return the content of templates.json of a target; None if templates were neither given nor searched."""
    if isinstance(prepared, PreparedTarget):
        return None if prepared.templates is None else template_report(prepared.templates)
    reports = [
        template_report(found.templates, chain)
        for chain, found in prepared.found.items()
        if found.templates is not None
    ]
    return (
        {key: [entry for each in reports for entry in each[key]] for key in ("used", "rejected")} if reports else None
    )


def summary(prepared: PreparedTarget | PreparedComplex, *, reads_templates: bool = True) -> str:
    """Describe alignment and templates in one line for the screen, and whether a model of the run reads templates."""
    if isinstance(prepared, PreparedTarget):
        line = f"{counted(len(prepared.features.msa), 'row')} in the alignment{_sources(prepared.alignment_rows)}"
        return line + _templates(prepared.templates, reads_templates=reads_templates)
    features = prepared.features.multimer
    line = f"{counted(len(features.msa), 'row')} in the alignment"
    if features.entity_id[-1] > 1:
        line += f", {features.paired_rows - 1 or 'none'} of them paired"
    parts = [line]
    for chain, found in prepared.found.items():
        templates = _templates(found.templates, reads_templates=reads_templates)
        if found.alignments or templates:
            parts.append(f"chain {chain}{_sources(found.alignment_rows)}{templates}")
    return "; ".join(parts)


def _sources(rows: Mapping[str, int]) -> str:
    shown = ", ".join(f"{count:,} from {Path(source).name}" for source, count in rows.items())
    return f" ({shown})" if shown else ""


def _templates(result: TemplateResult | None, *, reads_templates: bool) -> str:
    if result is None:
        return ""
    names = f" ({', '.join(template.name for template in result.used)})" if result.used else ""
    unread = "" if reads_templates or not result.used else ", which no model of this run reads"
    rejected = f"{counted(len(result.rejected), 'hit')} not used, see {TEMPLATES_FILE}"
    return f"; {counted(len(result.used), 'template')}{names}{unread}, {rejected}"
