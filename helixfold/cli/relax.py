"""Define the command `helixfold relax`, which relaxes structures of any program."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from helixfold.predict.options import RelaxFilesOptions

_USUAL = RelaxFilesOptions()
app = App(name="relax", usage="helixfold relax STRUCTURE... [--output DIR] [options]")


@app.default
def relax(
    *structures: Annotated[Path, Parameter(name="STRUCTURE", required=True)],
    options: RelaxFilesOptions = _USUAL,
) -> int:
    """Relax protein structures of any origin with AlphaFold's protocol: the Amber99sb force field, hydrogens and
    missing atoms added, every atom held near its place.

    Parameters
    ----------
    structures
        PDB or mmCIF files (.gz too).
    """
    from helixfold.execution.device import limit_threads, pick_device
    from helixfold.predict.relax_files import relax_files
    from helixfold.relax.result import RelaxOptions

    limit_threads()
    return relax_files(
        structures,
        output=options.output,
        options=RelaxOptions(max_rounds=options.max_rounds, max_seconds=options.max_seconds),
        device=pick_device(options.device),
        overwrite=options.overwrite,
    )
