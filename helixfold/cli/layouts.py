"""Define the command `helixfold layouts`, which predicts the time of a training step by how its ranks are divided."""

from cyclopts import App

from helixfold.training.options import LayoutsOptions

_USUAL = LayoutsOptions()
app = App(name="layouts", usage="helixfold layouts [options]")


@app.default
def layouts(options: LayoutsOptions = _USUAL) -> None:
    """Predict seconds and memory of a training step for every way to divide ranks: dp groups with samples of their own,
    each of bp (the two branches of blocks) x dap (parts of streams) ranks that share a sample.

    What a rank computes, sends and holds is counted by running it without numbers. Rates of named machines are
    published ones, in bfloat16.
    """
    from helixfold.training.forecast import forecast, published

    for line in published() if options.published else forecast(options):
        print(line, flush=True)
