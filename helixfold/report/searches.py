"""Describe the alignment and templates of a target: a line for the screen, and the content of templates.json."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from data_pipeline.features.complexes.pipeline import PreparedComplex
from data_pipeline.pipeline import PreparedTarget
from data_pipeline.templates.result import RejectedHit, RejectionReason, TemplateResult, UsedTemplate
from helixfold.report.page import counted
from helixfold.results.file_table import TEMPLATES


def template_report(
    result: TemplateResult, chain: str | None = None, read: Collection[str] | None = None
) -> dict[str, list[dict[str, object]]]:
    """Return the content of templates.json: the templates that are used, and the rejected hits with reasons.

    For a complex, each entry names the `chain` that it belongs to. `read` has the labels of the templates that the
    models use; all others count as rejected. If it is None, the models are not known yet and no template is rejected.
    """
    of_chain = {} if chain is None else {"chain": chain}
    used, unread = _divided(result, chain, read)
    reason = RejectionReason.ENOUGH if read else RejectionReason.UNREAD
    hits = [RejectedHit.of(each.name, reason, f"aligned, but {reason.value}", each.rank) for each in unread]
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
            for template in used
        ],
        "rejected": [
            {**of_chain, "name": hit.name, "rank": hit.rank, "reason": hit.reason.value, "detail": hit.sentence}
            for hit in (*hits, *result.rejected)
        ],
    }


def _divided(
    result: TemplateResult, chain: str | None, read: Collection[str] | None
) -> tuple[list[UsedTemplate], list[UsedTemplate]]:
    """Divide the templates in the features into templates that the models use and others; see `template_report`."""
    used, unread = list[UsedTemplate](), list[UsedTemplate]()
    for template in result.used:
        label = template.name if chain is None else f"chain {chain}: {template.name}"
        (used if read is None or label in read else unread).append(template)
    return used, unread


def templates_of(
    prepared: PreparedTarget | PreparedComplex, read: Collection[str] | None = None
) -> dict[str, list[dict[str, object]]] | None:
    """Return the content of templates.json for a target; None if there were no templates and no search for them.

    The entries of all chains are joined. See `template_report` for `read`.
    """
    if isinstance(prepared, PreparedTarget):
        return None if prepared.templates is None else template_report(prepared.templates, read=read)
    reports = [
        template_report(homologs.templates, chain, read)
        for chain, homologs in prepared.homologs.items()
        if homologs.templates is not None
    ]
    return (
        {key: [entry for each in reports for entry in each[key]] for key in ("used", "rejected")} if reports else None
    )


def summary(prepared: PreparedTarget | PreparedComplex, read: Collection[str] | None = None) -> str:
    """Return one line for the screen on the alignment and templates, with notes; see `template_report` for `read`."""
    if isinstance(prepared, PreparedTarget):
        line = f"{counted(len(prepared.features.msa), 'row')} in the alignment{_sources(prepared.alignment_rows)}"
        return "; ".join([line + _templates(prepared.templates, None, read), *prepared.notes])
    features = prepared.features.multimer
    line = f"{counted(len(features.msa), 'row')} in the alignment"
    if features.entity_id[-1] > 1:
        line += f", {features.paired_rows - 1 or 'none'} of them paired"
    parts = [line]
    for chain, homologs in prepared.homologs.items():
        templates = _templates(homologs.templates, chain, read)
        if homologs.alignments or templates:
            parts.append(f"chain {chain}{_sources(homologs.alignment_rows)}{templates}")
    return "; ".join([*parts, *prepared.notes])


def _sources(rows: Mapping[str, int]) -> str:
    text = ", ".join(f"{count:,} from {Path(source).name}" for source, count in rows.items())
    return f" ({text})" if text else ""


def _templates(result: TemplateResult | None, chain: str | None, read: Collection[str] | None) -> str:
    if result is None:
        return ""
    used, unread = _divided(result, chain, read)
    words = [f"{counted(len(used), 'template')}{_names(used)}"]
    if unread:
        words.append(f"{len(unread)}{_names(unread)} that no model of this run uses")
    words.append(f"{counted(len(result.rejected), 'hit')} not used, see {TEMPLATES.name()}")
    return f"; {', '.join(words)}"


def _names(templates: Sequence[UsedTemplate]) -> str:
    return f" ({', '.join(template.name for template in templates)})" if templates else ""
