"""Distance restraints are read in AlphaLink's formats, and each wrong line is named."""

from pathlib import Path

import numpy as np
import pytest

from data_pipeline.io.errors import InputError
from data_pipeline.parse.restraints import BIN_EDGES, read_restraints

SEQUENCE = "MKTAYIAKQRQISFVKSHFSRQ"


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_contacts_have_the_probability_that_they_hold(tmp_path: Path) -> None:
    path = written(tmp_path / "links.txt", "# cross-links\n2 8 0.2\nK16,5\n\n20\t3\t0.5  # weak\n")
    found = read_restraints(path, SEQUENCE)
    assert found.kind == "contacts"
    np.testing.assert_array_equal(found.pairs, [[1, 7], [4, 15], [2, 19]])
    np.testing.assert_allclose(found.values, [[0.8], [0.95], [0.5]])


def test_distances_are_distributions_over_alphalinks_bins(tmp_path: Path) -> None:
    histogram = np.zeros(128)
    histogram[[0, 127]] = 3, 1
    lines = ["2,8,15,5,normal", "3 9 2.5 0.25 log-normal", "4 10 BS3", f"5 11 {' '.join(map(str, histogram))}"]
    found = read_restraints(written(tmp_path / "links.csv", "\n".join(lines)), SEQUENCE)
    assert found.kind == "distances"
    np.testing.assert_allclose(found.values.sum(1), 1, rtol=1e-6)
    # Samples of the same distributions, counted in the bins, as AlphaLink's script makes its distributions.
    rng, edges = np.random.default_rng(0), np.append(BIN_EDGES, np.inf)
    for row, sample in ((0, rng.normal(15, 5, 10**6)), (1, rng.lognormal(2.5, 0.25, 10**6))):
        counts = np.histogram(sample, edges)[0]
        np.testing.assert_allclose(found.values[row], counts / counts.sum(), atol=1e-3)
    assert found.values[2, BIN_EDGES >= 30].max() == 0
    assert np.ptp(found.values[2, BIN_EDGES < 29]) < 1e-6
    np.testing.assert_allclose(found.values[3, [0, 127]], [0.75, 0.25])


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("2", "'' is not a residue number; expected two residues"),
        ("2 x", "'x' is not a residue number"),
        ("2 23", "the chain has no residue 23; its residues are 1 to 22"),
        ("0 3", "the chain has no residue 0"),
        ("K2 M8", "residue 8 of the chain is K, not M"),
        ("2 2 0.1", "restrains a residue to itself"),
        ("8 1", "repeats a pair of residues"),
        ("2 8 1.5", "a false discovery rate is between 0 and 1, got 1.5"),
        ("2 8 15 5 gaussian", "the distribution must be one of normal, log-normal, uniform"),
        ("2 8 15 5", "contacts and distances cannot be combined in one file"),
        ("2 8 15 0", "expected a mean of at least 0 and a larger deviation or bound, got 15 0"),
        ("2 8 30 4 uniform", "expected a mean of at least 0 and a larger deviation or bound"),
        ("2 8 nan", "expected two residues and one of these"),
        ("2 8 0.1 0.2 0.3 0.4", "expected two residues and one of these"),
        (f"2 8 {' '.join(['0'] * 128)}", "probabilities of bins must be at least 0"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, problem: str) -> None:
    path = written(tmp_path / "links.txt", f"1 8\n{line}\n")
    with pytest.raises(InputError, match="line 2: ") as error:
        read_restraints(path, SEQUENCE)
    assert problem in str(error.value)
    with pytest.raises(InputError, match="has no restraints"):
        read_restraints(written(tmp_path / "empty.txt", "# nothing\n"), SEQUENCE)


def test_satisfied_restraints_are_counted(tmp_path: Path) -> None:
    positions = np.zeros((len(SEQUENCE), 3))
    positions[:, 0] = 4 * np.arange(len(SEQUENCE))  # Angstrom, a straight line
    contacts = read_restraints(written(tmp_path / "contacts.txt", "1 3\n1 4\n"), SEQUENCE)
    assert contacts.count_satisfied(positions) == 1
    # 12, 12 and 44 Angstrom: in the middle of the distribution, far below it, and in the open last bin.
    text = f"1 4 12 2\n2 5 30 2\n1 12 {'0 ' * 127}1\n3 14 DSS\n"
    distances = read_restraints(written(tmp_path / "distances.txt", text), SEQUENCE)
    assert distances.count_satisfied(positions) == 2
