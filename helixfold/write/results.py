"""Write what was predicted for one target into its directory, under the names that AlphaFold's users have scripts for.

Every file appears whole or not at all, and none holds a time or a date. `ranking_debug.json` is written last, so a
target that has it is finished.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from jaxtyping import Float

from data_pipeline.files import replacing
from data_pipeline.protein import Protein
from helixfold import __version__
from helixfold.write.mmcif import to_mmcif
from helixfold.write.pdb import to_pdb
from helixfold.write.plots import CONFIDENCE_BANDS

RANKING_FILE: Final = "ranking_debug.json"
TIMINGS_FILE: Final = "timings.json"
FAILURES_FILE: Final = "failures.json"
_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
# As AlphaFold's own program writes PAE; AlphaFold DB rounds to whole Angstrom to save space, in the same layout.
_PAE_STEPS_PER_ANGSTROM = 10


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One model's prediction of one target; padding is removed."""

    model: str  # such as model_1_ptm, or model_1_ptm_seed_3 where there are several seeds; part of file names
    protein: Protein  # B-factors are pLDDT
    plddt: Float[np.ndarray, "r"]  # 0 to 100
    pae: Float[np.ndarray, "r r"] | None  # Angstrom: error of residue j when aligned on residue i
    max_pae: float | None  # Angstrom, the largest that could occur
    ptm: float | None
    ranking_confidence: float
    num_recycles: int
    converged: bool  # recycling ended early, because the structure no longer moved
    notes: tuple[str, ...] = ()  # what every reader of the files must know, such as that parameters are untrained
    logits: Mapping[str, np.ndarray] | None = None  # of each head, where they were asked for
    seed: int = 0

    def __post_init__(self) -> None:
        if not _MODEL_NAME.fullmatch(self.model):
            raise ValueError(
                f"model is part of file names: at most 100 letters, digits, '_', '-' and '.', got {self.model!r}"
            )
        length = len(self.protein.aatype)
        if self.plddt.shape != (length,):
            raise ValueError(f"plddt must have one value for each of {length} residues, got shape {self.plddt.shape}")
        if not ((self.plddt >= 0) & (self.plddt <= 100)).all():
            raise ValueError(f"plddt must be 0 to 100, got {self.plddt.min()} to {self.plddt.max()}")
        if (self.pae is None) != (self.max_pae is None):
            raise ValueError("pae and max_pae go together: give both or neither")
        if self.pae is not None:
            if self.pae.shape != (length, length):
                raise ValueError(f"pae must have shape {(length, length)}, got {self.pae.shape}")
            if not (self.pae.min() >= 0 and np.isfinite(self.pae.max())):
                raise ValueError(f"pae must be finite and at least 0, got {self.pae.min()} to {self.pae.max()}")
        for name in ("ranking_confidence", "ptm", "max_pae"):
            value = getattr(self, name)
            if value is not None and not np.isfinite(value):
                raise ValueError(f"{name} must be finite, got {value}")


def write_prediction(directory: Path, prediction: Prediction) -> None:
    """Write one model's structure (PDB and mmCIF) and confidences; the target is named after its directory.

    Files: unrelaxed_<model>.pdb and .cif, confidence_<model>.json, pae_<model>.json if there is a PAE, and
    logits_<model>.npz if they were asked for.
    """
    directory.mkdir(parents=True, exist_ok=True)
    # A ranking made before this prediction no longer says that the target is finished.
    (directory / RANKING_FILE).unlink(missing_ok=True)
    model, protein, notes = prediction.model, prediction.protein, prediction.notes
    cif = to_mmcif(protein, name=directory.resolve().name, model=model, notes=notes, plddt=prediction.plddt)
    write_file(directory / f"unrelaxed_{model}.cif", cif)
    write_file(directory / f"confidence_{model}.json", _confidence_json(prediction))
    if prediction.pae is not None:
        with replacing(directory / f"pae_{model}.json") as temporary, temporary.open("wb") as stream:
            stream.writelines(_pae_json(prediction))
    if prediction.logits is not None:
        with replacing(directory / f"logits_{model}.npz") as temporary, temporary.open("wb") as archive:
            np.savez(archive, allow_pickle=False, **prediction.logits)
    # Last, because a structure that the PDB format cannot hold is an error, and the mmCIF file then remains.
    origin = f"Predicted by helixfold {__version__}, {model}. The B-factor column holds pLDDT, 0 to 100."
    write_file(directory / f"unrelaxed_{model}.pdb", to_pdb(protein, [origin, *notes]))


