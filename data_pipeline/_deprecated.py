"""Old import paths of this package, which work with a `DeprecationWarning` until version 0.5, and how they are found.

`MODULES` maps the old name of a module, with all modules below it, to its name now.
"""

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.abc import Loader, MetaPathFinder
else:  # `importlib.abc` takes ten milliseconds, and Python needs the methods alone
    Loader = MetaPathFinder = object

MODULES = {
    "data_pipeline.alignment_variants": "data_pipeline.sampling.alignment_variants",
    "data_pipeline.child_processes": "data_pipeline.io.child_processes",
    "data_pipeline.claims": "data_pipeline.io.claims",
    "data_pipeline.complexes": "data_pipeline.features.complexes",
    "data_pipeline.config": "data_pipeline.io.config",
    "data_pipeline.datasets": "data_pipeline.training_sets",
    "data_pipeline.errors": "data_pipeline.io.errors",
    "data_pipeline.extras": "data_pipeline.io.extras",
    "data_pipeline.file_lock": "data_pipeline.io.file_lock",
    "data_pipeline.files": "data_pipeline.io.files",
    "data_pipeline.json_files": "data_pipeline.io.json_files",
    "data_pipeline.npz": "data_pipeline.io.npz",
    "data_pipeline.processors": "data_pipeline.io.processors",
    "data_pipeline.toml_files": "data_pipeline.io.toml_files",
    "data_pipeline.transforms": "data_pipeline.sampling",
    "data_pipeline.user_cache": "data_pipeline.io.user_cache",
    "data_pipeline.zip_archive": "data_pipeline.io.zip_archive",
}


class OldPaths(MetaPathFinder):
    """Finder that imports modules by their old names; `modules` maps old full names to current ones."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = modules

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec that loads the current module for an old name, with a `DeprecationWarning`; else None.

        Submodules of an old name are covered too. `path` and `target` are ignored.
        """
        for old, new in self._modules.items():
            if fullname == old or fullname.startswith(f"{old}."):
                new_name = new + fullname.removeprefix(old)
                warn(fullname, new_name)
                return ModuleSpec(fullname, _ModuleNow(new_name))
        return None


class _ModuleNow(Loader):
    """Loader that puts the module itself, not a second one, under the old name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python make the module that is replaced."""

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = import_module(self._name)


def install(modules: Mapping[str, str]) -> None:
    """Let Python import the modules in this table (old name to current name), before its own finders search files."""
    sys.meta_path.insert(0, OldPaths(modules))


def moved_names(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` for the module named `module`, some of whose attributes are in other modules now.

    `names` maps an attribute to its full current name. Access to one issues a `DeprecationWarning`.
    """

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn(f"{module}.{name}", names[name])
        new_module, _, attribute = names[name].rpartition(".")
        return getattr(import_module(new_module), attribute)

    return get


def warn(old: str, new: str) -> None:
    """Issue a `DeprecationWarning` that `old` is `new` now, located two calls above this function."""
    warnings.warn(f"{old} is {new} now; the old name works until version 0.5", DeprecationWarning, stacklevel=3)
