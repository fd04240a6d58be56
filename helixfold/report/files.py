"""Read and check the files of a finished target's directory, for its report.

Every file but the predictions' confidences may be missing; the report then lacks that part.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.complexes.chain_sequences import CHAIN_SEPARATOR
from data_pipeline.complexes.feature_file import load_features
from data_pipeline.complexes.feature_set import TargetFeatures, alignment_of
from data_pipeline.errors import InputError
from data_pipeline.features.assembly import ComplexFeatures
from data_pipeline.features.schema import Features
from data_pipeline.parse.mmcif import MAX_MMCIF_BYTES
from data_pipeline.parse.structures import read_structure
from data_pipeline.parse.text_files import read_lines
from data_pipeline.residues import RESTYPES, THREE_LETTER
from helixfold.results.json_object import JsonObject

RANKING, TIMINGS, FEATURES, TEMPLATES, RELAXATION, SETTINGS = (
    "ranking_debug.json",
    "timings.json",
    "features.npz",
    "templates.json",
    "relax_metrics.json",
    "settings.json",
)
MMCIF = ".cif"
_PREDICTION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")
_PAIR_SCORES = (
    ("iptm", "ipTM"),
    ("ipsae", "ipSAE"),
    ("pdockq2", "pDockQ2"),
    ("pdockq", "pDockQ"),
    ("lis", "LIS"),
    ("interface_plddt", "Interface pLDDT"),
    ("interface_pae", "Interface PAE, Å"),
)
_LETTERS = dict(zip(THREE_LETTER, RESTYPES, strict=False))


@dataclass(frozen=True, kw_only=True)
class Part:
    """A chain or a domain of a prediction: its residues and its confidence."""

    name: str
    ranges: tuple[tuple[int, int], ...]  # residue numbers, both ends included
    chains: tuple[str, ...]  # of each range; none for a domain of a single chain
    residues: int
    mean_plddt: float
    measures: tuple[tuple[str, float], ...]  # further measures by their names: pTM of a chain, mean PAE of a domain


@dataclass(frozen=True, kw_only=True)
class ChainPair:
    """The interface of two chains of a prediction and its scores; None for a score that is not in the file."""

    chains: tuple[str, str]
    contacts: int  # pairs of residues
    scores: tuple[tuple[str, float | None], ...]  # by their names, in the order in which a table has them


@dataclass(frozen=True, kw_only=True)
class PredictionFiles:
    """Content of one prediction's confidence file, and the paths of its other files."""

    target: str  # as its input file has the name
    name: str
    numbers: tuple[int, ...]  # residue numbers
    plddt: tuple[float, ...]
    mean_plddt: float
    ptm: float | None
    iptm: float | None  # None for a single chain
    num_recycles: int  # -1 if it is not known
    converged: bool
    notes: tuple[str, ...]
    chains: tuple[Part, ...]
    chain_pairs: tuple[ChainPair, ...]
    domains: tuple[Part, ...]
    depth: tuple[float, ...]  # alignment rows that have a residue at each position
    rows: int | None
    effective_rows: float | None
    structures: dict[str, Path]  # by "relaxed" and "unrelaxed", without those that do not exist: PDB, or else mmCIF
    pae: Path | None
    distances: Path | None


@dataclass(frozen=True, kw_only=True)
class TargetFiles:
    """Content of a target's directory; None for a file that is missing."""

    directory: Path
    name: str
    sequence: str
    predictions: tuple[PredictionFiles, ...]  # the best first
    features: Features | ComplexFeatures | None  # of a complex, those for models of complexes
    templates: JsonObject | None
    relaxation: JsonObject | None
    timings: JsonObject | None
    settings: JsonObject | None

    @property
    def best(self) -> PredictionFiles:
        return self.predictions[0]


def read_target(directory: Path, order: Sequence[str] | None = None) -> TargetFiles:
    """Read a target's directory, with its predictions in the given order or, if None, in that of its ranking.

    Raise `InputError` if a file is damaged, or if files disagree about the number of residues.
    """
    predictions = tuple(read_prediction(directory, name) for name in order or read_order(directory))
    length = len(predictions[0].plddt)
    for prediction in predictions:
        if len(prediction.plddt) != length:
            raise InputError.at(
                directory, f"{prediction.name} has {len(prediction.plddt)} residues, others {length}; fold it again"
            )
    features = load_features(directory / FEATURES) if (directory / FEATURES).is_file() else None
    if features is not None and len(_residues(features)) != length:
        raise InputError.at(directory / FEATURES, f"its sequence has other than {length} residues; fold it again")
    return TargetFiles(
        directory=directory,
        name=predictions[0].target,
        sequence=_sequence(predictions[0], features),
        predictions=predictions,
        features=None if features is None else alignment_of(features),
        templates=read_record(directory / TEMPLATES),
        relaxation=read_record(directory / RELAXATION),
        timings=read_record(directory / TIMINGS),
        settings=read_record(directory / SETTINGS),
    )


def read_order(directory: Path) -> tuple[str, ...]:
    """Return the names of a finished target's predictions, the best first. Raise `InputError` for a damaged ranking."""
    order = JsonObject.read(directory / RANKING).list_of("order", str)
    if not all(map(_PREDICTION_NAME.fullmatch, order)):
        raise InputError.at(directory / RANKING, "a prediction's name is no part of a file name; fold it again")
    if not order:
        raise InputError.at(directory / RANKING, "it names no prediction; fold the target again")
    return order


