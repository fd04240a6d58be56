"""Copy the best template of each target of a benchmark: what a model that reads templates must be better than.

    python examples/small/copy_templates.py collection/benchmarks/template.tsv --output copies
    helixfold evaluate copies/structures copies/references --output copies/evaluation

Writes one PDB file a target: the template's atoms where `helixfold predict --templates` aligns it to the target, and
nothing elsewhere; of residues of another type, backbone and C-beta. A target without such a template has no file. Known
structures are linked under the targets' names.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from collect import link
from ideal_chains import Backbone, as_protein, backbone_mask
from tqdm import tqdm

from data_pipeline.errors import InputError
from data_pipeline.features.sequence import aatype_from_sequence
from data_pipeline.files import atomic_write
from data_pipeline.protein import Protein
from data_pipeline.templates.from_files import UserTemplateOptions, templates_from_files
from helixfold.evaluation.benchmark_table import BenchmarkRow, read_benchmark
from helixfold.write.pdb import to_pdb


def copied_template(row: BenchmarkRow) -> tuple[Protein, str] | None:
    """Return the copy of a target's best template, and the template's name; None if there is none."""
    found = templates_from_files(row.sequence, row.templates, UserTemplateOptions(max_templates=1))
    if not found.used:
        return None
    aatype, templates = aatype_from_sequence(row.sequence), found.features
    mask = templates["template_all_atom_masks"][0]
    other = templates["template_aatype"][0] != aatype
    mask = np.where(other[:, None], mask * backbone_mask(aatype), mask).astype(np.float32)
    copy = Backbone(positions=templates["template_all_atom_positions"][0], mask=mask)
    return as_protein(aatype, copy), found.used[0].name


def copy_templates(table: Path, output: Path) -> tuple[int, int]:
    """Write the copies, and link the references; return the numbers of copies and of targets."""
    rows = read_benchmark(str(table)).rows
    made = 0
    for row in tqdm(rows, unit="target", disable=None):
        reference = Path(row.references[0])
        link(reference, output / "references" / f"{row.name}{''.join(reference.suffixes[-2:])}")
        if (copy := copied_template(row)) is None:
            continue
        protein, name = copy
        path = output / "structures" / f"{row.name}.pdb"
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            temporary.write_text(to_pdb(protein, [f"Copied from {name}."]), encoding="ascii")
        made += 1
    return made, len(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path, help="a benchmark with templates, as prepare.py writes it")
    parser.add_argument("--output", type=Path, default=Path("copies"))
    options = parser.parse_args()
    try:
        made, asked = copy_templates(options.table, options.output)
    except (InputError, OSError) as error:
        sys.exit(f"copy_templates.py: {error}")
    print(f"-> {options.output}: {made} of {asked} targets have a template")
