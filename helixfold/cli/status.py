"""Define the command `helixfold status`, which tells how far a batch is."""

from pathlib import Path

from cyclopts import App

from helixfold.standard_streams import optional_output

app = App(name="status", usage="helixfold status DIRECTORY")


@app.default
@optional_output()
def status(directory: Path, /) -> None:
    """Tell how far a batch of predictions is: targets done and failed and, of one with --cluster, what its pools do.

    Parameters
    ----------
    directory
        The output directory of `helixfold predict`.
    """
    from helixfold.cluster.progress import status_lines

    for line in status_lines(directory):
        print(line)