def read_prediction(directory: Path, name: str) -> PredictionFiles:
    """Read the confidence file of one prediction of a target, and find its other files.

    Raise `InputError` if the confidence file is missing or damaged.
    """
    confidence = JsonObject.read(directory / f"confidence_{name}.json")
    plddt = confidence.list_of("plddt", float)
    numbers = confidence.list_of("residueNumber", float)
    if not plddt or len(numbers) != len(plddt):
        raise InputError.at(confidence.path, f"{len(plddt)} pLDDT for {len(numbers)} residues; fold the target again")
    msa = confidence.child("msa")
    depth = msa.list_of("coverage", float, [])
    structures = {kind: _structure(directory, f"{kind}_{name}") for kind in ("relaxed", "unrelaxed")}
    return PredictionFiles(
        target=confidence.get("target", str, directory.resolve().name),
        name=name,
        numbers=tuple(int(number) for number in numbers),
        plddt=plddt,
        mean_plddt=confidence.get("mean_plddt", float),
        ptm=confidence.optional_number("ptm"),
        iptm=confidence.optional_number("iptm"),
        num_recycles=confidence.get("num_recycles", int, -1),
        converged=confidence.content.get("converged") is True,
        notes=confidence.list_of("notes", str, []),
        chains=tuple(_chain(record) for record in confidence.children("chains")),
        chain_pairs=tuple(_chain_pair(record) for record in confidence.children("interfaces")),
        domains=tuple(_domain(record) for record in confidence.children("domains")),
        depth=depth if len(depth) == len(plddt) else (),
        rows=msa.get("rows", int) if "rows" in msa.content else None,
        effective_rows=msa.optional_number("effective_rows"),
        structures={kind: path for kind, path in structures.items() if path is not None},
        pae=_present(directory / f"pae_{name}.json"),
        distances=_present(directory / f"distances_{name}.npz"),
    )


def _chain(record: JsonObject) -> Part:
    ptm = record.optional_number("ptm")
    return Part(
        name=record.get("chain", str),
        ranges=((record.get("first", int), record.get("last", int)),),
        chains=(),
        residues=record.get("residues", int),
        mean_plddt=record.get("mean_plddt", float),
        measures=() if ptm is None else (("pTM", ptm),),
    )


def _chain_pair(record: JsonObject) -> ChainPair:
    chains = record.list_of("chains", str)
    if len(chains) != 2:
        raise InputError.at(record.path, f"an interface has {len(chains)} chains, not 2; fold the target again")
    return ChainPair(
        chains=(chains[0], chains[1]),
        contacts=record.get("contacts", int),
        scores=tuple((title, record.optional_number(key)) for key, title in _PAIR_SCORES),
    )


def _domain(record: JsonObject) -> Part:
    ranges = record.get("ranges", list)
    if not all(
        isinstance(ends, list) and len(ends) == 2 and all(isinstance(end, int) for end in ends) for ends in ranges
    ):
        raise InputError.at(record.path, "a domain's range is no pair of residue numbers; fold the target again")
    chains = record.list_of("chains", str, [])
    if chains and len(chains) != len(ranges):
        raise InputError.at(record.path, f"a domain has {len(ranges)} ranges in {len(chains)} chains; fold it again")
    pae = record.optional_number("mean_pae")
    return Part(
        name=record.get("name", str),
        ranges=tuple((first, last) for first, last in ranges),
        chains=tuple(chains),
        residues=record.get("residues", int),
        mean_plddt=record.get("mean_plddt", float),
        measures=() if pae is None else (("mean PAE", pae),),
    )


def _residues(features: TargetFeatures) -> str:
    """Return the residues of all chains."""
    return features.sequence.replace(CHAIN_SEPARATOR, "")


def _sequence(prediction: PredictionFiles, features: TargetFeatures | None) -> str:
    """Return the sequence of the features, else that which a structure's file states, else an X for each residue."""
    if features is not None:
        return _residues(features)
    for path in prediction.structures.values():
        letters = _stated_sequence(path)
        if len(letters) == len(prediction.plddt):
            return letters
    return "X" * len(prediction.plddt)


def _stated_sequence(path: Path) -> str:
    """Return the residues of all chains in an mmCIF file or in the SEQRES records of a PDB file."""
    if path.suffix == MMCIF:
        return "".join(chain.sequence for chain in read_structure(path).chains)
    lines = (line for line in read_lines(path, MAX_MMCIF_BYTES) if line.startswith(b"SEQRES"))
    return "".join(_LETTERS.get(name, "X") for line in lines for name in line[19:].decode("ascii", "replace").split())


def read_record(path: Path) -> JsonObject | None:
    """Read the object in a JSON file; return None if there is no such file."""
    return JsonObject.read(path) if path.is_file() else None


def _structure(directory: Path, stem: str) -> Path | None:
    """Return the PDB file of a structure, or the mmCIF file where PDB cannot hold it; None if there is none."""
    return next(filter(None, (_present(directory / f"{stem}{suffix}") for suffix in (".pdb", MMCIF))), None)


def _present(path: Path) -> Path | None:
    # A page holds whole files and may be sent to others: it must not include what a symbolic link points to.
    return path if path.is_file() and not path.is_symlink() else None
