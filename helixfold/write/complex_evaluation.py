"""Write how predicted complexes compare with known ones: a table of complexes, and one of their interfaces."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from data_pipeline.errors import printable
from helixfold.analysis.complexes import ComplexComparison, InterfaceComparison
from helixfold.analysis.evaluation import Evaluated
from helixfold.write.results import write_file
from helixfold.write.text_tables import aligned, rounded, tab_separated

COMPLEXES_FILE, INTERFACES_FILE = "complexes.tsv", "interfaces.tsv"
_WIDEST = 32  # letters of a name on the screen


def write_complexes(directory: Path, results: Sequence[Evaluated]) -> None:
    """Write complexes.tsv and interfaces.tsv, or remove those of an earlier run if no result has a complex."""
    tables = {
        COMPLEXES_FILE: [{**_names(result), **_complex_row(found)} for result, found in _complexes(results)],
        INTERFACES_FILE: [
            {**_names(result), **_interface_row(each)}
            for result, found in _complexes(results)
            for each in found.interfaces
        ],
    }
    for name, rows in tables.items():
        table = tab_separated(list(rows[0]), [list(row.values()) for row in rows]) if rows else None
        write_file(directory / name, table)


def complex_content(results: Sequence[Evaluated]) -> list[dict[str, Any]]:
    """Return each complex with its interfaces as plain values for JSON."""
    return [
        {
            **_names(result),
            **_complex_row(found),
            "interface_scores": [_interface_row(each) for each in found.interfaces],
        }
        for result, found in _complexes(results)
    ]


def complex_table(results: Sequence[Evaluated]) -> Iterator[str]:
    """Yield lines for the screen, one for each complex under an empty line and headings; none without complexes."""
    lines = [["complex", "reference", "chains", "interfaces", "DockQ", "interface lDDT", "TM", "RMSD"]]
    for result, found in _complexes(results):
        target = result.target if result.rank == 0 else f"{result.target}, rank {result.rank}"
        chains = str(len(found.chains))
        if len(found.chains) < found.reference_chains:
            chains = f"{chains}/{found.reference_chains}"
        lines.append(
            [
                *(printable(name, _WIDEST) for name in (target, result.reference)),
                chains,
                str(len(found.interfaces)),
                *("-" if score is None else f"{score:.3f}" for score in (found.dockq, found.interface_lddt)),
                f"{found.tm_score:.3f}",
                f"{found.rmsd:.2f}",
            ]
        )
    if len(lines) > 1:
        yield ""
        yield from aligned(lines, left=2)


def _complexes(results: Sequence[Evaluated]) -> list[tuple[Evaluated, ComplexComparison]]:
    return [(each, each.complex) for each in results if each.complex is not None]


def _names(result: Evaluated) -> dict[str, Any]:
    return {"target": result.target, "rank": result.rank, "reference": result.reference}


def _complex_row(found: ComplexComparison) -> dict[str, Any]:
    return {
        "chains": len(found.chains),
        "reference_chains": found.reference_chains,
        # Chains of the reference, each with the predicted chain that stands for it.
        "mapping": " ".join(f"{theirs}={ours}" for theirs, ours in found.chains),
        "residues": found.residues,
        "compared": found.compared,
        "interfaces": len(found.interfaces),
        "dockq": rounded(found.dockq),
        "interface_lddt": rounded(found.interface_lddt),
        "tm_score": rounded(found.tm_score),
        "rmsd": rounded(found.rmsd),
    }


def _interface_row(each: InterfaceComparison) -> dict[str, Any]:
    return {
        "reference_chains": " ".join(each.reference_chains),
        "predicted_chains": " ".join(each.predicted_chains),
        "native_contacts": each.native_contacts,
        "dockq": rounded(each.dockq),
        "fnat": rounded(each.fnat),
        "irms": rounded(each.irms),
        "lrms": rounded(each.lrms),
        "capri": each.capri,
        "interface_lddt": rounded(each.lddt),
    }
