"""Bad inputs: which of the cases of tests/bad_input the inventory repeats, and others that need earlier runs."""

import contextlib
import re
import shlex
from pathlib import Path

from tests.bad_input.alignments import ALIGNMENTS
from tests.bad_input.arrays import ARRAYS
from tests.bad_input.case import Case, bad, lay_out
from tests.bad_input.complexes import COMPLEXES
from tests.bad_input.meeting import contents
from tests.bad_input.options import OPTIONS
from tests.bad_input.sequences import SEQUENCES
from tests.bad_input.training import TRAINING
from tests.inventory.commands import run_command
from tests.inventory.digest import Digest

FASTA = b">t\nMKTAYIAKQR\n"
_MADE = SEQUENCES | COMPLEXES | ALIGNMENTS | ARRAYS | OPTIONS | TRAINING
# The first arrays that are made there, whatever their names are.
CHOSEN = (
    *("an empty file", "no header", "an illegal letter", "a stop codon within", "DNA", "two records of one name"),
    *("UTF-16 text", "a PDB file", "gzip that was cut", "a name that climbs", "a file of the output directory"),
    *("equal names in two files", "nothing but unknown residues", "a table without a column", "a row with too few"),
    *("a table with a wrong letter", "a file that is not there", "no input at all", "an empty directory"),
    *("a pipe that nobody writes to", "a file as output directory", "a link to itself"),
    *("an empty chain", "no copies", "names for some of the chains", "no alignment for a chain"),
    *("unequal numbers of paired rows", "a ColabFold alignment that is shorter"),
    *("an empty alignment", "an alignment for another target", "rows of two lengths", "Stockholm that was cut"),
    *("a profile that is no TOML", "a profile with an unknown key", "a profile with an unknown tool"),
    *("an empty mmCIF file", "PDB with coordinates that are none", "a server that is no address"),
    *("an unknown command", "no command", "an unknown option", "an option without its value"),
    *("recycles below nothing", "a seed beyond all", "an unknown model", "a model without parameters"),
    *("devices that cannot be divided", "memory without a unit", "an unknown executor", "databases twice"),
    *("a part beyond the last", "features of nothing", "training on an empty directory", "an unknown setting"),
    *("a setting of the wrong kind", "an unknown preset", "alignments that are not there", "nothing to evaluate"),
    *("garbage to relax", "two structures of one name to score", "a position that is not there"),
    *("a report on an empty directory", *[*ARRAYS][:4]),
)
OWN = {
    "a cluster's file with an unknown key": bad(
        "predict x.fasta --cluster s.toml", {"x.fasta": FASTA, "s.toml": b"[fold.a]\nmemory = '2GiB'\nsize = 1\n"}
    ),
    "a job without a training set": bad("finetune --jobs j.toml --output o", {"j.toml": b"[[job]]\nname = 'a'\n"}),
    "an initial guess that is not there": bad("predict x.fasta --initial-guess g.pdb", {"x.fasta": FASTA}),
    "a ring of an unknown chain": bad("predict x.fasta --cyclic Z --models tiny", {"x.fasta": FASTA}),
    "a hotspot that is not there": bad("design binder x.pdb --length 5 --hotspots A9", {"x.pdb": b"garbage\n"}),
    "weights that are cut": bad("weights inspect w.npz", {"w.npz": b"PK\x03\x04"}),
    "a token of nobody": bad("submit x.fasta --server http://127.0.0.1:9", {"x.fasta": FASTA}),
    "a comparison with nothing": bad("compare a b", {}),
    "a training to submit without its pool": bad(
        "train d --output run --cluster s.toml", {"s.toml": b"[search]\n", "d/x": b""}
    ),
}
BAD_INPUTS: dict[str, Case] = {name: _MADE[name] for name in CHOSEN} | OWN


def meet(name: str, root: Path) -> Digest:
    """Return the exit code of a bad input, how many lines went to each stream, and which files, options and positions
    the error names; whether the folder changed.
    """
    case, folder = BAD_INPUTS[name], root / f"bad input {[*BAD_INPUTS].index(name)}"
    folder.mkdir()
    lay_out(folder, case.files)
    words = shlex.split(case.command)
    if words[:1] in (["predict"], ["features"]) and "--output" not in words:
        words += ["--output", "out"]
    before = contents(folder)
    code, out, errors = run_command(words, folder)
    with contextlib.suppress(OSError):
        (root / "home/bad_inputs.printed").open("a").write(f"{name}: {errors}")
    named = [*case.files, *(word.partition("=")[0] for word in words[1:] if not word.startswith("\0"))]
    places = re.findall(r"\b(?:line|column|record|residue|chain|letter|position) '?[A-Z]?\d+\b", errors)
    return {
        "exit": code,
        "stdout": len(out.splitlines()),
        "stderr": len(errors.splitlines()),
        "names": [*sorted({each for each in named if len(each) > 1 and each in errors}), *places],
        "changes files": contents(folder) != before,
    }
