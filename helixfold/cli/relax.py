"""Define the command `helixfold relax`, which relaxes structures of any program."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from helixfold.options import Integer, Number, Output

app = App(name="relax", usage="helixfold relax STRUCTURE... [--output DIR] [options]")


@app.default
def relax(
    *structures: Annotated[Path, Parameter(name="STRUCTURE", required=True)],
    output: Output = Path("relaxed"),
    overwrite: bool = False,
    max_rounds: Integer = 8,
    max_seconds: Annotated[Number, Parameter(metavar="SECONDS")] = 3600.0,
    device: Annotated[str, Parameter(metavar="NAME")] = "auto",
) -> int:
    """Relax protein structures of any origin with AlphaFold's protocol: the Amber99sb force field, hydrogens and
    missing atoms added, every atom held near its place.

    Parameters
    ----------
    structures
        PDB or mmCIF files (.gz too).
    output
        Directory for the relaxed structures.
    overwrite
        Replace files that exist.
    max_rounds
        Number of minimisations; before each but the first, residues with violations lose their restraints. AlphaFold
        makes three; before each further one, chains can pass through each other.
    max_seconds
        Time for one structure.
    device
        auto, cpu or cuda.
    """
    from helixfold.execution.device import limit_threads, pick_device
    from helixfold.predict.relax_files import relax_files
    from helixfold.relax.result import RelaxOptions

    limit_threads()
    return relax_files(
        structures,
        output=output,
        options=RelaxOptions(max_rounds=max_rounds, max_seconds=max_seconds),
        device=pick_device(device),
        overwrite=overwrite,
    )
