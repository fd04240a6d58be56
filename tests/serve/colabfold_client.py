"""Compare what ColabFold's own client gets from this service with what a search of the same databases finds.

    python -m tests.serve.colabfold_client PYTHON

PYTHON is that of an environment with the package colabfold, whose `run_mmseqs2` is called there. Small databases are
made; the service and its worker are processes of this machine.
"""

import json
import sys
import tempfile
from pathlib import Path

from data_pipeline.search.colabfold_search import ColabfoldPairing
from data_pipeline.search.mmseqs_program import require_mmseqs
from data_pipeline.search.process import run_program
from tests.data_pipeline.search.made_databases import Made
from tests.serve.searching import serve_searches

_CALL = """
import json, sys
from colabfold.colabfold import run_mmseqs2
sequences, url, folder = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
call = dict(host_url=url, user_agent="helixfold")
found = {
    "unpaired": run_mmseqs2(sequences, folder + "/unpaired", use_env=True, **call),
    "paired": run_mmseqs2(sequences, folder + "/paired", use_env=False, use_pairing=True, **call),
}
open(folder + "/found.json", "w").write(json.dumps(found))
"""


def main(python: str) -> None:
    """Compare alignments of single sequences, and paired rows."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        databases = folder / "databases"
        databases.mkdir()
        made = Made(require_mmseqs(), databases)
        sequences = [made.first, made.second]
        with serve_searches(folder / "service", databases) as server:
            words = [python, "-c", _CALL, json.dumps(sequences), server.url, name]
            run_program(words, timeout=600, directory=folder)
        found = json.loads((folder / "found.json").read_text())
        for sequence, theirs in zip(sequences, found["unpaired"], strict=True):
            assert rows(theirs) == rows(made.search.search(sequence).decode())
        own = ColabfoldPairing(batch=made.batch, database=made.uniref).search(sequences)
        for theirs, ours in zip(found["paired"], own, strict=True):
            assert rows(theirs) == rows(ours.decode())
    print("ColabFold's client gets the same alignments and pairs")


def rows(text: str) -> list[tuple[str, str]]:
    """The rows of an a3m under the name of each hit; the names of the targets are their numbers."""
    records = (record.split("\n", 1) for record in text.split(">")[1:])
    return [("" if name.strip().isdigit() else name.strip(), body.replace("\n", "")) for name, body in records]


if __name__ == "__main__":
    main(sys.argv[1])
