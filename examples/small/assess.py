"""How good a trained model is: folds chains that it was trained on and chains that it was not, beside four baselines.

    python examples/small/assess.py small.safetensors training_set held_out.txt --output assessment --processes 2

Everything is folded whole, on the alignment that the training set has of it, and scored as `helixfold evaluate` scores.
What is finished is not made again, so an assessment that was interrupted goes on, and baselines serve the next weights.

assessment/<method>/<chain>.pdb, .json   each structure, and its scores residue by residue
assessment/scores.tsv                    one line for each chain and method
assessment/summary.json                  means, differences and correlations with their intervals (summary.py)
"""

import argparse
import json
import multiprocessing
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from baselines import ALIGNMENT, NEAREST_CHAIN, SECONDARY_STRUCTURE, Baselines
from chains import Chains, KnownChain
from ideal_chains import Backbone, as_protein
from jaxtyping import Float
from nearest_chains import copied
from scoring import Score, score
from secondary_structure import states
from summary import MODEL, SHUFFLED, UNTRAINED, Row, scores_table, summarised
from tqdm import tqdm

from data_pipeline.errors import InputError
from data_pipeline.features.schema import Features
from data_pipeline.files import atomic_write
from data_pipeline.protein import Protein
from data_pipeline.residues import ATOM_ORDER
from helixfold.execution.slabs import Slabs
from helixfold.execution.stages import Stages
from helixfold.inference import FoldingOptions, fold
from helixfold.prediction import Prediction
from helixfold.weights.find import ReadyModel, find_models
from helixfold.weights.untrained import untrained_model
from helixfold.write.pdb import to_pdb

SOME_FAILED = 1
_SEED = 0
_BACKBONE = [ATOM_ORDER[name] for name in ("N", "CA", "C", "O")]


@dataclass(frozen=True, kw_only=True)
class Made:
    """A structure, and what is to be remembered of how it was made."""

    protein: Protein | None  # None where there is nothing to say
    plddt: Float[np.ndarray, "r"] | None = None  # 0 to 100
    about: dict[str, Any] = field(default_factory=dict)


