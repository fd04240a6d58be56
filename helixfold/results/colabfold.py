"""Write results under the names of ColabFold's files, for scripts that read them.

Names and contents are the same as `colabfold_batch` 1.6 writes, directly in the output directory. Everything comes from
the files in the target's directory, so errors are rounded to tenths of an Å as in those files.
"""

import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from data_pipeline.features.complexes.chain_sequences import CHAIN_SEPARATOR
from data_pipeline.features.complexes.feature_set import ComplexFeatureSet, TargetFeatures, alignment_of
from data_pipeline.io.files import system_errors_naming
from data_pipeline.parse.fasta import directory_name
from data_pipeline.residues import RESTYPES_WITH_X_AND_GAP
from helixfold import __version__
from helixfold.folding.prediction import Prediction
from helixfold.results.file_table import (
    COLABFOLD_ALIGNMENT,
    COLABFOLD_CONFIG,
    COLABFOLD_COVERAGE_PLOT,
    COLABFOLD_DONE,
    COLABFOLD_LOG,
    COLABFOLD_PAE,
    COLABFOLD_PAE_PLOT,
    COLABFOLD_PLDDT_PLOT,
    COLABFOLD_RELAXED,
    COLABFOLD_SCORES,
    COLABFOLD_UNRELAXED,
    COLABFOLD_WORKS,
    COVERAGE_PLOT,
    PAE,
    PAE_PLOT,
    PDB,
    PLDDT_PLOT,
    RELAXED,
    UNRELAXED,
)
from helixfold.results.prediction import all_notes, read_pae
from helixfold.results.works import WORKS
from helixfold.results.writing import to_json, write_file

# Our files, and the files under ColabFold's names that they are copied to.
_COPIED_STRUCTURES: Final = {UNRELAXED: COLABFOLD_UNRELAXED, RELAXED: COLABFOLD_RELAXED}
_COPIED_PLOTS: Final = {
    PLDDT_PLOT: COLABFOLD_PLDDT_PLOT,
    PAE_PLOT: COLABFOLD_PAE_PLOT,
    COVERAGE_PLOT: COLABFOLD_COVERAGE_PLOT,
}
_MODEL_PATTERN = re.compile(r"(model_[1-5])(_ptm|_multimer(?:_v[23])?)?")


def done_file(directory: Path) -> Path:
    """Return the path of `<target>.done.txt`, which marks a target as finished, next to the target's `directory`."""
    return COLABFOLD_DONE.path(directory.parent, target=directory_name(directory.name))


def model_type(model: str) -> str:
    """Return ColabFold's model type for a model, such as alphafold2_ptm; for unknown models, helixfold."""
    match = _MODEL_PATTERN.fullmatch(model)
    if match is None:
        return "helixfold"
    kind = match[2] or ""
    return f"alphafold2{kind}_v1" if kind == "_multimer" else f"alphafold2{kind}"


def write_colabfold(
    directory: Path,
    features: TargetFeatures,
    order: Sequence[Prediction],
    origins: Mapping[str, tuple[str, int]],
) -> None:
    """Write ColabFold's files for a target next to its directory: structures, scores, plots and alignment.

    Structures and plots are copies of files in the directory. Earlier structures and scores of the target are removed.
    Lines about the ranking are appended to log.txt. `order` has the predictions, the best first, and `origins` the
    model and seed of each prediction by name. The file that marks the target as finished is removed first and written
    last.
    """
    output, job = directory.parent, directory_name(directory.name)
    done_file(directory).unlink(missing_ok=True)
    for kind in (*_COPIED_STRUCTURES.values(), COLABFOLD_SCORES):
        for path, fields in kind.files(output):
            if fields["target"] == job and not path.is_dir():
                path.unlink()
    residues = len(features.sequence.replace(CHAIN_SEPARATOR, ""))
    metric = "plddt" if order[0].iptm is None else "multimer"
    lines = [f"Query: {job} (length {residues})", f"reranking models by '{metric}' metric"]
    for rank, prediction in enumerate(order, start=1):
        model, seed = origins[prediction.name]
        short_name = match[1] if (match := _MODEL_PATTERN.fullmatch(model)) is not None else model
        tag = f"{model_type(model)}_{short_name}_seed_{seed:03d}"
        for source, kind in _COPIED_STRUCTURES.items():
            copy = kind.path(output, target=job, rank=rank, tag=tag)
            _copy(source.path(directory, PDB, prediction=prediction.name), copy)
        scores = _scores(directory, prediction)
        write_file(COLABFOLD_SCORES.path(output, target=job, rank=rank, tag=tag), to_json(scores))
        if rank == 1 and "pae" in scores:
            pae = {"predicted_aligned_error": scores["pae"], "max_predicted_aligned_error": scores["max_pae"]}
            write_file(COLABFOLD_PAE.path(output, target=job), to_json(pae))
        ptm = "" if prediction.ptm is None else f" pTM={prediction.ptm:.3g}"
        ptm += "" if prediction.iptm is None else f" ipTM={prediction.iptm:.3g}"
        lines.append(f"rank_{rank:03d}_{tag} pLDDT={prediction.plddt.mean():.3g}{ptm}")
    for plot, kind in _COPIED_PLOTS.items():
        _copy(plot.path(directory), kind.path(output, target=job))
    write_file(COLABFOLD_ALIGNMENT.path(output, target=job), _a3m(features))
    write_log(output, *lines, *all_notes(order))
    write_file(done_file(directory), "")


