"""Copy the best template of each target of a benchmark: the baseline for models that read templates.

    python examples/small/copy_templates.py collection/benchmarks/template.tsv --output copies
    helixfold evaluate copies/structures copies/references --output copies/evaluation

Writes one PDB file per target, with the template's atoms where `helixfold predict --templates` aligns it to the target.
Aligned residues of another type only have backbone and C-beta. A target without such a template has no file. Known
structures are linked under the targets' names.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from manifest import link
from tqdm import tqdm

from data_pipeline.features.sequence import aatype_from_sequence
from data_pipeline.io.errors import InputError
from data_pipeline.io.files import atomic_write
from data_pipeline.protein import Protein
from data_pipeline.residues import ATOM37_MASK, ATOM_ORDER, UNKNOWN
from data_pipeline.templates.from_files import UserTemplateOptions, templates_from_files
from helixfold.apps.evaluate.benchmark_table import BenchmarkRow, read_benchmark
from helixfold.results.pdb import to_pdb

# Atoms of residues of all types, except that glycine has no C-beta.
_BACKBONE = [ATOM_ORDER[name] for name in ("N", "CA", "C", "O", "CB")]


def backbone_mask(aatype: Int[np.ndarray, "r"]) -> Float[np.ndarray, "r 37"]:
    """Return a mask of N, CA, C, O and C-beta where the residue type has them; unknown residues have no C-beta."""
    mask = np.zeros((*aatype.shape, 37), np.float32)
    mask[..., _BACKBONE] = np.where(
        (aatype == UNKNOWN)[..., None], [1, 1, 1, 1, 0], ATOM37_MASK[aatype][..., _BACKBONE]
    )
    return mask


def copied_template(row: BenchmarkRow) -> tuple[Protein, str] | None:
    """Return the copy of a target's best template, and the template's name; None if there is none."""
    hits = templates_from_files(row.sequence, row.templates, UserTemplateOptions(max_templates=1))
    if not hits.used:
        return None
    aatype, templates = aatype_from_sequence(row.sequence), hits.features
    mask = templates["template_all_atom_masks"][0]
    other = templates["template_aatype"][0] != aatype
    mask = np.where(other[:, None], mask * backbone_mask(aatype), mask).astype(np.float32)
    positions, there = templates["template_all_atom_positions"][0], mask > 0
    middle = positions[there].mean(0) if there.any() else 0
    copy = Protein(
        aatype=aatype,
        # Centred, because the position has no meaning and a PDB file has room for few digits.
        atom_positions=np.where(there[..., None], positions - middle, 0),
        atom_mask=mask,
        residue_index=np.arange(1, len(aatype) + 1),
        chain_index=np.zeros(len(aatype), np.int64),
        b_factors=np.zeros(mask.shape),
    )
    return copy, hits.used[0].name


def copy_templates(table: Path, output: Path) -> tuple[int, int]:
    """Write the copies, and link the references; return the numbers of copies and of targets."""
    rows = read_benchmark(str(table)).rows
    count = 0
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
        count += 1
    return count, len(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path, help="a benchmark with templates, as prepare.py writes it")
    parser.add_argument("--output", type=Path, default=Path("copies"))
    options = parser.parse_args()
    try:
        count, targets = copy_templates(options.table, options.output)
    except (InputError, OSError) as error:
        sys.exit(f"copy_templates.py: {error}")
    print(f"-> {options.output}: {count} of {targets} targets have a template")