class Bench:
    """Everything that one process folds and scores with, each part made when it is first needed."""

    def __init__(self, weights: Path, training_set: Path, held_out: Path, num_recycles: int | None) -> None:
        self._weights = weights
        self._chains = Chains.open(training_set, held_out)
        self._num_recycles = num_recycles
        self._makers: dict[str, Callable[[KnownChain], Made]] = {
            MODEL: lambda chain: self._folded(chain, self.model),
            UNTRAINED: lambda chain: self._folded(chain, self._untrained),
            SHUFFLED: self._shuffled,
            SECONDARY_STRUCTURE: self._ideal,
            NEAREST_CHAIN: self._nearest,
        }

    @cached_property
    def model(self) -> ReadyModel:
        (found,) = find_models((), self._weights, seed=_SEED)
        return found

    @cached_property
    def options(self) -> FoldingOptions:
        return FoldingOptions(num_recycles=self._num_recycles, seed=_SEED)

    @property
    def num_recycles(self) -> int:
        return self.options.recycles(self.model.preset)

    @cached_property
    def directories(self) -> dict[str, str]:
        """Where the results of each method lie: those of a network under what determines them."""
        settings = f"{self.num_recycles}_recycles"
        digest = self.model.digest[:12]
        return {
            SECONDARY_STRUCTURE: SECONDARY_STRUCTURE,
            NEAREST_CHAIN: NEAREST_CHAIN,
            MODEL: f"{MODEL}_{digest}_{settings}",
            UNTRAINED: f"{UNTRAINED}_{self.model.preset.name}_{settings}",
            SHUFFLED: f"{SHUFFLED}_{digest}_{settings}",
        }

    def carry_out(self, output: Path, method: str, name: str) -> None:
        """Make, score and keep one structure."""
        chain = self._chains.known(name)
        made = self._makers[method](chain)
        directory = output / self.directories[method]
        directory.mkdir(parents=True, exist_ok=True)
        if made.protein is not None:
            with atomic_write(directory / f"{name}.pdb") as temporary:
                temporary.write_text(to_pdb(made.protein, [f"{method} of {name}"]), encoding="ascii")
        # Written last, and says that all of it is there.
        with atomic_write(directory / f"{name}.json") as temporary:
            temporary.write_text(json.dumps({**made.about, "score": score(made.protein, chain, made.plddt).to_dict()}))

    @cached_property
    def _untrained(self) -> ReadyModel:
        preset = self.model.preset
        return ReadyModel(
            preset=preset, network=untrained_model(preset.model, _SEED), digest="", provenance="untrained"
        )

    @cached_property
    def _baselines(self) -> Baselines:
        return Baselines(self._chains)

    def _folded(self, chain: KnownChain, model: ReadyModel) -> Made:
        features, _ = self._chains.store.load(chain.name)
        found = self._of(model, features)
        atoms = Backbone(positions=found.protein.atom_positions, mask=found.protein.atom_mask)
        return Made(protein=as_protein(chain.aatype, atoms, found.protein.b_factors), plddt=found.plddt)

    def _of(self, model: ReadyModel, features: Features) -> Prediction:
        return fold(model.network, Slabs(), features, model.preset, self.options, stages=Stages())

    def _shuffled(self, chain: KnownChain) -> Made:
        """What the model makes of any chain of this length and composition: its backbone for another order."""
        features, _ = self._chains.store.load(chain.name)
        made = self._of(self.model, shuffled(features)).protein
        mask = np.zeros_like(made.atom_mask)
        mask[:, _BACKBONE] = made.atom_mask[:, _BACKBONE]
        return Made(protein=as_protein(chain.aatype, Backbone(positions=made.atom_positions, mask=mask)))

    def _ideal(self, chain: KnownChain) -> Made:
        true, said = states(chain), self._baselines.states(chain)
        about = {"states": int((true >= 0).sum()), "right": int((true == said)[true >= 0].sum())}
        return Made(protein=as_protein(chain.aatype, self._baselines.ideal(chain)), about=about)

    def _nearest(self, chain: KnownChain) -> Made:
        found = self._baselines.neighbour(chain)
        backbone = copied(chain.sequence, found, ALIGNMENT)
        about = {"neighbour": found.chain.name, "identity": round(found.identity, 4), "e_value": found.e_value}
        return Made(protein=as_protein(chain.aatype, backbone) if backbone.mask.any() else None, about=about)


def shuffled(features: Features) -> Features:
    """The same residues in another order, always the same one, and every row of the alignment with them."""
    order = np.random.default_rng(zlib.crc32(features.domain_name.encode())).permutation(len(features.sequence))
    return replace(
        features,
        sequence="".join(features.sequence[place] for place in order),
        aatype=features.aatype[order],
        msa=features.msa[:, order],
        deletion_matrix=features.deletion_matrix[:, order],
    )


_benches: list[Bench] = []  # of a process of the pool, its one


def _begin(threads: int, *place: Any) -> None:
    torch.set_num_threads(threads)
    _benches.append(Bench(*place))


def _one(output: Path, method: str, name: str) -> None:
    _benches[0].carry_out(output, method, name)


def _at_once(work: Callable[[], None]) -> "Future[None]":
    """As a pool would do it, here and now."""
    done: Future[None] = Future()
    try:
        done.set_result(work())
    except Exception as error:  # is raised again where the result is asked for
        done.set_exception(error)
    return done


