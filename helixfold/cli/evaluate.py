"""Define the command `helixfold evaluate`, which compares predictions with known structures."""

import sys
from pathlib import Path

from cyclopts import App

from data_pipeline.errors import InputError, printable
from data_pipeline.extras import require
from helixfold.options import Output
from helixfold.standard_streams import optional_output

SOME_FAILED = 1
app = App(name="evaluate", usage="helixfold evaluate PREDICTIONS REFERENCES [--output DIR] [options]")


@app.default
@optional_output()
def evaluate(
    predictions: Path,
    references: Path,
    /,
    *,
    output: Output = Path("evaluation"),
    all_ranks: bool = False,
) -> int:
    """Compare predictions with known structures: lDDT, TM-score, GDT and RMSD in tables and a plot.

    They are matched by name (T1031 with T1031-D1 and T1031-D2, 1abc_A with chain A of 1abc), else by sequence; residues
    are matched by sequence, whatever they are numbered by.

    Parameters
    ----------
    predictions
        What `helixfold predict` wrote, or structure files of any program: a directory, or one file.
    references
        Known structures, PDB or mmCIF (.gz too): a directory, or one file.
    output
        Directory for the tables and the plot.
    all_ranks
        Compare all predictions of each target, not only the best one.
    """
    require("evaluate", "biotite", action="helixfold evaluate")
    if output.exists() and not output.is_dir():
        raise InputError.at(output, "is a file; give --output a directory")
    from helixfold.analysis.compare_files import compare_files
    from helixfold.report.evaluation_plot import evaluation_plot
    from helixfold.write.evaluation import screen_table, write_evaluation
    from helixfold.write.results import write_file

    compared = compare_files(predictions, references, all_ranks=all_ranks)
    if compared.results:
        print("\n".join(screen_table(compared.results)))
    for name, why in compared.failures.items():
        print(f"{name}: not compared: {why}", file=sys.stderr)
    if compared.results:
        if unused := compared.unused:
            names = ", ".join(printable(name, 40) for name in unused[:10])
            more = f" and {len(unused) - 10} more" if len(unused) > 10 else ""
            print(f"helixfold: no prediction for {names}{more}", file=sys.stderr)
        write_evaluation(output, compared.results, compared.failures, compared.unused)
        write_file(output / "scores.png", evaluation_plot(compared.results))
        print(f"-> {output}")
    if not compared.failures:
        return 0
    print(f"helixfold: {len(compared.failures)} of {compared.count} predictions could not be compared", file=sys.stderr)
    return SOME_FAILED
