"""Measure how many training examples are loaded per second from a feature store or files (`benchmark loader`)."""

import statistics
from dataclasses import replace
from pathlib import Path

from data_pipeline.features.labels import ChainLabels
from data_pipeline.features.monomer import monomer_features
from data_pipeline.features.schema import Features
from data_pipeline.io.errors import InputError, printable
from data_pipeline.parse.alignment import read_alignment
from data_pipeline.parse.structures import read_structure
from data_pipeline.sampling.training import initial_training
from data_pipeline.training_sets.chain_alignment import alignment_for_chain
from data_pipeline.training_sets.chains import chain_labels
from data_pipeline.training_sets.examples import ComplexDataset, TrainingDataset
from data_pipeline.training_sets.index import IndexEntry
from data_pipeline.training_sets.record_builder import chain_name
from data_pipeline.training_sets.source_files import AlignmentDirectory, SearchResults, find_structures
from data_pipeline.training_sets.store import FeatureStore
from helixfold.benchmark.options import LoaderOptions
from helixfold.execution.stages import mean_seconds
from helixfold.training.loader import TrainingLoader


class SourceFiles:
    """Chains of a store that are read from structure and alignment files each time, for comparison with the store.

    `entries` are the store's chains. Without `alignments`, features have no alignment besides the sequence.
    """

    def __init__(self, entries: tuple[IndexEntry, ...], structures: Path, alignments: Path | None) -> None:
        self.entries = entries
        self._paths = {path.name.partition(".")[0].lower(): path for path in find_structures(structures)}
        self._alignments = None if alignments is None else AlignmentDirectory(alignments)

    def load(self, name: str) -> tuple[Features, ChainLabels]:
        """Read a chain of the store from its files, and return its features, without templates, and its labels.

        Raise `InputError` if its structure file or the chain in it does not exist.
        """
        path = self._path(name)
        structure = read_structure(path)
        chain = next((chain for chain in structure.chains if chain_name(structure, chain.name, path) == name), None)
        if chain is None:
            raise InputError.at(path, f"it has no chain '{printable(name)}'")
        results = (self._alignments.find(name) if self._alignments else None) or SearchResults()
        sequence = chain.sequence
        rows = [
            alignment_for_chain(read_alignment(file.path, max_rows=file.max_rows), sequence, file.path)
            for file in results.alignments
        ]
        return monomer_features(name, sequence, rows), chain_labels(structure, chain)

    def _path(self, name: str) -> Path:
        for stem in (name, name.rpartition("_")[0]):
            if stem.lower() in self._paths:
                return self._paths[stem.lower()]
        raise InputError(f"chain '{printable(name)}' has no structure file; its name must begin with the chain's name")


def measure_loader(dataset: TrainingDataset, *, workers: int, steps: int, repeats: int) -> tuple[float, ...]:
    """Return the training examples per second in each of `repeats` measurements of `steps` steps.

    Some warm-up steps, until all workers run, are not counted.
    """
    warm_up = 4 * max(1, workers)
    batches = iter(TrainingLoader(dataset, first_step=0, last_step=warm_up + steps * repeats, workers=workers))
    for _ in range(warm_up):
        next(batches)
    return tuple(dataset.batch_size / mean_seconds(lambda: next(batches), steps) for _ in range(repeats))


def run(options: LoaderOptions) -> None:
    """Print the training examples per second from the store, from files (with --structures), and of assemblies.

    Each row has the median, minimum and maximum of the measurements. Assemblies are measured if the store has any.
    """
    store = FeatureStore.open(options.store)
    # Fixed shapes are off, because padding is done on the device and not by the loader.
    config = replace(initial_training(), crop_size=options.crop, fixed_shapes=False)
    datasets = {"store": TrainingDataset(store=store, config=config)}
    if options.structures is not None:
        source = SourceFiles(store.entries, options.structures, options.alignments)
        datasets["files"] = TrainingDataset(store=source, config=config)
    if store.assemblies:
        around_interfaces = replace(config, spatial_crop_probability=0.5)
        datasets["assemblies"] = ComplexDataset(store=store, config=around_interfaces)
    chains = f"{len(store.entries)} chains, {len(store.assemblies)} assemblies"
    print(f"{chains}, crop {options.crop}, {options.workers} workers, unpadded; examples/s")
    rates_by_source = {
        name: measure_loader(dataset, workers=options.workers, steps=options.steps, repeats=options.repeats)
        for name, dataset in datasets.items()
    }
    print(f"{'from':10} {'median':>8} {'min':>8} {'max':>8} {'of files':>9}")
    for name, rates in rates_by_source.items():
        median = statistics.median(rates)
        is_compared = "files" in rates_by_source and name != "assemblies"
        ratio = f"{median / statistics.median(rates_by_source['files']):8.1f}x" if is_compared else ""
        print(f"{name:10} {median:8.1f} {min(rates):8.1f} {max(rates):8.1f} {ratio:>9}")