def write_timings(directory: Path, timings: Mapping[str, object], notes: Sequence[str] = ()) -> None:
    """Write how long each stage took, and whatever else was measured, to timings.json."""
    directory.mkdir(parents=True, exist_ok=True)
    write_file(directory / TIMINGS_FILE, to_json({**timings, **({"notes": list(notes)} if notes else {})}, indent=4))


def write_failures(directory: Path, failures: Mapping[str, str], file: str = FAILURES_FILE) -> None:
    """Write why targets of a batch failed, by name, to failures.json; without failures there is no such file."""
    if failures:
        write_file(directory / file, to_json(failures, indent=4))
    else:
        (directory / file).unlink(missing_ok=True)


def _confidence_json(prediction: Prediction) -> str:
    """AlphaFold DB's three lists, then our own fields."""
    plddt = prediction.plddt.astype(np.float64)
    edges = [band.least for band in reversed(CONFIDENCE_BANDS[:-1])]
    bands = len(CONFIDENCE_BANDS) - 1 - np.digitize(plddt, edges)
    scores = [round(value, 2) for value in plddt.tolist()]
    content = {
        "residueNumber": prediction.protein.residue_index.tolist(),
        "confidenceScore": scores,
        "confidenceCategory": [CONFIDENCE_BANDS[band].letter for band in bands.tolist()],
        "model": prediction.model,
        "seed": prediction.seed,
        "plddt": scores,
        "mean_plddt": round(float(plddt.mean()), 2),
        "fraction_plddt": {
            band.name.replace(" ", "_"): round(float(np.mean(bands == index)), 4)
            for index, band in enumerate(CONFIDENCE_BANDS)
        },
        "ptm": None if prediction.ptm is None else round(float(prediction.ptm), 4),
        "ranking_confidence": float(prediction.ranking_confidence),
        "num_recycles": prediction.num_recycles,
        "converged": prediction.converged,
        "notes": list(prediction.notes),
    }
    return to_json(content)


def _pae_json(prediction: Prediction) -> Iterator[bytes]:
    """AlphaFold DB's PAE file piece by piece: one row at a time, each number looked up among the few that occur."""
    pae, steps = prediction.pae, _PAE_STEPS_PER_ANGSTROM
    if pae is None:
        return
    numbers = [str(step / steps) for step in range(round(float(pae.max()) * steps) + 2)]
    yield b'[{"predicted_aligned_error":['
    for index, row in enumerate(pae):
        text = ",".join([numbers[step] for step in np.rint(row * steps).astype(np.int64).tolist()])
        yield f"{',' if index else ''}[{text}]".encode()
    rest = {"max_predicted_aligned_error": prediction.max_pae, "notes": list(prediction.notes)}
    yield f"],{to_json(rest)[1:]}]".encode()


def to_json(content: Mapping[str, object], indent: int | None = None) -> str:
    """JSON as all our files have it: compact unless indented, and no numbers that JSON does not have."""
    separators = (",", ":") if indent is None else None
    return json.dumps(content, indent=indent, separators=separators, allow_nan=False)


def remove_ranks_from(directory: Path, first: int) -> None:
    """Remove what an earlier run with more models ranked lower, for these ranks no longer exist."""
    for path in directory.glob("ranked_*.*"):
        match = re.fullmatch(r"ranked_(\d+)\.(pdb|cif)", path.name)
        if match and int(match[1]) >= first:
            path.unlink()


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file that appears whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
