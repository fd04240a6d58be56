"""Compare what other programs' own MSA clients get from this service with what a search of the same databases finds.

    python -m tests.apps.serve.msa_clients PYTHON [colabfold] [boltz] [chai] [protenix]

PYTHON is that of an environment with these packages, without most of what they need
(`pip install --no-deps boltz chai_lab protenix`). Small databases are made; service and worker are in this process.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.search.colabfold_search import ColabfoldPairing
from data_pipeline.search.mmseqs_program import require_mmseqs
from data_pipeline.search.process import run_program
from tests.apps.serve.searching import serve_searches
from tests.data_pipeline.search.made_databases import Made

Rows = list[tuple[str, str]]
# What is run in the other environment. `call(name, sequences, paired)` keeps the a3m of each sequence.
_BEGIN = """
import json, sys, time
sleep = time.sleep
time.sleep = lambda seconds: sleep(min(seconds, 0.3))  # between two looks
sequences, url, folder = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
found = {}
"""
_END = """
open(folder + "/found.json", "w").write(json.dumps(found))
"""
_ALL = """
found["unpaired"] = run(sequences, folder + "/unpaired", use_env=True, **call)
found["paired"] = run(sequences, folder + "/paired", use_env=True, use_pairing=True, **call)
found["complete"] = run(
    sequences, folder + "/complete", use_env=True, use_pairing=True, pairing_strategy="complete", **call
)
found["homodimer"] = run(sequences[:1] * 2, folder + "/homodimer", use_env=True, use_pairing=True, **call)
"""
_CALLS = {
    "colabfold": f"""
from colabfold.colabfold import run_mmseqs2 as run
call = dict(host_url=url, user_agent="helixfold")
{_ALL}
""",
    "boltz": f"""
from boltz.data.msa.mmseqs2 import run_mmseqs2 as run
call = dict(host_url=url)
{_ALL}
""",
    "chai": f"""
from pathlib import Path
from chai_lab.data.dataset.msas.colabfold import _run_mmseqs2, generate_colabfold_msas
run = lambda *given, **named: _run_mmseqs2(*given, **named)[0]
call = dict(host_url=url, user_agent="helixfold")
{_ALL}
for name, chains in (("dimer", sequences), ("twins", sequences[:1] * 2)):
    place = Path(folder, name)
    place.mkdir()
    generate_colabfold_msas(chains, place, url, search_templates=True)
    assert len(list(place.glob("*.aligned.pqt"))) == len(set(chains))
""",
    "protenix": """
from protenix.web_service.colab_request_utils import run_mmseqs2_service as run
call = dict(host_url=url, user_agent="helixfold", server_mode="colabfold")
records = [f">query_{number}\\n{sequence}" for number, sequence in enumerate(sequences)]
found["unpaired"], found["paired"] = [], []
for number, record in enumerate(records):
    place = run(record, f"{folder}/unpaired_{number}", use_env=True, **call)
    found["unpaired"].append(open(place + "/non_pairing.a3m").read())
run(records, folder + "/paired", use_pairing=True, pairing_strategy="greedy", **call)
for number in range(len(records)):
    found["paired"].append(open(f"{folder}/paired/{number}/pairing.a3m").read())
""",
}
_MODULES = {
    "colabfold": "colabfold.colabfold",
    "boltz": "boltz.data.msa.mmseqs2",
    "chai": "chai_lab.data.dataset.msas.colabfold",
    "protenix": "protenix.web_service.colab_request_utils",
}
PROGRAMS = tuple(_CALLS)


@dataclass(frozen=True)
class Expected:
    """Rows of each sequence that a search of the databases finds."""

    unpaired: list[Rows]
    paired: list[Rows]
    complete: list[Rows]


def is_there(python: str, program: str) -> bool:
    """Whether the client of a program can be imported in an environment."""
    words = [python, "-c", f"import {_MODULES[program]}"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def main(python: str, programs: list[str]) -> None:
    """Compare alignments of single sequences, and paired rows."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        databases = folder / "databases"
        databases.mkdir()
        made = Made(require_mmseqs(), databases)
        with serve_searches(folder / "service", databases) as server:
            for program in programs or PROGRAMS:
                compare(python, program, server.url, made, folder / program)
                print(f"{program}: its client gets the same alignments and pairs")


def compare(python: str, program: str, url: str, made: Made, folder: Path) -> None:
    """Compare what one program's client gets from a service with what a search of its databases finds."""
    folder.mkdir()
    sequences, wanted = [made.first, made.second], expected(made)
    words = [python, "-c", _BEGIN + _CALLS[program] + _END, json.dumps(sequences), url, str(folder)]
    run_program(words, timeout=600, directory=folder)
    found = json.loads((folder / "found.json").read_text())
    arrange = _without_names if program == "protenix" else list
    for kind in ("unpaired", "paired", "complete"):
        if kind in found:
            theirs = [arrange(rows(text)) for text in found[kind]]
            ours = [arrange(own) for own in getattr(wanted, kind)]
            assert theirs == ours, (program, kind)
    for text in found.get("homodimer", ()):
        assert rows(text)[0] == ("", made.first)


def expected(made: Made) -> Expected:
    """What a search of the databases finds for the two sequences that they are made for."""
    sequences = [made.first, made.second]
    paired, complete = (
        ColabfoldPairing(batch=made.batch, database=made.uniref, complete=complete).search(sequences)
        for complete in (False, True)
    )
    return Expected(
        unpaired=[rows(made.search.search(sequence).decode()) for sequence in sequences],
        paired=[rows(text.decode()) for text in paired],
        complete=[rows(text.decode()) for text in complete],
    )


def rows(text: str) -> Rows:
    """The rows of an a3m under the name of each hit; the target has no name, and is there once."""
    return list(dict.fromkeys(_rows(text)))


def _rows(text: str) -> Iterator[tuple[str, str]]:
    for record in text.split(">")[1:]:
        name, body = record.split("\n", 1)
        name = name.strip()
        is_target = name.isdigit() or name.startswith("query")
        yield "" if is_target else name, body.replace("\n", "")


def _without_names(found: Rows) -> list[str]:
    """Rows alone, in an order of their own: Protenix writes environmental ones first, and names pairs anew."""
    return sorted({row for _, row in found})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
