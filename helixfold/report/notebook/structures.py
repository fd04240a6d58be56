"""Show structures in a notebook as interactive views: one, several together, or an animation.

This module needs the extra `notebooks`.
"""

import base64
import gzip
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, get_args

import numpy as np
import py3Dmol

from data_pipeline.io.errors import choice_problem
from data_pipeline.protein import Protein
from data_pipeline.residues import ATOM_ORDER
from helixfold.folding.prediction import CONFIDENCE_BANDS, Coloring
from helixfold.report.page import VIEWER, asset
from helixfold.results.chains import split_chains
from helixfold.results.pdb import to_pdb

# Okabe and Ito's colours, which can be distinguished with any kind of colour vision.
_STRUCTURE_COLORS = ("#999999", "#0072B2", "#D55E00", "#009E73", "#CC79A7")
# Å: radius of a C-alpha atom drawn as a ball, and the range of distances between neighbours that counts as a chain,
# with a margin for inaccurate structures.
_BALL_RADIUS, _NEIGHBOUR_DISTANCES = 0.7, (2.0, 5.0)
_RIBBON_ATOMS = [ATOM_ORDER[name] for name in ("N", "CA", "C", "O")]
_SIDE_CHAIN_STYLE = {"stick": {"radius": 0.12, "colorscheme": "default"}}


def show_structure(protein: Protein, *, color: Coloring = "plddt", side_chains: bool = False) -> Any:
    """Return an interactive view of one structure, whose B-factors are pLDDT; `side_chains` draws these as sticks.

    `color` is "plddt" for AlphaFold DB's colours, "chain" for one colour per chain, or "rainbow" for blue at the first
    residue to red at the last. Raise `ValueError` for another one.
    """
    if color not in get_args(Coloring):
        raise ValueError(f"color {choice_problem(color, get_args(Coloring))}")
    view = _View()
    view.addModel(to_pdb(protein) if side_chains else _backbone(protein), "pdb")
    view.setStyle({}, {})
    plddts = protein.b_factors.max(1)
    for index, chain in enumerate(split_chains(protein)):
        if color != "plddt":
            chain_color = _STRUCTURE_COLORS[1:][index % len(_STRUCTURE_COLORS[1:])] if color == "chain" else "spectrum"
            _draw(view, {"chain": chain.name}, chain_color, protein)
            continue
        for residue in range(chain.start, chain.stop):
            band = next(band for band in CONFIDENCE_BANDS if plddts[residue] >= band.min_plddt)
            _draw(view, {"chain": chain.name, "resi": int(protein.residue_index[residue])}, band.color, protein)
    if side_chains:
        view.addStyle(_SIDE_CHAIN_STYLE)
    view.zoomTo()
    return view


def show_together(proteins: Mapping[str, Protein]) -> Any:
    """Return a view of several structures, in the coordinates that they have.

    Each structure has its own colour, in which its name is printed.
    """
    view = _View()
    for index, (name, protein) in enumerate(proteins.items()):
        color = _STRUCTURE_COLORS[index % len(_STRUCTURE_COLORS)]
        view.addModel(_backbone(protein), "pdb")
        view.setStyle({"model": index}, {})
        _draw(view, {"model": index}, color, protein)
        _label(view, name, color, line=index)
    view.zoomTo()
    return view


def show_film(proteins: Sequence[Protein], truth: Protein | None = None, labels: Sequence[str] = ()) -> Any:
    """Return an animation whose frames are structures of one chain, coloured from blue (first residue) to red (last).

    The structure `truth` is drawn in grey with all frames. `labels` has a text for each frame, such as a counter.
    """
    view = _View()
    view.addModelsAsFrames(
        "".join(_as_model(serial, protein) for serial, protein in enumerate(proteins, start=1)), "pdb"
    )
    view.setStyle({"model": 0}, {"cartoon": {"color": "spectrum"}})
    if not all(map(_is_chain, proteins)):
        # A ribbon cannot be drawn through frames in which neighbours are far apart. "spectrum" leaves balls grey.
        numbers = proteins[0].residue_index
        rainbow = {"prop": "resi", "gradient": "roygb", "min": int(numbers.max()), "max": int(numbers.min())}
        view.addStyle({"model": 0, "atom": "CA"}, {"sphere": {"radius": _BALL_RADIUS, "colorscheme": rainbow}})
    if truth is not None:
        view.addModel(_backbone(truth), "pdb")
        view.setStyle({"model": 1}, {"cartoon": {"color": _STRUCTURE_COLORS[0], "opacity": 0.5}})
    for frame, label in enumerate(labels):
        _label(view, label, "#000000", frame=frame)
    view.animate({"loop": "forward", "interval": 600})
    view.zoomTo()
    return view


def _label(view: Any, text: str, color: str, *, line: int = 0, **more: object) -> None:
    """Print a line of text at the upper left."""
    position = {"x": 8, "y": 8 + 26 * line, "z": 0}
    style = {"useScreen": True, "position": position, "fontSize": 13, "fontColor": color, "backgroundOpacity": 0}
    view.addLabel(text, {**style, **more})


def _draw(view: Any, selection: dict[str, object], color: str, protein: Protein) -> None:
    """Draw a ribbon, or a ball for each C-alpha atom if distances between neighbours do not fit a chain."""
    if _is_chain(protein):
        view.addStyle(selection, {"cartoon": {"color": color, "thickness": 0.5}})
    else:
        view.addStyle({**selection, "atom": "CA"}, {"sphere": {"radius": _BALL_RADIUS, "color": color}})


def _backbone(protein: Protein) -> str:
    """Return a PDB file of what a ribbon is drawn through: N, CA, C and O."""
    mask = np.zeros_like(protein.atom_mask)
    mask[:, _RIBBON_ATOMS] = protein.atom_mask[:, _RIBBON_ATOMS]
    return to_pdb(replace(protein, atom_mask=mask))


def _is_chain(protein: Protein) -> bool:
    steps = np.linalg.norm(np.diff(protein.positions_of("CA"), axis=0), axis=1)
    return (
        len(steps) == 0 or float(np.mean((steps > _NEIGHBOUR_DISTANCES[0]) & (steps < _NEIGHBOUR_DISTANCES[1]))) > 0.5
    )


def _as_model(serial: int, protein: Protein) -> str:
    lines = [line for line in _backbone(protein).splitlines(keepends=True) if line.startswith(("ATOM", "TER"))]
    return f"MODEL {serial:8d}\n{''.join(lines)}ENDMDL\n"


class _View(py3Dmol.view):  # type: ignore[misc]
    """View whose HTML a notebook stores once; py3Dmol stores it twice, for an extension of JupyterLab."""

    startjs: str

    def __init__(self) -> None:
        super().__init__(js="VIEWER", width=520, height=400)
        self.startjs = self.startjs.replace("loadScriptAsync('VIEWER')", _loading())

    def _repr_html_(self) -> str:
        html: str = self._make_html()
        return html


@cache
def _loading() -> str:
    """Return JavaScript that loads 3Dmol.js, which comes with the reports and is compressed here, without network."""
    compressed = base64.b64encode(gzip.compress(asset(VIEWER).encode(), mtime=0)).decode()
    return (
        f"new Response(new Blob([Uint8Array.from(atob('{compressed}'), letter => letter.charCodeAt(0))]).stream()"
        ".pipeThrough(new DecompressionStream('gzip'))).blob().then(code => loadScriptAsync(URL.createObjectURL(code)))"
    )
