"""Small structures, files of them, and hits to them."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np

from data_pipeline.parse.template_hit import TemplateHit
from data_pipeline.residues import ATOM_TYPES, RESTYPES_WITH_X, THREE_LETTER
from data_pipeline.structure import Chain, Structure
from data_pipeline.templates.filters import TemplateOptions
from data_pipeline.templates.from_hits import templates_from_hits
from data_pipeline.templates.result import RejectionReason, UnusableHitError
from data_pipeline.templates.structure_directory import StructureDirectory

BACKBONE = 5  # N, CA, C, CB, O: the first of the 37
QUERY = "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQ"
RELEASED = date(2001, 2, 3)
ANY_DATE = TemplateOptions()
SEQUENCE = "GSHKTAYLAKQRELSFVKAHFTRQLEDRLGMIEVQGG"  # begins and ends with what QUERY lacks
ROWS = QUERY[1:21], SEQUENCE[3:23]


def make_chain(name: str, sequence: str, *, unobserved: Sequence[int] = (), seed: int = 0) -> Chain:
    """A chain along a line, five atoms each residue, jittered so that no two residues are alike."""
    n = len(sequence)
    mask = np.zeros((n, 37), np.float32)
    mask[:, :BACKBONE] = 1
    mask[list(unobserved)] = 0
    noise = np.random.default_rng(seed).normal(scale=0.3, size=(n, 37, 3))
    line = np.arange(n)[:, None, None] * np.array([3.8, 0, 0])
    return Chain(
        name=name,
        sequence=sequence,
        aatype=np.array([RESTYPES_WITH_X.index(letter) for letter in sequence]),
        atom_positions=(np.round(line + noise, 3) * mask[..., None]).astype(np.float32),
        atom_mask=mask,
        b_factors=mask,
        observed=mask.any(axis=1),
        residue_names=tuple(THREE_LETTER[RESTYPES_WITH_X.index(letter)] for letter in sequence),
        residue_numbers=np.arange(1, n + 1),
        insertion_codes=(" ",) * n,
    )


def make_structure(*chains: Chain, name: str = "1abc", release_date: date | None = RELEASED) -> Structure:
    return Structure(name=name, release_date=release_date, resolution=2.0, method="", chains=chains, skipped={})


def pdb_text(structure: Structure) -> str:
    """A structure in the PDB format."""
    lines = [f"HEADER    TEST                                    01-JAN-00   {structure.name.upper()[:4]:4s}"]
    if structure.release_date is not None:
        lines.append(f"REVDAT   1   {structure.release_date.strftime('%d-%b-%y').upper()}")
    for chain in structure.chains:
        names = chain.residue_names
        for row, start in enumerate(range(0, len(names), 13), start=1):
            lines.append(f"SEQRES {row:3d} {chain.name} {len(names):4d}  {' '.join(names[start : start + 13])}")
    serial = 0
    for chain in structure.chains:
        for residue, atom in np.argwhere(chain.atom_mask > 0).tolist():
            serial += 1
            x, y, z = chain.atom_positions[residue, atom]
            place = f"{chain.residue_names[residue]} {chain.name}{residue + 1:4d}    {x:8.3f}{y:8.3f}{z:8.3f}"
            element = ATOM_TYPES[atom][0]
            lines.append(
                f"ATOM  {serial % 100000:5d}  {ATOM_TYPES[atom]:3s} {place}  1.00 10.00          {element:>2s}"
            )
        lines.append("TER")
    return "\n".join([*lines, "END", ""])


def write(directory: Path, structure: Structure, name: str | None = None) -> Path:
    path = directory / (name or f"{structure.name}.pdb")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(pdb_text(structure))
    return path


def make_hit(
    query_row: str,
    hit_row: str,
    *,
    query_start: int = 0,
    hit_start: int = 0,
    name: str = "1abc_A some protein",
    index: int = 1,
    sum_probs: float | None = 10.0,
) -> TemplateHit:
    """A hit from its two aligned rows and where they begin."""
    return TemplateHit(
        index=index,
        name=name,
        aligned_columns=sum(q != "-" and h != "-" for q, h in zip(query_row, hit_row, strict=True)),
        sum_probs=sum_probs,
        query=query_row,
        hit_sequence=hit_row,
        indices_query=_indices(query_row, query_start),
        indices_hit=_indices(hit_row, hit_start),
    )


def moved(hit: TemplateHit, *, query: int = 0, hit_by: int = 0) -> TemplateHit:
    """The same hit with other residue numbers."""
    return replace(
        hit,
        indices_query=np.where(hit.indices_query >= 0, hit.indices_query + query, -1),
        indices_hit=np.where(hit.indices_hit >= 0, hit.indices_hit + hit_by, -1),
    )


def _indices(row: str, start: int) -> np.ndarray:
    residue = np.array([letter != "-" for letter in row], bool)
    return np.where(residue, start + np.cumsum(residue) - 1, -1)


class Shelf(StructureDirectory):
    """Structures at hand, without files."""

    def __init__(self, *structures: Structure) -> None:
        self.obsolete, self.release_dates = {}, {}
        self.structures = {structure.name: structure for structure in structures}

    def load(self, entry: str) -> Structure:
        if entry not in self.structures:
            raise UnusableHitError(RejectionReason.NO_FILE, "no file")
        return self.structures[entry]


def good_hit(**changes: object) -> TemplateHit:
    return replace(make_hit(*ROWS, query_start=1, hit_start=3), **changes)  # type: ignore[arg-type]


def reason_of(hit: TemplateHit, source: StructureDirectory, options: TemplateOptions = ANY_DATE) -> RejectionReason:
    """The reason a hit is refused, beside one that is not."""
    fine = make_hit(QUERY[:20], QUERY[:20], name="9xyz_A", index=99, sum_probs=0.0)
    result = templates_from_hits(QUERY, [hit, fine], source, options)
    assert not result.used
    assert [rejection.rank for rejection in result.rejected] == [hit.index, 99]
    rejection = result.rejected[0]
    assert rejection.sentence.startswith(rejection.name)
    assert rejection.sentence.isprintable()
    return rejection.reason
