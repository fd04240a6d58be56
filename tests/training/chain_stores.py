"""Training sets of random chains on disk, for tests of runs that are commands."""

from pathlib import Path

from data_pipeline.training_sets.build_cache import content_key
from data_pipeline.training_sets.chain_record import encode_record
from data_pipeline.training_sets.index import write_index
from data_pipeline.training_sets.store import write_database
from tests.data_pipeline.training_sets.stored import entry, example


def write_chains(path: Path, count: int = 6) -> Path:
    """Write a training set of so many random chains, 0abc_A and so on, of 20 residues and more."""
    chains = {f"{number}abc_A": example(f"{number}abc_A", residues=20 + number, seed=number) for number in range(count)}
    records = {name: encode_record(content_key(name), *chain) for name, chain in chains.items()}
    database = sorted((content_key(name), record) for name, record in records.items())
    write_database(path / "features.lmdb", database, [len(record) for _, record in database])
    write_index(path / "index.tsv", [entry(name, content_key(name), length=20 + i) for i, name in enumerate(chains)])
    return path
