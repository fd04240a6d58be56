"""Write the tables, sequences and page of designed binders (`helixfold design binders`)."""

import base64
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.parse.structures import read_structure
from data_pipeline.residues import ATOM_ORDER
from helixfold.folding.prediction import CONFIDENCE_BANDS
from helixfold.report.maps import LARGEST_ERROR
from helixfold.report.page import VIEWER, VIEWER_LICENCE, Blobs, asset, packed_asset, page
from helixfold.report.structures import Superposer
from helixfold.report.tables import DEMONSTRATION, UNTRAINED, mark_of
from helixfold.results.file_table import DESIGNS_PAGE, DESIGNS_SEQUENCES, DESIGNS_TABLE, TRAJECTORIES_TABLE
from helixfold.results.writing import rounded, tab_separated, write_file

# Columns of BindCraft's measurements of a design, in its order, except measurements that only PyRosetta computes.
_MEASUREMENTS = (
    *("pLDDT", "pTM", "i_pTM", "pAE", "i_pAE", "ipSAE", "i_pLDDT", "ss_pLDDT", "Unrelaxed_Clashes", "Relaxed_Clashes"),
    *("Surface_Hydrophobicity", "ShapeComplementarity", "dSASA", "Interface_SASA_%", "Interface_Hydrophobicity"),
    *("n_InterfaceResidues", "n_InterfaceHbonds", "InterfaceHbondsPercentage", "n_InterfaceUnsatHbonds"),
    *("InterfaceUnsatHbondsPercentage", "Interface_Helix%", "Interface_BetaSheet%", "Interface_Loop%"),
    *("Binder_Helix%", "Binder_BetaSheet%", "Binder_Loop%", "InterfaceAAs", "Hotspot_RMSD", "Target_RMSD"),
    *("Binder_pLDDT", "Binder_pTM", "Binder_pAE", "Binder_RMSD"),
)
# Scores next to the structure of a binder, with their titles.
_VIEWER_SCORES = (
    *(
        ("Average_i_pTM", "ipTM"),
        ("Average_ipSAE", "ipSAE"),
        ("Average_pLDDT", "pLDDT"),
        ("Average_i_pAE", "PAE / 31 Å"),
    ),
    *(("Average_Binder_pLDDT", "pLDDT alone"), ("Average_Binder_RMSD", "RMSD alone, Å")),
    *(("Average_Hotspot_RMSD", "RMSD to the design, Å"), ("Average_dSASA", "buried area, Å²")),
    *(("Average_ShapeComplementarity", "shape complementarity"), ("Average_n_InterfaceHbonds", "hydrogen bonds")),
    *(("Average_Surface_Hydrophobicity", "surface hydrophobicity"), ("Average_Relaxed_Clashes", "clashes")),
)
_MAX_SHOWN_BINDERS = 100  # accepted binders on a page, with maps and structures


@dataclass(frozen=True, kw_only=True)
class TrajectoryLine:
    """A line of the table of trajectories: the settings of a trajectory, its losses, and counts of its sequences.

    `design` is its name, `directory` the name of its target's directory, and `number` its number, from 0. `length` is
    the binder's number of residues, and `helicity` the weight of the helix loss. `sequences` counts checked sequences.
    """

    design: str
    directory: str
    number: int
    length: int
    helicity: float
    ended: str  # why it ended early; "" if it did not
    sequences: int
    accepted: int  # number of accepted sequences
    loss_by_step: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class BinderLine:
    """A line of the table of binders: one sequence with its measurements.

    `design` is its name. `protocol` is BindCraft's design algorithm, `seed` the trajectory's, and `hotspots` are words
    for the table. `score` is ProteinMPNN's (smaller is better), and `recovery` the identity to the designed sequence.
    `values` has BindCraft's labels as keys, such as Average_i_pTM. `unmet` names the missed thresholds. `pae` has the
    predicted aligned errors of the complex in whole Å.
    """

    design: str
    trajectory: TrajectoryLine
    structure: str | None  # name of its file
    protocol: str
    seed: int
    hotspots: str
    sequence: str
    interface: Sequence[int]  # residue indices in the binder, from 0
    score: float
    recovery: float
    accepted: bool
    unmet: Sequence[str]
    values: Mapping[str, Any]
    pae: Sequence[Sequence[int]] | None

    @property
    def pae_picture(self) -> str:
        """A PNG picture of the predicted aligned errors in base64; empty if there are none."""
        if not self.pae:
            return ""
        from matplotlib.image import imsave  # noqa: PLC0415 (takes long to load)

        stream = io.BytesIO()
        imsave(stream, np.array(self.pae, float), vmin=0, vmax=LARGEST_ERROR, cmap="Greens_r", format="png")
        return base64.b64encode(stream.getvalue()).decode()


