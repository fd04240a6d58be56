"""What made a model, as its ModelCIF file tells it: software, parameters, settings, databases and templates."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Literal

from data_pipeline.features.schema import Features
from data_pipeline.residues import GAP, RESTYPES_WITH_X_AND_GAP


@dataclass(frozen=True, kw_only=True)
class SearchedDatabase:
    """A database that was searched for a target's relatives, or for templates."""

    name: str
    purpose: Literal["alignment", "templates"]
    url: str | None = None  # where it is to be had
    version: str | None = None
    release_date: date | None = None


@dataclass(frozen=True, kw_only=True)
class AlignedTemplate:
    """A known structure that the network read, as it is aligned to one chain."""

    name: str  # entry and chain, "1abc_A"
    chain_id: str  # of the target
    residues: str  # a letter for each residue of the target's chain: the template's residue there, "-" for none


@dataclass(frozen=True, kw_only=True)
class ModelOrigin:
    """What made a model beside helixfold itself, the target's sequences and the network's name.

    Whatever is not known is left empty, and then is not in the file.
    """

    software: Mapping[str, str] = field(default_factory=dict)  # versions by program, such as torch
    parameters: str = ""  # the name of the network's parameters, such as that of their file
    parameters_digest: str = ""  # SHA-256
    settings: Mapping[str, str | int | float | bool] = field(default_factory=dict)  # such as seed and dtype, by name
    alignment_searches: tuple[str, ...] = ()  # one line for each search: its program, options and database
    template_searches: tuple[str, ...] = ()
    databases: tuple[SearchedDatabase, ...] = ()
    templates: tuple[AlignedTemplate, ...] = ()


def templates_in(features: Features, chain_id: str = "A", most: int | None = None) -> tuple[AlignedTemplate, ...]:
    """Return the first `most` templates (None: all) in the features of a chain, without those that have no residue."""
    rows = zip(features.template_domain_names[:most], features.template_aatype[:most], strict=True)
    return tuple(
        AlignedTemplate(
            name=name,
            chain_id=chain_id,
            residues="".join(RESTYPES_WITH_X_AND_GAP[kind] for kind in types.tolist()),
        )
        for name, types in rows
        if (types != GAP).any()
    )
