"""Read distance restraints between residues of one chain, in AlphaLink's formats and by the name of a cross-linker.

`BIN_EDGES` are the lower edges (Å) of the 128 bins of distance distributions. `CROSSLINKERS` are the largest C-alpha
distances (Å) that a cross-linker bridges. `DEFAULT_RATE` is the false discovery rate of a contact without one.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from data_pipeline.io.config import RestraintKind
from data_pipeline.io.errors import InputError, choice_problem, printable
from data_pipeline.io.files import read_file

# Distance distributions of AlphaLink (Stahl et al. 2023): 127 bins of 0.3125 Angstrom, and one of all larger distances.
BIN_EDGES = 2.3125 + 0.3125 * np.arange(128)
# Largest distance of C-alpha atoms in Angstrom that a cross-linker bridges (Merkley et al. 2014).
CROSSLINKERS = {"DSS": 30.0, "BS3": 30.0}
# The false discovery rate of a contact without one, as in AlphaLink's program.
DEFAULT_RATE = 0.05
_DISTRIBUTIONS = ("normal", "log-normal", "uniform")
_MAX_BYTES = 2**26
_EXPECTED_FORMATS = (
    "expected two residues and one of these: nothing or a false discovery rate (a contact); "
    f"{' or '.join(CROSSLINKERS)}; a mean and a standard deviation in Angstrom; 128 probabilities"
)


@dataclass(frozen=True, kw_only=True)
class DistanceRestraints:
    """Restraints of residue pairs of one chain, each pair once.

    `values` are, for contacts, the probability that C-alpha atoms are within 10 Angstrom, and for distances the
    probabilities of the bins that start at `BIN_EDGES`. `pairs` are residue indices from 0, the smaller one first.
    """

    kind: RestraintKind
    pairs: Int[np.ndarray, "n 2"]  # residue indices from 0
    values: Float[np.ndarray, "n v"]

    def count_satisfied(self, positions: Float[np.ndarray, "r 3"]) -> int:
        """Return how many restraints a structure satisfies, from its C-alpha atoms in Angstrom.

        A contact is satisfied within 10 Angstrom, and a distance within the central 95 % of its distribution.
        """
        first, second = positions[self.pairs.T]
        ca_distances = np.linalg.norm(first - second, axis=-1)
        if self.kind == "contacts":
            return int((ca_distances <= 10).sum())
        cumulative = np.concatenate([np.zeros((len(self.pairs), 1)), self.values.cumsum(1)], 1)
        place = np.searchsorted(BIN_EDGES, ca_distances, side="right") - 1
        rows = np.arange(len(place))
        below, above = cumulative[rows, np.maximum(place, 0)], 1 - cumulative[rows, place + 1]
        return int(((below <= 0.975) & (above <= 0.975)).sum())


def read_restraints(path: Path, sequence: str) -> DistanceRestraints:
    """Read restraints of a chain with this sequence; all must be contacts, or all distances.

    A line has two residues, as numbers from 1 or with their letters (K48), and then a false discovery rate, a
    cross-linker, the mean and standard deviation of a distance (also "log-normal", of its logarithm, or "uniform", its
    bounds), or the probabilities of 128 bins. Columns are separated by spaces, tabs or commas; text after # is ignored.
    Raise `InputError` with the line of the first error.
    """
    values_of_pair: dict[tuple[int, int], np.ndarray] = {}
    for line_number, line in enumerate(read_file(path, _MAX_BYTES).decode(errors="replace").splitlines(), 1):
        words = line.split("#")[0].replace(",", " ").split()
        if not words:
            continue
        try:
            first, second = sorted(_residue(word, sequence) for word in [*words, "", ""][:2])
            values = _probabilities(words[2:])
            if first == second or (first, second) in values_of_pair:
                raise ValueError("restrains a residue to itself" if first == second else "repeats a pair of residues")
            if any(len(values) != len(others) for others in values_of_pair.values()):
                raise ValueError("contacts and distances cannot be combined in one file")
        except ValueError as error:
            raise InputError.at(path, str(error), line=line_number) from None
        values_of_pair[first, second] = values
    if not values_of_pair:
        raise InputError.at(path, f"has no restraints; {_EXPECTED_FORMATS}")
    values = np.stack(list(values_of_pair.values())).astype(np.float32)
    return DistanceRestraints(
        kind="contacts" if values.shape[1] == 1 else "distances", pairs=np.array(list(values_of_pair)), values=values
    )


def _residue(word: str, sequence: str) -> int:
    """Return the index of a residue that is named by its number, with or without its letter."""
    letter, digits = (word[:1].upper(), word[1:]) if word[:1].isalpha() else ("", word)
    if not digits.isascii() or not digits.isdigit():
        raise ValueError(f"'{printable(word)}' is not a residue number; {_EXPECTED_FORMATS}")
    residue_number = int(digits[:9])
    if not 1 <= residue_number <= len(sequence):
        raise ValueError(f"the chain has no residue {printable(digits)}; its residues are 1 to {len(sequence)}")
    if letter and letter != sequence[residue_number - 1]:
        raise ValueError(f"residue {residue_number} of the chain is {sequence[residue_number - 1]}, not {letter}")
    return residue_number - 1


def _probabilities(words: list[str]) -> Float[np.ndarray, "v"]:
    """Return the probability of each distance bin from the words of a restraint, with sum 1.

    With at most one number, a false discovery rate, return only the probability that the restraint holds.
    """
    if len(words) == 1 and words[0].upper() in CROSSLINKERS:
        words = ["0", str(CROSSLINKERS[words[0].upper()]), "uniform"]
    kind = words.pop() if len(words) == 3 else "normal"
    if kind not in _DISTRIBUTIONS:
        raise ValueError(f"the distribution {choice_problem(kind, _DISTRIBUTIONS)}")
    try:
        numbers = np.array(words, float)
    except ValueError:
        raise ValueError(_EXPECTED_FORMATS) from None
    if len(numbers) not in (0, 1, 2, len(BIN_EDGES)) or not np.isfinite(numbers).all():
        raise ValueError(_EXPECTED_FORMATS)
    if len(numbers) < 2:
        rate = numbers[0] if len(numbers) else DEFAULT_RATE
        if not 0 <= rate <= 1:
            raise ValueError(f"a false discovery rate is between 0 and 1, got {rate:g}")
        return np.array([1 - rate])
    if len(numbers) == 2:
        first, second = numbers
        if second <= (first if kind == "uniform" else 0) or (kind != "log-normal" and first < 0):
            raise ValueError(f"expected a mean of at least 0 and a larger deviation or bound, got {' '.join(words)}")
        numbers = np.diff(_cumulative(kind, first, second), append=1.0)
    if (numbers < 0).any() or numbers.sum() <= 0:
        raise ValueError("probabilities of bins must be at least 0, and their sum must be above 0")
    return numbers / numbers.sum()


def _cumulative(kind: str, first: float, second: float) -> Float[np.ndarray, "128"]:
    """Return the probability that a distance is below each edge of the bins."""
    if kind == "uniform":
        return ((BIN_EDGES - first) / (second - first)).clip(0, 1)
    from scipy.special import ndtr  # noqa: PLC0415  # takes long to import

    edges = np.log(BIN_EDGES) if kind == "log-normal" else BIN_EDGES
    return np.asarray(ndtr((edges - first) / second))
