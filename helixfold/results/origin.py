"""The origin of a model, which its ModelCIF file tells: software, parameters, settings, searches and templates."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from helixfold.folding.provenance import RecordedSearch, SearchPurpose
from helixfold.folding.templates import AlignedTemplate


@dataclass(frozen=True, kw_only=True)
class ModelOrigin:
    """All that made a model beside helixfold itself, the target's sequences and the network's name.

    Whatever is not known is left empty, and then is not in the file.
    """

    software: Mapping[str, str] = field(default_factory=dict)  # versions by program, such as torch
    parameters: str = ""  # the name of the network's parameters, such as that of their file
    parameters_digest: str = ""  # SHA-256
    settings: Mapping[str, str | int | float | bool] = field(default_factory=dict)  # such as seed and dtype, by name
    searches: tuple[RecordedSearch, ...] = ()
    templates: tuple[AlignedTemplate, ...] = ()

    def searches_for(self, purpose: SearchPurpose) -> list[RecordedSearch]:
        """Return the searches for one purpose."""
        return [search for search in self.searches if search.purpose == purpose]
