"""Write what was found about a parameter file as one page, which can be attached to a report of a fault."""

from pathlib import Path

from helixfold import __version__
from helixfold.report.page import page
from helixfold.verification.checks import Findings
from helixfold.write.results import write_file


def write_verification(path: Path, findings: Findings) -> None:
    """Write the page of a parameter file's verification; it says so if a check failed or could not be made."""
    text = page(
        "verification.html",
        styles=("page.css", "verification.css"),
        scripts=(),
        version=__version__,
        title=findings.facts["file"],
        facts=findings.facts,
        checks=findings.checks,
        failed=findings.count(holds=False),
        unchecked=findings.count(holds=None),
        tables=findings.tables,
    )
    write_file(path, text.encode())
