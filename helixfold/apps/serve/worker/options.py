"""Options of workers, which `helixfold serve` and `helixfold serve worker` share."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Self

from helixfold.apps.options import SearchOptions
from helixfold.runtime.annotations import Parameter
from helixfold.runtime.options import MOST_USED, MemorySize, Workers
from helixfold.runtime.standard_streams import print_note


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Options for how a worker predicts.

    `models` are offered; () offers all with parameters. `memory` is a limit in bytes, and `threads` are of one search.
    """

    models: Annotated[tuple[str, ...], Parameter(metavar="MODEL...", show_default="all models with parameters")] = ()
    """Models to offer; the first one is the default."""
    weights: Annotated[Path | None, Parameter(group=MOST_USED, show_default="as for predict")] = None
    """Parameter file, or directory with params_<model>.npz files."""
    databases: Annotated[
        Path | None, Parameter(group=MOST_USED, show_default="from a configuration file, if one names any")
    ] = None
    """Search these databases, as for predict. With ColabFold's databases, the service is also an MSA server."""
    device: Annotated[str, Parameter(metavar="NAME")] = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    memory: Annotated[MemorySize | None, Parameter(show_default="the free memory")] = None
    """Maximum memory of a worker, such as 8GiB."""
    threads: Annotated[Workers | None, Parameter(show_default="all processors, divided among the workers")] = None
    """Threads per search."""

    def with_absolute_paths(self) -> Self:
        """Return options with absolute paths of weights and databases, for use in another working directory."""
        weights, databases = (None if path is None else path.absolute() for path in (self.weights, self.databases))
        return replace(self, weights=weights, databases=databases)

    def with_site_databases(self) -> Self:
        """Return options with the databases of a configuration file if none are set, and print the name of the file."""
        from data_pipeline.io.site_configuration import site_configuration  # noqa: PLC0415  `--help` does without

        site = site_configuration()
        if self.databases is not None or site.databases is None:
            return self
        print_note(f"databases of {site.sources['databases']}: {site.databases}")
        return replace(self, databases=site.databases)

    def search_options(self) -> SearchOptions:
        """Return the options of a search in this worker's databases."""
        return SearchOptions(databases=self.databases, threads=self.threads)
