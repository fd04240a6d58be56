"""Define the command `helixfold weights`, which downloads, inspects and converts model parameters."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from helixfold.options import Directory
from helixfold.predict.options import ComputeDtype, Dtype
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


@app.command(usage="helixfold weights merge SOURCE TARGET --adapter FILE [options]")
def merge(
    source: Path,
    target: Path,
    /,
    *,
    adapter: Annotated[tuple[str, ...], Parameter(metavar="FILE[=WEIGHT]...")] = (),
    preset: Annotated[str | None, Parameter(metavar="MODEL", show_default="what the file or its name says")] = None,
    overwrite: bool = False,
) -> None:
    """Add adapters that helixfold finetune trained to the parameters in a file, for other programs, too.

    Parameters
    ----------
    source
        The parameter file that the adapters were trained on.
    target
        The file to write; its name ends in .npz, .pt or .safetensors.
    adapter
        The adapters, each perhaps with a weight; required.
    preset
        The model: model_1 to model_5, those with _ptm or _multimer_v3 after them, small or tiny.
    overwrite
        Replace TARGET if it exists.
    """
    from helixfold.weights import files
    from helixfold.weights.adapters import parse_adapters

    files.merge(source, target, parse_adapters(adapter), preset, overwrite=overwrite)


@app.command(usage="helixfold weights verify FILE [options]")
def verify(
    path: Annotated[Path, Parameter(name="FILE")],
    /,
    *,
    preset: Annotated[str | None, Parameter(metavar="MODEL", show_default="what the file or its name says")] = None,
    dtypes: Annotated[tuple[ComputeDtype, ...], Parameter(name="--dtype")] = ("float32", "bfloat16"),
    own: Annotated[bool, Parameter(negative=())] = False,
    against: Annotated[str | None, Parameter(metavar="jax|FILE")] = None,
    jax_python: Annotated[Path, Parameter(show_default="this one")] = Path(sys.executable),
    target: Annotated[Path | None, Parameter(metavar="FASTA|A3M")] = None,
    device: Annotated[str, Parameter(metavar="NAME")] = "cpu",
    report: Annotated[Path | None, Parameter(metavar="PAGE.html")] = None,
) -> int:
    """Prove that a parameter file is intact and gives the outputs that it should; the exit code is 1 if it does not.

    Names, shapes and values are checked, then DeepMind's checksum where copies have one, the outputs that are published
    for ten residues of 5AWL (model_1_ptm), and a small fixed input in each precision.

    Parameters
    ----------
    path
        The parameter file.
    preset
        The model: model_1 to model_5, those with _ptm, _multimer_v3, _multimer_v2 or _multimer after them, small or
        tiny.
    dtypes
        Precisions to run in, float32 among them.
    own
        The parameters are not DeepMind's: nothing published is compared.
    against
        jax: also run DeepMind's program. Or another file of the same parameters, to compare every bit.
    jax_python
        The Python interpreter that has jax and alphafold.
    target
        A sequence or an alignment to run as well.
    device
        auto, cpu, cuda or cuda:N.
    report
        Also write what was found as a page.
    """
    from helixfold.verification.command import run

    return run(
        path,
        preset=preset,
        dtypes=dtypes,
        own=own,
        against=against,
        jax_python=jax_python,
        target=target,
        device=device,
        report=report,
    )