def ranked(lines: Sequence[BinderLine], rank_by: str) -> list[BinderLine]:
    """Return the accepted binders, sorted by the mean over models of `rank_by`, the largest first, then the others.

    Missing means count as 0. The others keep their order.
    """
    accepted = [line for line in lines if line.accepted]
    order = sorted(accepted, key=lambda line: (-(line.values.get(f"Average_{rank_by}") or 0.0), line.design))
    return [*order, *(line for line in lines if not line.accepted)]


def write_binders(
    output: Path,
    lines: Sequence[BinderLine],
    trajectories: Sequence[TrajectoryLine],
    failures: Mapping[str, str],
    *,
    rank_by: str,
    notes: Sequence[str] = (),
) -> None:
    """Write designs.tsv, trajectories.tsv, designs.fasta and designs.html into the directory `output`.

    designs.fasta has only the accepted binders, and designs.html shows the structures of the best hundred. `failures`
    has the reasons of failed items, and `notes` are notes on the models. See `ranked` for `rank_by`.
    """
    order = ranked(lines, rank_by)
    accepted = [line for line in order if line.accepted]
    write_file(DESIGNS_TABLE.path(output), table(order))
    columns = ("Design", "Length", "Helicity", "Steps", "Ended", "Sequences", "Accepted")
    rows = (
        [
            *(line.design, line.length, line.helicity, len(line.loss_by_step)),
            *(line.ended or None, line.sequences, line.accepted),
        ]
        for line in trajectories
    )
    write_file(TRAJECTORIES_TABLE.path(output), tab_separated(columns, rows))
    records = (f">{line.design} rank={rank}\n{line.sequence}\n" for rank, line in enumerate(accepted, start=1))
    write_file(DESIGNS_SEQUENCES.path(output), "".join(records))
    reasons = Counter(reason for line in lines for reason in line.unmet)
    reasons.update(line.ended for line in trajectories if line.ended)
    marks, blobs = {mark_of([note]) for note in notes}, Blobs()
    data = _viewer_data(output, accepted[:_MAX_SHOWN_BINDERS], blobs)
    shared, of_viewer = ("banner.js", "index.js"), ("marks.js", "structure.js", "binders.js")
    write_file(
        DESIGNS_PAGE.path(output),
        page(
            "binders.html",
            styles=("page.css", "report.css", "index.css", "designs.css", "binders.css"),
            scripts=(*shared, *of_viewer) if data else shared,
            inserted=(VIEWER,) if data else (),
            data=data,
            blobs=blobs.texts,
            bands=CONFIDENCE_BANDS,
            mark=next((mark for mark in (UNTRAINED, DEMONSTRATION) if mark in marks), None),
            licence=asset(VIEWER_LICENCE),
            title=output.resolve().name,
            accepted=accepted[:_MAX_SHOWN_BINDERS],
            rejected=order[len(accepted) :],
            trajectories=trajectories,
            reasons=reasons.most_common(),
            failures=failures,
            rank_by=rank_by,
            untrained=UNTRAINED in marks,
            demonstration=DEMONSTRATION in marks,
        ),
    )