def write_run(output: Path, config: Mapping[str, object], works: Sequence[str]) -> None:
    """Write config.json and cite.bibtex of a run, and append a line with helixfold's version to log.txt.

    `config` is the content of config.json, to which the version is added. `works` are keys of `WORKS` to cite.
    """
    write_file(COLABFOLD_CONFIG.path(output), to_json({**config, "version": f"helixfold {__version__}"}, indent=4))
    write_file(COLABFOLD_WORKS.path(output), "".join(WORKS[work].bibtex for work in works))
    write_log(output, f"Running helixfold {__version__}")


def write_log(output: Path, *lines: str) -> None:
    """Append lines of text to log.txt in the output directory, each after the current time.

    If log.txt is a link or not a plain file, it is replaced.
    """
    path = COLABFOLD_LOG.path(output)
    if path.is_symlink() or (path.exists() and not path.is_file()):
        path.unlink()  # Writing through a link would leave the output directory, and a pipe would wait for a reader.
    seconds = time.time()
    now = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(seconds))},{int(seconds % 1 * 1000):03d}"
    with system_errors_naming(path), path.open("a", encoding="utf-8") as file:
        file.write("".join(f"{now} {line}\n" for line in lines))


def _scores(directory: Path, prediction: Prediction) -> dict[str, Any]:
    """Return the content of a scores file, rounded like ColabFold's, with the prediction's notes if there are any."""
    scores: dict[str, Any] = {"plddt": np.around(prediction.plddt.astype(np.float64), 2).tolist()}
    if prediction.ptm is not None:
        errors, _ = read_pae(PAE.path(directory, prediction=prediction.name), len(prediction.plddt))
        pae = np.around(errors.astype(np.float64), 2)
        scores |= {"max_pae": float(pae.max()), "pae": pae.tolist(), "ptm": round(prediction.ptm, 2)}
    if prediction.iptm is not None:
        scores["iptm"] = round(prediction.iptm, 2)
    return scores | ({"notes": list(prediction.notes)} if prediction.notes else {})


def _a3m(features: TargetFeatures) -> str:
    """Return the alignment in a3m format, without names and insertions of rows, which the features do not have.

    For a complex, the columns of each distinct sequence appear once, side by side.
    """
    sequences, copies, msa = [features.sequence], [1], alignment_of(features).msa
    if isinstance(features, ComplexFeatureSet):
        counts = Counter(features.chain_sequences)
        sequences, copies = list(counts), list(counts.values())
        msa = msa[:, features.multimer.sym_id == 1]
    alphabet = np.frombuffer(RESTYPES_WITH_X_AND_GAP.encode(), np.uint8)
    rows = ["".join(sequences), *(alphabet[row].tobytes().decode() for row in msa[1:])]
    # The first row is named after the sequences, which ColabFold counts from 101.
    names = ["\t".join(str(101 + index) for index in range(len(sequences)))]
    names += [str(number) for number in range(101 + len(sequences), 100 + len(sequences) + len(rows))]
    records = (f">{name}\n{row}\n" for name, row in zip(names, rows, strict=True))
    return f"#{','.join(map(str, map(len, sequences)))}\t{','.join(map(str, copies))}\n{''.join(records)}"


def _copy(source: Path, target: Path) -> None:
    """Copy a file, or remove the copy if the file does not exist."""
    write_file(target, source.read_bytes() if source.is_file() else None)
