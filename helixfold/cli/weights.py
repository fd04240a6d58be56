"""Define the command `helixfold weights`, which downloads, inspects and converts model parameters."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from helixfold.apps.presets import MONOMER, MONOMER_PTM, MULTIMER
from helixfold.cli.command import Command
from helixfold.runtime.options import ComputeDtype, Dtype, Output

_Model = Annotated[str | None, Parameter(metavar="MODEL", show_default="from the file or its name", alias="--preset")]
app = Command(
    name="weights",
    usage="helixfold weights ACTION [options]\nexample: helixfold weights download",
    help="Download, inspect, verify and convert model parameters (DeepMind's .npz, OpenFold's .pt, .safetensors).",
    group_commands=Group.create_ordered("Actions"),
)


@app.command(usage="helixfold weights download [options]")
def download(
    *,
    models: Annotated[
        tuple[str, ...], Parameter(choices=MONOMER + MONOMER_PTM + MULTIMER, show_choices=False, metavar="MODEL...")
    ] = ("model_1_ptm",),
    output: Annotated[Output | None, Parameter(show_default="the cache directory", alias="--directory")] = None,
    url: Annotated[str | None, Parameter(metavar="URL", show_default="DeepMind's")] = None,
) -> None:
    """Download DeepMind's parameters (CC BY 4.0, 373 MB per model). An interrupted download resumes.

    Parameters
    ----------
    models
        Models to download: model_1 to model_5, alone or with suffix _ptm, _multimer_v3, _multimer_v2 or _multimer.
    output
        Output directory.
    url
        Mirror of DeepMind's archive.
    """
    from helixfold.weights import files

    files.download(models, directory=output, url=url)


@app.command(usage="helixfold weights inspect FILE [options]")
def inspect(path: Annotated[Path, Parameter(name="FILE")], /, *, arrays: bool = False) -> None:
    """Show the contents, the matching models and the origin of a parameter file.

    Parameters
    ----------
    path
        Parameter file.
    arrays
        Also list all arrays with their shapes.
    """
    from helixfold.weights import files

    files.inspect(path, arrays=arrays)


@app.command(usage="helixfold weights convert SOURCE TARGET [options]")
def convert(
    source: Path,
    target: Path,
    /,
    *,
    model: _Model = None,
    dtype: Dtype = "float32",
    overwrite: bool = False,
) -> None:
    """Convert a parameter file to another format.

    Parameters
    ----------
    source
        Parameter file to read.
    target
        File to write, ending in .npz (DeepMind), .pt (OpenFold) or .safetensors (helixfold).
    model
        Model: model_1 to model_5, alone or with suffix _ptm or _multimer_v3; small or tiny.
    dtype
        Precision in a .safetensors file; bfloat16 halves its size.
    overwrite
        Replace TARGET if it exists.
    """
    from helixfold.weights import files

    files.convert(source, target, model, overwrite=overwrite, dtype=dtype)


@app.command(usage="helixfold weights merge SOURCE TARGET --adapter FILE [options]")
def merge(
    source: Path,
    target: Path,
    /,
    *,
    adapter: Annotated[tuple[str, ...], Parameter(metavar="FILE[=WEIGHT]...")] = (),
    model: _Model = None,
    overwrite: bool = False,
) -> None:
    """Merge adapters from `helixfold finetune` into a parameter file, so that other programs can use them.

    Parameters
    ----------
    source
        Parameter file that the adapters were trained on.
    target
        File to write, ending in .npz (DeepMind), .pt (OpenFold) or .safetensors (helixfold).
    adapter
        Adapters, optionally with weights. At least one is required.
    model
        Model: model_1 to model_5, alone or with suffix _ptm or _multimer_v3; small or tiny.
    overwrite
        Replace TARGET if it exists.
    """
    from helixfold.weights import files
    from helixfold.weights.adapters import parse_adapters

    files.merge(source, target, parse_adapters(adapter), model, overwrite=overwrite)


@app.command(usage="helixfold weights verify FILE [options]")
def verify(
    path: Annotated[Path, Parameter(name="FILE")],
    /,
    *,
    model: _Model = None,
    dtypes: Annotated[tuple[ComputeDtype, ...], Parameter(name="--dtype")] = ("float32", "bfloat16"),
    own: Annotated[bool, Parameter(negative=())] = False,
    against: Literal["jax"] | None = None,
    jax_python: Annotated[Path, Parameter(show_default="this one")] = Path(sys.executable),
    device: Annotated[str, Parameter(metavar="NAME")] = "cpu",
) -> int:
    """Verify that a parameter file is intact and produces the expected outputs. The exit code is 1 if it does not.

    Checks names, shapes and values, DeepMind's checksums, the published outputs for ten residues of 5AWL (model_1_ptm),
    and a small fixed input in each precision.

    Parameters
    ----------
    path
        Parameter file.
    model
        Model: model_1 to model_5, alone or with suffix _ptm, _multimer_v3, _multimer_v2 or _multimer; small or tiny.
    dtypes
        Precisions to run in; float32 must be one of them.
    own
        The parameters are not DeepMind's: skip comparisons with published values.
    against
        jax: also run DeepMind's program.
    jax_python
        Python interpreter that has jax and alphafold.
    device
        auto, cpu, cuda or cuda:N.
    """
    from helixfold.apps.verify.verify import run

    return run(
        path,
        preset=model,
        dtypes=dtypes,
        own=own,
        against=against,
        jax_python=jax_python,
        device=device,
    )
