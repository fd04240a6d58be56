"""Write and read the files of a design: structure, scores, checks by other models, and the tables of all designs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType

from data_pipeline.parse.fasta import directory_name
from data_pipeline.parse.structures import read_structure
from data_pipeline.protein import Protein
from data_pipeline.structure import protein_from_chains
from helixfold import __version__
from helixfold.apps.design.check import CONTROLS, Agreement, Checked, strictest
from helixfold.apps.design.designer import Design
from helixfold.apps.design.task import DesignTask
from helixfold.report.designs import CheckLine, DesignLine, write_designs
from helixfold.report.files import read_record
from helixfold.results.file_table import DESIGN, DESIGN_CHECK, DESIGN_SCORES, MMCIF, PDB
from helixfold.results.json_object import JsonObject
from helixfold.results.mmcif import ModelScores, to_mmcif
from helixfold.results.pdb import to_pdb
from helixfold.results.writing import to_json, write_file


def write_design(
    directory: Path,
    task: DesignTask,
    design: Design,
    *,
    model: str,
    known_tm_score: float | None,
    notes: Sequence[str],
    more: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """Write a design's structure as PDB and mmCIF and then its scores as JSON, which mark the design as finished.

    `model` is the name of the designing model. `more` has additional entries of the JSON file.
    """
    protein = design.protein
    remark = f"Designed by helixfold {__version__} with {model}. The B-factor column holds pLDDT, 0 to 100."
    scores = ModelScores(plddt=design.plddt, ptm=design.ptm, iptm=design.iptm)
    text = to_mmcif(
        protein,
        name=f"{task.name} design_{design.number}",
        model=model,
        notes=[remark, *notes],
        scores=scores,
        chain_ids=design.chain_ids,
    )
    write_file(DESIGN.path(directory, MMCIF, index=design.number), text)
    write_file(
        DESIGN.path(directory, PDB, index=design.number), to_pdb(protein, [remark, *notes], chain_ids=design.chain_ids)
    )
    content = {
        "target": task.name,
        "protocol": task.protocol,
        "model": model,
        "sequences": design.sequences,
        "loss": design.loss,
        "losses": design.losses,
        "mean_plddt": float(design.plddt.mean()),
        "plddt": [round(value, 2) for value in design.plddt.tolist()],
        "ptm": design.ptm,
        "iptm": design.iptm,
        "known_tm_score": known_tm_score,
        "steps": design.trajectory.step,
        "loss_by_step": [round(each["loss"], 5) for each in design.trajectory.losses],
        "notes": list(notes),
        **more,
    }
    write_file(DESIGN_SCORES.path(directory, index=design.number), to_json(content, indent=1))


def read_design(directory: Path, number: int) -> tuple[dict[str, str], Protein]:
    """Read the sequences by chain and the structure of the finished design `number`.

    Raise `InputError` for missing or damaged files.
    """
    letters = JsonObject.read(DESIGN_SCORES.path(directory, index=number)).child("sequences")
    structure = read_structure(DESIGN.path(directory, MMCIF, index=number))
    return {name: letters.get(name, str) for name in letters.content}, protein_from_chains(structure.chains)


def write_check(directory: Path, number: int, checks: Sequence[Checked]) -> None:
    """Write the checks of the design `number` by other models as JSON, instead of all earlier ones."""
    content = [
        {
            "model": each.model,
            "digest": each.digest,
            **asdict(each.agreement),
            "ptm": each.ptm,
            "iptm": each.iptm,
            "rmsd": each.rmsd,
            "known_tm_score": each.known_tm_score,
            "controls": {kind: asdict(control) for kind, control in each.controls.items()},
            "beats_controls": each.beats_controls,
        }
        for each in checks
    ]
    write_file(DESIGN_CHECK.path(directory, index=number), to_json({"checks": content}, indent=1))


def read_checks(directory: Path, number: int) -> list[Checked]:
    """Read the checks of the design `number`; empty without a file. Raise `InputError` for a damaged file."""
    return [
        Checked(
            model=each.get("model", str),
            digest=each.get("digest", str),
            agreement=_agreement(each),
            ptm=each.optional_number("ptm"),
            iptm=each.optional_number("iptm"),
            rmsd=each.get("rmsd", float),
            known_tm_score=each.optional_number("known_tm_score"),
            controls={kind: _agreement(each.child("controls").child(kind)) for kind in CONTROLS},
        )
        for each in read_record(DESIGN_CHECK.path(directory, index=number)).children("checks")
    ]


def _agreement(record: JsonObject) -> Agreement:
    return Agreement(plddt=record.get("plddt", float), tm_score=record.get("tm_score", float))


def write_tables(output: Path, tasks: Sequence[DesignTask], failures: Mapping[str, str], designs: int) -> None:
    """Write designs.tsv, designs.fasta and designs.html of an output directory from the files of finished designs.

    The designs 0 to `designs` - 1 of each task are included. `failures` has the reasons of failed items.
    """
    lines = []
    for task in tasks:
        directory = output / directory_name(task.name)
        for number in range(designs):
            if DESIGN_SCORES.path(directory, index=number).is_file():
                lines.append(_line(directory, task, number))
    write_designs(output, lines, failures)


def _line(directory: Path, task: DesignTask, number: int) -> DesignLine:
    scores = JsonObject.read(DESIGN_SCORES.path(directory, index=number))
    checks = read_checks(directory, number)
    letters = scores.child("sequences")
    return DesignLine(
        target=task.name,
        directory=directory.name,
        number=number,
        protocol=task.protocol,
        sequences={name: letters.get(name, str) for name in letters.content},
        loss=scores.get("loss", float),
        losses={name: scores.child("losses").get(name, float) for name in scores.child("losses").content},
        mean_plddt=scores.get("mean_plddt", float),
        ptm=scores.optional_number("ptm"),
        iptm=scores.optional_number("iptm"),
        known_tm_score=scores.optional_number("known_tm_score"),
        loss_by_step=scores.list_of("loss_by_step", float),
        notes=scores.list_of("notes", str, []),
        check=_check_line(strictest(checks)) if checks else None,
    )


def _check_line(check: Checked) -> CheckLine:
    shuffled, random = (check.controls[kind] for kind in CONTROLS)
    return CheckLine(
        model=check.model,
        plddt=check.agreement.plddt,
        tm_score=check.agreement.tm_score,
        rmsd=check.rmsd,
        iptm=check.iptm,
        known_tm_score=check.known_tm_score,
        agreement=check.agreement.product,
        plddt_shuffled=shuffled.plddt,
        tm_score_shuffled=shuffled.tm_score,
        plddt_random=random.plddt,
        tm_score_random=random.tm_score,
        beats_controls="yes" if check.beats_controls else "no",
    )
