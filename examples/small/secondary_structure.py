"""A small predictor of secondary structure from a sequence: what each residue and its neighbours say of its state."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from biotite import structure
from chains import CA, KnownChain
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy, embedding_bag

from data_pipeline.residues import THREE_LETTER

HELIX, STRAND, COIL = range(3)
_LETTERS = np.array(list("abc"))  # of biotite's states
_REACH = 8  # neighbours on each side
_BEYOND = 21  # a residue type of its own: beyond the ends of the chain
_TYPES = 22
_DECAY = 2e-5  # of squared weights, beside the mean loss of a residue
_ROUNDS = 40  # of L-BFGS; half as many give the same accuracy


def states(chain: KnownChain) -> Int[np.ndarray, " r"]:
    """The state of each residue by its C-alpha atoms (P-SEA, Labesse et al. 1997); -1 where there is none."""
    observed = np.flatnonzero(chain.mask[:, CA] > 0)
    atoms = structure.AtomArray(len(observed))
    atoms.coord = chain.positions[observed, CA].astype(np.float32)
    atoms.res_id = observed
    atoms.atom_name[:] = "CA"
    # Unknown residues are amino acids too.
    atoms.res_name = np.array([THREE_LETTER[kind] if kind < 20 else "ALA" for kind in chain.aatype[observed]])
    found = np.full(len(chain.aatype), -1)
    found[observed] = (structure.annotate_sse(atoms)[:, None] == _LETTERS).argmax(-1)
    return found


@dataclass(frozen=True, kw_only=True)
class SecondaryStructure:
    """Multinomial logistic regression on the residues of a window."""

    weights: Float[Tensor, "w 3"]  # of each type at each place

    @classmethod
    def fitted(cls, chains: Sequence[KnownChain]) -> "SecondaryStructure":
        """Learn from known structures. The problem has one solution, so nothing is drawn at random."""
        windows = torch.cat([_windows(chain.aatype) for chain in chains])
        truth = torch.from_numpy(np.concatenate([states(chain) for chain in chains]))
        windows, truth = windows[truth >= 0], truth[truth >= 0]
        weights = torch.zeros(_TYPES * (2 * _REACH + 1), 3, requires_grad=True)
        optimizer = torch.optim.LBFGS([weights], max_iter=_ROUNDS, history_size=20, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimizer.zero_grad()
            total = cross_entropy(_logits(windows, weights), truth) + _DECAY * weights.square().sum()
            total.backward()
            return total

        optimizer.step(loss)
        return cls(weights=weights.detach())

    def __call__(self, aatype: Int[np.ndarray, " r"]) -> Int[np.ndarray, " r"]:
        """The likeliest state of each residue."""
        found: np.ndarray = _logits(_windows(aatype), self.weights).argmax(-1).numpy()
        return found


def _windows(aatype: Int[np.ndarray, " r"]) -> Int[Tensor, "r w"]:
    """Rows of the weights that each residue's window asks for."""
    padded = np.pad(aatype.astype(np.int64), _REACH, constant_values=_BEYOND)
    places = np.lib.stride_tricks.sliding_window_view(padded, 2 * _REACH + 1)
    return torch.from_numpy(places + _TYPES * np.arange(2 * _REACH + 1))


def _logits(windows: Int[Tensor, "n w"], weights: Float[Tensor, "w 3"]) -> Float[Tensor, "n 3"]:
    return embedding_bag(windows, weights, mode="sum")