def _viewer_data(output: Path, lines: Sequence[BinderLine], blobs: Blobs) -> dict[str, Any] | None:
    """Return what the viewer of a page reads: complexes by rank, superposed on the targets; None if there are none.

    The complexes differ in the lengths of their chains, and the viewer reads one list of residues, from the longest.
    """
    models, superposers, lengths = list[dict[str, Any]](), dict[str, Superposer](), dict[str, int]()
    sequences = []
    for line in lines:
        path = None if line.structure is None else output / line.trajectory.directory / line.structure
        if path is None or not path.is_file() or blobs.full:
            break
        structure_chains = read_structure(path).chains
        chains = {chain.name: chain.sequence for chain in structure_chains}
        binder_chain = next(name for name, letters in reversed(chains.items()) if letters == line.sequence)
        atoms = [int((chain.atom_mask[:, ATOM_ORDER["CA"]] > 0).sum()) for chain in structure_chains]
        is_target = np.repeat([name != binder_chain for name in chains], atoms)
        weights = np.full(int(is_target.sum()), 100.0)
        superposer = superposers.setdefault(line.trajectory.directory, Superposer(weights, blobs))
        if (structure := superposer.packed(path, is_target)) is None:
            break
        lengths |= {name: max(len(each), lengths.get(name, 0)) for name, each in chains.items()}
        sequences.append(chains)
        scores = ((title, line.values.get(name)) for name, title in _VIEWER_SCORES)
        losses = line.trajectory.loss_by_step
        models.append(
            {
                "name": line.design,
                "letters": line.sequence,
                "structures": {"relaxed": structure},
                "domains": [],
                "scores": [(title, f"{value:.2f}") for title, value in scores if value is not None],
                "losses": [f"{losses[0]:.2f}", f"{losses[-1]:.2f}", len(losses)],
            }
        )
    if not models:
        return None
    for model, chains in zip(models, sequences, strict=True):
        model["sequence"] = "".join(chains.get(name, "").ljust(length, "-") for name, length in lengths.items())
    return {
        "name": output.resolve().name,
        "file": f"{lines[0].trajectory.directory}/{lines[0].structure}",
        "chains": list(lengths.items()),
        "numbers": [number for length in lengths.values() for number in range(1, length + 1)],
        "sequence": models[0]["sequence"],
        "bands": [asdict(band) for band in CONFIDENCE_BANDS],
        "viewer": blobs.add(packed_asset(VIEWER)),
        "models": models,
        "templates": [],
    }


def table(order: Sequence[BinderLine]) -> str:
    """Return the table of binders as tab-separated text, with BindCraft's column names and NA for unknown values.

    `order` has the accepted binders first, by rank. The column Unmet has the thresholds that a rejected binder misses.
    """
    count = max((int(name.split("_")[0]) for line in order for name in line.values if name[0].isdigit()), default=0)
    values = [f"{model}_{name}" for name in _MEASUREMENTS for model in ("Average", *range(1, count + 1))]
    names = (
        *("Rank", "Design", "Protocol", "Length", "Seed", "Helicity", "Target_Hotspot", "Sequence"),
        *("InterfaceResidues", "MPNN_score", "MPNN_seq_recovery", *values, "Unmet"),
    )
    rows = [
        [
            *(rank if line.accepted else None, line.design, line.protocol, line.trajectory.length, line.seed),
            *(line.trajectory.helicity, line.hotspots or None, line.sequence),
            ",".join(str(index + 1) for index in line.interface) or None,
            *(line.score, line.recovery, *(_text(line.values.get(name)) for name in values)),
            ",".join(line.unmet) or None,
        ]
        for rank, line in enumerate(order, start=1)
    ]
    return tab_separated(names, ([rounded(value) for value in row] for row in rows))


def _text(value: Any) -> Any:
    """Return a value for the table; counts by amino acid become text, without zeros."""
    if isinstance(value, Mapping):
        return ",".join(f"{letter}:{count:g}" for letter, count in value.items() if count) or None
    return value
