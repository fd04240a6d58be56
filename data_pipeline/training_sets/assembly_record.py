"""Lossless record of one assembly: its chains in the training set, their positions, and rows for pairing.

The atoms and alignments are in the records of the chains. Tables list the assemblies of a training set, and the skipped
assemblies with the reasons; `ASSEMBLIES_FILE` and `SKIPPED_ASSEMBLIES_FILE` are their names. `ASSEMBLY_VERSION` is part
of the cache keys of the records.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from data_pipeline.features.assembly import Chain, ComplexFeatures, complex_features
from data_pipeline.features.labels import ChainLabels
from data_pipeline.features.pairing import PairingRows
from data_pipeline.features.schema import Features
from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.files import atomic_write
from data_pipeline.io.json_files import compress_json, decompress_json
from data_pipeline.parse.text_files import read_text
from data_pipeline.training_sets.index import MAX_INDEX_BYTES, chain_name_problem

# Part of every cache key; increase it when the same input results in another record.
ASSEMBLY_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class PlacedChain:
    """A chain of the training set in an assembly, and its motion from the structure file to the assembly.

    `motion` has 12 numbers: the rows of the rotation, then the translation in Å. `name` is the chain's name in the
    training set, such as 1abc_A.
    """

    name: str  # "1abc_A"
    motion: tuple[float, ...]

    def moved(self, labels: ChainLabels) -> ChainLabels:
        """Return the labels of the chain with its positions in the assembly; absent atoms stay at 0."""
        rotation, translation = np.array(self.motion[:9]).reshape(3, 3), np.array(self.motion[9:])
        positions = labels.all_atom_positions.astype(np.float64) @ rotation.T + translation
        present = labels.all_atom_mask[..., None] > 0
        return replace(labels, all_atom_positions=np.where(present, positions, 0).astype(np.float32))


@dataclass(frozen=True, kw_only=True)
class AssemblyRecord:
    """An assembly of chains of the training set, or the reason why it is left out (`problem`).

    `pairing` has the rows to be paired with other chains, by chain name. A record with a `problem` has no chains.
    """

    name: str
    chains: tuple[PlacedChain, ...] = ()
    pairing: Mapping[str, PairingRows]
    problem: str = ""

    def pack(self) -> bytes:
        """Return the record as bytes; equal records give equal bytes."""
        return compress_json(
            {
                "name": self.name,
                "chains": [[chain.name, *chain.motion] for chain in self.chains],
                "pairing": {name: _plain(rows) for name, rows in self.pairing.items()},
                "problem": self.problem,
            }
        )

    @classmethod
    def unpack(cls, content: bytes) -> "AssemblyRecord":
        """Return the record from the bytes of `pack`; raise `ValueError` if they are damaged."""
        try:
            values = decompress_json(content)
            return cls(
                name=values["name"],
                chains=tuple(PlacedChain(name=name, motion=tuple(motion)) for name, *motion in values["chains"]),
                pairing={name: _pairing(rows) for name, rows in values["pairing"].items()},
                problem=values["problem"],
            )
        except (TypeError, KeyError, AttributeError, IndexError) as error:
            raise ValueError("not a record of an assembly") from error


@dataclass(frozen=True, kw_only=True)
class LabelledComplex:
    """Features of the assembly `name`, and the labels of all its residues in the same order."""

    name: str
    features: ComplexFeatures
    labels: ChainLabels


def labelled_complex(record: AssemblyRecord, chains: Mapping[str, tuple[Features, ChainLabels]]) -> LabelledComplex:
    """Return the features and labels of an assembly from the features and labels of its chains, by chain name.

    Chains with the same sequence use the alignment and the templates of the first of them. Chain names are names in the
    training set, so copies of a chain have equal names. The resolution is the first chain's. Raise `InputError` if the
    assembly has no chain.
    """
    if not record.chains:
        raise InputError(f"assembly '{record.name}' has no chain of the training set")
    first: dict[str, str] = {}
    for placed in record.chains:
        first.setdefault(chains[placed.name][0].sequence, placed.name)
    copies = [
        Chain(
            name=str(index),
            features=chains[name := first[chains[placed.name][0].sequence]][0],
            pairing=record.pairing.get(name),
        )
        for index, placed in enumerate(record.chains)
    ]
    features = complex_features(copies)
    labels = [
        placed.moved(chains[placed.name][1]) for placed in (record.chains[int(index)] for index in features.chain_names)
    ]
    return LabelledComplex(
        name=record.name,
        features=replace(features, chain_names=tuple(record.chains[int(each)].name for each in features.chain_names)),
        labels=_joined(labels),
    )


def _joined(labels: Sequence[ChainLabels]) -> ChainLabels:
    """Return the labels of all chains after each other, as one set of labels."""
    return replace(
        labels[0],
        all_atom_positions=np.concatenate([each.all_atom_positions for each in labels]),
        all_atom_mask=np.concatenate([each.all_atom_mask for each in labels]),
        confidence=np.concatenate([each.confidence for each in labels]),
        is_distillation=any(each.is_distillation for each in labels),
    )


def motion_of(rotation: Float[np.ndarray, "3 3"], translation: Float[np.ndarray, "3"]) -> tuple[float, ...]:
    """Return a motion in the format of records: the rows of the rotation, then the translation."""
    return tuple(np.append(rotation, translation).tolist())


def _plain(rows: PairingRows) -> dict[str, Any]:
    """Return pairing rows as JSON values: letters from 'A' on for the types, and only the deletion counts above 0."""
    places = np.argwhere(rows.deletion_matrix)
    return {
        "species": list(rows.species),
        "msa": ["".join(chr(65 + letter) for letter in row) for row in rows.msa.tolist()],
        "deletions": [[*place, int(rows.deletion_matrix[tuple(place)])] for place in places.tolist()],
    }


def _pairing(values: Mapping[str, Any]) -> PairingRows:
    """Return pairing rows from the JSON values of `_plain`."""
    msa = np.array([[ord(letter) - 65 for letter in row] for row in values["msa"]], np.int8)
    deletions = np.zeros(msa.shape, np.int32)
    for row, column, count in values["deletions"]:
        deletions[row, column] = count
    return PairingRows(msa=msa, deletion_matrix=deletions, species=tuple(values["species"]))


ASSEMBLIES_FILE, SKIPPED_ASSEMBLIES_FILE = "assemblies.tsv", "skipped_assemblies.tsv"

_COLUMN_NAMES = "name\tkey\tchains"
_ADVICE = "build the feature store again"


@dataclass(frozen=True, kw_only=True)
class AssemblyEntry:
    """Entry of one assembly: the names of its chains in the training set, once per copy, and the key of its record."""

    name: str
    key: str
    chains: tuple[str, ...]


def write_assemblies(directory: Path, entries: Iterable[AssemblyEntry], skipped: Mapping[str, str]) -> None:
    """Write the tables of assemblies and of skipped assemblies (reasons by name) to the directory of a store.

    Equal entries give equal bytes.
    """
    tables = {
        ASSEMBLIES_FILE: [_COLUMN_NAMES, *("\t".join((entry.name, entry.key, *entry.chains)) for entry in entries)],
        SKIPPED_ASSEMBLIES_FILE: [
            "name\treason",
            *(f"{printable(name)}\t{printable(skipped[name], 1000)}" for name in sorted(skipped)),
        ],
    }
    for name, lines in tables.items():
        with atomic_write(directory / name) as temporary:
            temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="")


def read_assemblies(directory: Path) -> tuple[AssemblyEntry, ...]:
    """Return the assemblies in the directory of a store, or () without a table; raise `InputError` if it is damaged."""
    path = directory / ASSEMBLIES_FILE
    if not path.is_file():
        return ()
    head, *lines = read_text(path, MAX_INDEX_BYTES, _ADVICE).removesuffix("\n").split("\n")
    if head != _COLUMN_NAMES:
        raise InputError.at(path, f"the first line must name the columns name, key and chains; {_ADVICE}", line=1)
    entries: dict[str, AssemblyEntry] = {}
    for index, line in enumerate(lines, start=2):
        name, *rest = line.split("\t")
        if len(rest) < 2 or len(rest[0]) != 32 or any(map(chain_name_problem, (name, *rest[1:]))):
            raise InputError.at(path, f"not a name, a key and names of chains; {_ADVICE}", line=index)
        if name in entries:
            raise InputError.at(path, f"'{printable(name)}' is also in an earlier line; {_ADVICE}", line=index)
        entries[name] = AssemblyEntry(name=name, key=rest[0], chains=tuple(rest[1:]))
    return tuple(entries.values())
