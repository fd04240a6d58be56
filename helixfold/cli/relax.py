"""Define the command `helixfold relax`, which relaxes structures from any source."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from helixfold.cli.command import Command
from helixfold.runtime.options import Integer, Number, Output

app = Command(
    name="relax", usage="helixfold relax STRUCTURE... [--output DIR] [options]\nexample: helixfold relax model.pdb"
)


@app.default
def relax(
    *structures: Annotated[Path, Parameter(name="STRUCTURE", required=True)],
    output: Output = Path("relaxed"),
    overwrite: bool = False,
    max_rounds: Integer = 8,
    max_seconds: Annotated[Number, Parameter(metavar="SECONDS")] = 3600.0,
    device: Annotated[str, Parameter(metavar="NAME")] = "auto",
) -> int:
    """Relax protein structures from any source with AlphaFold's protocol: add missing atoms and hydrogens, then
    minimise the energy (Amber99sb) with each heavy atom restrained to its position.

    Parameters
    ----------
    structures
        PDB or mmCIF files (.gz too).
    output
        Output directory for the relaxed structures.
    overwrite
        Replace existing files.
    max_rounds
        Maximum number of minimisations. Before each new one, residues with violations lose their restraints. AlphaFold
        runs three; from the fourth on, chains may pass through each other.
    max_seconds
        Time limit per structure.
    device
        auto, cpu or cuda.
    """
    from helixfold.apps.predict.relaxation import relax_files
    from helixfold.execution.device import limit_threads, pick_device
    from helixfold.relax.result import RelaxOptions

    limit_threads()
    return relax_files(
        structures,
        output=output,
        options=RelaxOptions(max_rounds=max_rounds, max_seconds=max_seconds),
        device=pick_device(device),
        overwrite=overwrite,
    )