def carried_out(
    bench: Bench, place: tuple[Any, ...], output: Path, missing: Sequence[tuple[str, str]], processes: int
) -> Iterator[tuple[tuple[str, str], "Future[None]"]]:
    """Each method and chain with what came of it, as they are finished."""
    if processes == 1 or len(missing) < 2:
        for method, name in missing:
            yield (method, name), _at_once(lambda method=method, name=name: bench.carry_out(output, method, name))
        return
    threads = max(1, (os.cpu_count() or 1) // processes)
    # Not forked: threads of a process that has computed already may hold locks.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=_begin, initargs=(threads, *place)) as pool:
        waiting = {pool.submit(_one, output, method, name): (method, name) for method, name in missing}
        for done in as_completed(waiting):
            yield waiting[done], done


def missing_of(output: Path, directories: dict[str, str], names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Methods and chains that are not there yet, method by method."""
    for method, directory in directories.items():
        for name in names:
            if not (output / directory / f"{name}.json").is_file():
                yield method, name


def assess(
    weights: Path,
    training_set: Path,
    held_out: Path,
    output: Path,
    *,
    processes: int = 1,
    everything: bool = False,
    num_recycles: int | None = None,
) -> int:
    """Make what is missing, and the tables of everything; 0, or 1 if a chain failed."""
    place = weights, training_set, held_out, num_recycles
    bench = Bench(*place)
    chains = Chains.open(training_set, held_out)
    sets = chains.scored(everything=everything)
    names = [name for some in sets.values() for name in sorted(some, key=lambda name: -chains.entries[name].length)]
    missing = list(missing_of(output, bench.directories, names))
    failures: dict[str, str] = {}
    work = carried_out(bench, place, output, missing, processes)
    for (method, name), done in tqdm(work, total=len(missing), unit="structure", disable=None):
        try:
            done.result()
        except (RuntimeError, MemoryError, OSError, ValueError) as error:
            failures[f"{name}, {method}"] = f"{type(error).__name__}: {error}"
    rows = [row for name in names for row in _rows(output, bench.directories, chains, sets, name)]
    about = {
        "model": {
            "name": bench.model.preset.name,
            "digest": bench.model.digest,
            "parameters": sum(each.numel() for each in bench.model.network.parameters()),
            "num_recycles": bench.num_recycles,
            "seed": _SEED,
        },
        "failures": failures,
    }
    output.mkdir(parents=True, exist_ok=True)
    with atomic_write(output / "scores.tsv") as temporary:
        temporary.write_text(scores_table(rows), encoding="utf-8")
    with atomic_write(output / "summary.json") as temporary:
        temporary.write_text(json.dumps({**about, **summarised(rows)}, indent=1), encoding="utf-8")
    for what, why in failures.items():
        print(f"{what}: {why}", file=sys.stderr)
    print(f"-> {output}/scores.tsv, {output}/summary.json")
    return SOME_FAILED if failures else 0


def _rows(
    output: Path, directories: dict[str, str], chains: Chains, sets: dict[str, tuple[str, ...]], name: str
) -> list[Row]:
    """One chain by all methods; nothing if one of them failed, so that all are about the same chains."""
    paths = {method: output / directory / f"{name}.json" for method, directory in directories.items()}
    if not all(path.is_file() for path in paths.values()):
        return []
    entry = chains.entries[name]
    (of_set,) = (key for key, some in sets.items() if name in some)
    rows = []
    for method, path in paths.items():
        about = json.loads(path.read_text(encoding="utf-8"))
        found = Score.from_dict(about.pop("score"))
        rows.append(Row(set=of_set, entry=entry, method=method, score=found, about=about))
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weights", type=Path)
    parser.add_argument("training_set", type=Path)
    parser.add_argument("held_out", type=Path, help="names of the chains that were not trained on")
    parser.add_argument("--output", type=Path, default=Path("assessment"))
    parser.add_argument("--processes", type=int, default=1, metavar="N")
    parser.add_argument("--all", action="store_true", help="every training chain, not a sample of 132 and the aligned")
    parser.add_argument("--num-recycles", type=int, metavar="N", help="passes after the first (as the weights say)")
    options = parser.parse_args()
    if options.processes < 1:
        sys.exit(f"assess.py: --processes must be at least 1, got {options.processes}")
    try:
        sys.exit(
            assess(
                options.weights,
                options.training_set,
                options.held_out,
                options.output,
                processes=options.processes,
                everything=options.all,
                num_recycles=options.num_recycles,
            )
        )
    except (InputError, OSError) as error:
        sys.exit(f"assess.py: {error}")
