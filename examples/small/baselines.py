"""Structures that ask no trained network, of chains of a training set: what the small model must be better than.

    python examples/small/baselines.py training_set held_out.txt --output baselines
    python examples/small/baselines.py training_set held_out.txt --choose

Each is a PDB file, `baselines/<baseline>/<chain>.pdb`, and none has seen the structure that it is about:

secondary_structure   ideal helices, strands and coil, as a predictor that learnt from the training chains says
nearest_chain         the training chain that is nearest by sequence, copied for the residues that align with it

The third baseline, the untrained network, is folded as the trained one is, by assess.py. With --choose, what is open in
the two is tried on training chains: the angles, and how the nearest chain is aligned.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import cached_property
from itertools import product
from pathlib import Path

import numpy as np
from chains import CA, Chains, KnownChain, part_of, without_cluster
from ideal_chains import Angles, Backbone, as_protein, ideal_chains
from nearest_chains import Neighbour, copied, nearest
from scoring import score
from secondary_structure import SecondaryStructure, states
from tqdm import tqdm

from data_pipeline.errors import InputError
from data_pipeline.files import atomic_write
from helixfold.analysis import metrics
from helixfold.write.pdb import to_pdb

SECONDARY_STRUCTURE, NEAREST_CHAIN = "secondary_structure", "nearest_chain"
# The best of those that --choose tries.
ANGLES: Angles = ((-63.0, -42.0), (-100.0, 120.0), (-110.0, -60.0))
ALIGNMENT = "whole"
PARTS = 4  # of the training chains; those of one are predicted by what learnt from the others
_TRIED = 120  # training chains that --choose tries everything on
_COIL_PHI, _COIL_PSI = (
    (-75.0, -90.0, -100.0, -110.0, -120.0, -130.0, -140.0),
    (-90.0, -75.0, -60.0, -45.0, -30.0, 145.0),
)
_HELIX = ((-57.0, -47.0), (-63.0, -42.0), (-65.0, -40.0), (-70.0, -35.0))
_STRAND = ((-120.0, 130.0), (-110.0, 130.0), (-100.0, 120.0), (-90.0, 110.0), (-80.0, 100.0), (-100.0, 100.0))


class Baselines:
    """What can be said of a chain by what others are known to be."""

    def __init__(self, chains: Chains) -> None:
        self._chains = chains
        self._predictors: dict[int | None, SecondaryStructure] = {}

    @cached_property
    def _held_out(self) -> frozenset[str]:
        return frozenset(self._chains.held_out)

    def states(self, chain: KnownChain) -> np.ndarray:
        """Predicted secondary structure: by all training chains, or for one of these by those of other parts."""
        part = None if chain.name in self._held_out else part_of(chain.cluster, PARTS)
        if part not in self._predictors:
            learnt = [
                each for each in self._chains.training_chains if part is None or part_of(each.cluster, PARTS) != part
            ]
            self._predictors[part] = SecondaryStructure.fitted(learnt)
        return self._predictors[part](chain.aatype)

    def ideal(self, chain: KnownChain) -> Backbone:
        return ideal_chains([chain.aatype], [self.states(chain)], ANGLES)[0]

    def neighbour(self, chain: KnownChain) -> Neighbour:
        return nearest(chain.sequence, without_cluster(self._chains.training_chains, chain.cluster))


def write(output: Path, names: Sequence[str], chains: Chains) -> None:
    """Both baselines of each chain."""
    baselines = Baselines(chains)
    for name in tqdm(names, unit="chain", disable=None):
        chain = chains.known(name)
        neighbour = baselines.neighbour(chain)
        for kind, backbone, remark in (
            (SECONDARY_STRUCTURE, baselines.ideal(chain), "Ideal helices, strands and coil by predicted states."),
            (NEAREST_CHAIN, copied(chain.sequence, neighbour, ALIGNMENT), f"Copied from {neighbour.chain.name}."),
        ):
            # Two sequences without a residue in common leave nothing to write.
            if backbone.mask.any():
                (output / kind).mkdir(parents=True, exist_ok=True)
                with atomic_write(output / kind / f"{name}.pdb") as temporary:
                    temporary.write_text(to_pdb(as_protein(chain.aatype, backbone), [remark]), encoding="ascii")


def choose(chains: Chains, seed: int = 0) -> None:
    """Try angles one after the other, and both alignments, on training chains that are predicted by the others."""
    names = np.random.default_rng(seed).choice(chains.trained, min(_TRIED, len(chains.trained)), replace=False)
    tried = [chains.known(name) for name in names.tolist()]
    baselines = Baselines(chains)
    predicted = [baselines.states(chain) for chain in tried]
    right = np.concatenate(
        [(said == states(chain))[states(chain) >= 0] for said, chain in zip(predicted, tried, strict=True)]
    )
    print(f"secondary structure: {right.mean():.3f} of the residues of {len(tried)} training chains are right")
    angles = ANGLES
    options = ([*product(_COIL_PHI, _COIL_PSI)], _HELIX, _STRAND)
    for state, these in zip((2, 0, 1), options, strict=True):
        found = {}
        for option in these:
            trial = (*angles[:state], option, *angles[state + 1 :])
            built = ideal_chains([chain.aatype for chain in tried], predicted, trial)
            found[trial] = float(np.mean([_lddt(one, chain) for one, chain in zip(built, tried, strict=True)]))
            print(f"{trial}: mean CA-lDDT {found[trial]:.4f}", flush=True)
        angles = max(found, key=lambda trial: found[trial])
    print(f"best angles: {angles}")
    neighbours = [baselines.neighbour(chain) for chain in tried]
    for alignment in ("local", "whole"):
        copies = [copied(chain.sequence, each, alignment) for chain, each in zip(tried, neighbours, strict=True)]
        scores = [score(as_protein(chain.aatype, copy), chain) for chain, copy in zip(tried, copies, strict=True)]
        print(f"nearest chain, {alignment} alignment: mean CA-lDDT {np.mean([each.lddt_ca for each in scores]):.4f}")


def _lddt(built: Backbone, chain: KnownChain) -> float:
    there = chain.mask[:, CA] > 0
    return metrics.lddt(built.positions[there, CA], chain.positions[there, CA], np.flatnonzero(there))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("training_set", type=Path)
    parser.add_argument("held_out", type=Path, help="names of the chains that nothing was learnt from")
    parser.add_argument("--chains", type=Path, help="names of the chains to predict (those that were held out)")
    parser.add_argument("--output", type=Path, default=Path("baselines"))
    parser.add_argument("--choose", action="store_true", help="try what is open on training chains; writes nothing")
    options = parser.parse_args()
    try:
        collection = Chains.open(options.training_set, options.held_out)
        if options.choose:
            choose(collection)
        else:
            asked = Chains.open(options.training_set, options.chains or options.held_out).held_out
            write(options.output, asked, collection)
    except (InputError, OSError) as error:
        sys.exit(f"baselines.py: {error}")
