"""Define the command `helixfold weights`, which downloads, inspects and converts model parameters."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from helixfold.options import Directory
from helixfold.predict.options import Dtype
from helixfold.predict.presets import MONOMER, MONOMER_PTM, MULTIMER

app = App(
    name="weights",
    usage="helixfold weights ACTION [options]",
    help="Model parameters: DeepMind's .npz, OpenFold's .pt and helixfold's own .safetensors.",
)


@app.command(usage="helixfold weights download [options]")
def download(
    *,
    models: Annotated[
        tuple[str, ...], Parameter(choices=MONOMER + MONOMER_PTM + MULTIMER, show_choices=False, metavar="MODEL...")
    ] = ("model_1_ptm",),
    directory: Annotated[Directory | None, Parameter(show_default="the cache directory, where predict looks")] = None,
    url: Annotated[str | None, Parameter(metavar="URL", show_default="DeepMind's")] = None,
) -> None:
    """Download DeepMind's published parameters (CC BY 4.0), 373 MB per model. A download that was interrupted goes on.

    Parameters
    ----------
    models
        Models to download: model_1 to model_5, those with _ptm after them, and those of complexes, with _multimer_v3,
        _multimer_v2 or _multimer.
    directory
        Directory for the files.
    url
        A copy of DeepMind's archive.
    """
    from helixfold.weights import files

    files.download(models, directory=directory, url=url)


@app.command(usage="helixfold weights inspect FILE [options]")
def inspect(path: Annotated[Path, Parameter(name="FILE")], /, *, arrays: bool = False) -> None:
    """Show what a parameter file holds, which presets it fits and where it comes from.

    Parameters
    ----------
    path
        The parameter file.
    arrays
        Also list the arrays with their shapes.
    """
    from helixfold.weights import files

    files.inspect(path, arrays=arrays)


@app.command(usage="helixfold weights convert SOURCE TARGET [options]")
def convert(
    source: Path,
    target: Path,
    /,
    *,
    preset: Annotated[str | None, Parameter(metavar="MODEL", show_default="what the file or its name says")] = None,
    dtype: Dtype = "float32",
    overwrite: bool = False,
) -> None:
    """Rewrite a parameter file for another program.

    Parameters
    ----------
    source
        The parameter file to read.
    target
        The file to write; its name ends in .npz, .pt or .safetensors.
    preset
        The model: model_1 to model_5, those with _ptm or _multimer_v3 after them, small or tiny.
    dtype
        Precision of the numbers in a .safetensors file; bfloat16 takes half the space.
    overwrite
        Replace TARGET if it exists.
    """
    from helixfold.weights import files

    files.convert(source, target, preset, overwrite=overwrite, dtype=dtype)
