"""Read the proteins of AlphaFold 3's input files, and of the jobs of AlphaFold Server."""

from pathlib import Path
from typing import Any

from data_pipeline.features.complexes.chain_ids import MAX_CHAINS
from data_pipeline.features.complexes.target import ComplexTarget
from data_pipeline.io.errors import InputError, InputProblems, printable
from data_pipeline.io.json_files import read_json
from data_pipeline.parse.csv_table import table_record
from data_pipeline.parse.fasta import FastaRecord, target_name_problem

_EXPECTED_FILE = "expected an input file of AlphaFold 3 or AlphaFold Server"
# Keys of a protein that AlphaFold 2 cannot read, or that other options pass.
_REJECTED_KEYS = {
    "modifications": "modified residues cannot be predicted; remove them",
    "unpairedMsa": "pass its alignment with --msa",
    "unpairedMsaPath": "pass its alignment with --msa",
    "pairedMsa": "pass its alignment with --msa",
    "pairedMsaPath": "pass its alignment with --msa",
    "templates": "pass its templates with --templates",
}


def read_alphafold3_targets(path: Path, problems: InputProblems) -> list[FastaRecord | ComplexTarget]:
    """Return the targets of a file: one input of AlphaFold 3, or the list of jobs of AlphaFold Server.

    A job of one chain is a `FastaRecord`, and its chain ID is dropped; other jobs are a `ComplexTarget`. Seeds are not
    read. Raise `InputError` for a file of another form. Jobs with an invalid name or sequence, molecules other than
    proteins, modified residues, or alignments and templates of their own are left out and added to `problems`.
    """
    content = read_json(path, _EXPECTED_FILE)
    targets: list[FastaRecord | ComplexTarget] = []
    for job in content if isinstance(content, list) else [content]:
        if not isinstance(job, dict) or not isinstance(job.get("sequences"), list) or not job["sequences"]:
            raise InputError.at(path, f"a job has no list of sequences; {_EXPECTED_FILE}")
        name = str(job.get("name", ""))
        with problems.collected(name):
            targets.append(_target(path, name, job["sequences"]))
    return targets


def _target(path: Path, name: str, entities: list[Any]) -> FastaRecord | ComplexTarget:
    """Return the target `name` of the entities of a job: a record if it has one chain, else a complex."""
    if (problem := target_name_problem(name)) is not None:
        raise InputError.at(path, problem, record=name or None)
    sequences: list[str] = []
    ids: list[str] = []
    for entity in entities:
        kind, protein = next(iter(entity.items())) if isinstance(entity, dict) and entity else ("nothing", None)
        if kind not in ("protein", "proteinChain") or not isinstance(protein, dict):
            raise InputError.at(path, f"has '{printable(str(kind))}'; only proteins can be predicted", record=name)
        for key, problem in _REJECTED_KEYS.items():
            if protein.get(key):
                raise InputError.at(path, f"a protein has {key}; {problem}", record=name)
        record = table_record(path, 1, name, str(protein.get("sequence", "")))
        chains = protein.get("id", [])
        chains = [chains] if isinstance(chains, str) else chains
        count = protein.get("count", len(chains) or 1) if isinstance(chains, list) else None
        if not isinstance(chains, list) or not isinstance(count, int) or not 1 <= count <= MAX_CHAINS:
            raise InputError.at(path, "a protein needs an id, a list of ids, or a count", record=name)
        sequences += [record.sequence] * count
        ids += map(str, chains)
    if len(sequences) == 1:
        return FastaRecord(name=name, description="", sequence=sequences[0], line=1)
    return ComplexTarget.of(name, sequences, ids)
