"""The type of a prediction of one target (a chain or a complex) by one model, in memory and as read from files."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Union

import numpy as np
from jaxtyping import Float

from data_pipeline._deprecated import warn
from data_pipeline.features.complexes.chain_ids import check_chain_ids
from data_pipeline.features.complexes.feature_set import TargetFeatures, alignment_of
from data_pipeline.protein import Protein
from data_pipeline.structure import Chain, Structure, chains_of_protein, protein_from_chains
from helixfold.folding.provenance import Provenance
from helixfold.runtime.options import RepresentationName
from helixfold.weights.provenance import WEIGHTS_PROVENANCES, WeightsProvenance

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from helixfold.analysis.complexes import ComplexComparison
    from helixfold.analysis.scores import Scores

# A reference structure to compare a prediction with.
Reference = Union["Prediction", Structure, Protein, str, Path]
# Valid names of predictions, which are parts of file names.
_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
STRUCTURE_KINDS: Final = ("cif", "pdb")  # formats of structure files
Coloring = Literal["plddt", "chain", "rainbow"]  # of a structure that is shown


@dataclass(frozen=True, kw_only=True)
class ConfidenceBand:
    """A range of pLDDT, from `min_plddt` up to the next band, with its letter, name and colour in AlphaFold DB."""

    min_plddt: float
    letter: str
    name: str
    color: str


CONFIDENCE_BANDS: Final = (
    ConfidenceBand(min_plddt=90, letter="H", name="very high", color="#0053D6"),
    ConfidenceBand(min_plddt=70, letter="M", name="confident", color="#65CBF3"),
    ConfidenceBand(min_plddt=50, letter="L", name="low", color="#FFDB13"),
    ConfidenceBand(min_plddt=0, letter="D", name="very low", color="#FF7D45"),
)


@dataclass(frozen=True, kw_only=True)
class Distances:
    """Distances between pseudo-beta atoms (C-beta, or C-alpha of glycine) according to the distogram.

    `expected` is in Å, and 21.8 for distances above 21.7. `contact` is the probability, 0 to 1, of a distance below 8
    Å.
    """

    expected: Float[np.ndarray, "r r"]
    contact: Float[np.ndarray, "r r"]

    def __post_init__(self) -> None:
        if self.contact.shape != self.expected.shape:
            raise ValueError(
                f"expected and contact must have one shape, got {self.expected.shape}, {self.contact.shape}"
            )
        if not (self.expected.min() >= 0 and np.isfinite(self.expected.max())):
            raise ValueError("expected distances must be finite and at least 0")
        if not (self.contact.min() >= 0 and self.contact.max() <= 1 + 1e-3):
            raise ValueError(f"contact must be 0 to 1, got {self.contact.min()} to {self.contact.max()}")


@dataclass(frozen=True, kw_only=True)
class PredictionIdentity:
    """Identity of a prediction of a target: model, parameters, seed, and variant of the alignment.

    `weights` is the digest of the parameters. `alignment` describes the variant; "" is the whole alignment.
    """

    model: str
    seed: int = 0
    weights: str = ""
    weights_provenance: WeightsProvenance = "untrained"
    alignment: str = ""

    @property
    def key(self) -> tuple[str, int, str]:
        """Return a key that is unique among the predictions of a target, without the parameters."""
        return self.model, self.seed, self.alignment

    def to_dict(self) -> dict[str, Any]:
        """Return the entry for settings.json, in which `weights_provenance` is called `standing`.

        An empty `alignment` is left out.
        """
        return {
            "model": self.model,
            "seed": self.seed,
            **({"alignment": self.alignment} if self.alignment else {}),
            "weights": self.weights,
            "standing": self.weights_provenance,
        }

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> "PredictionIdentity":
        """Read an entry of settings.json; raise KeyError, TypeError or ValueError if it is damaged."""
        return cls(
            model=str(entry["model"]),
            seed=int(entry["seed"]),
            weights=str(entry["weights"]),
            weights_provenance=WEIGHTS_PROVENANCES[WEIGHTS_PROVENANCES.index(entry["standing"])],
            alignment=str(entry.get("alignment", "")),
        )


@dataclass(frozen=True, kw_only=True)
class Part:
    """A chain or a domain of a prediction: its residues and its confidence.

    `ranges` are the first and last residue numbers of its pieces, and `chains` the chain of each piece; `chains` is
    empty if the target is a single chain. `residues` is the number of residues. `measures` are further scores by name:
    pTM of a chain, mean PAE (Å) of a domain.
    """

    name: str
    ranges: tuple[tuple[int, int], ...]
    chains: tuple[str, ...]
    residues: int
    mean_plddt: float  # 0 to 100
    measures: tuple[tuple[str, float], ...]


@dataclass(frozen=True, kw_only=True)
class ChainPair:
    """The interface of two chains of a prediction with its scores; None is a score that the file lacks.

    `contacts` is the number of residue pairs in contact. `scores` are by name, in the order of a table's columns.
    """

    chains: tuple[str, str]
    contacts: int
    scores: tuple[tuple[str, float | None], ...]


@dataclass(frozen=True, kw_only=True)
class ConfidenceSummary:
    """Content of a prediction's confidence file about its chains, domains and alignment, besides the scores.

    `target` is the name of the target in the input file. Residue numbers start again in each chain. `depth` is the
    number of MSA rows with a residue at each position. `rows` is the number of all MSA rows, and `effective_rows` their
    number weighted by similarity; None if the file lacks it.
    """

    target: str
    mean_plddt: float  # 0 to 100
    residue_numbers: tuple[int, ...]
    chains: tuple[Part, ...] = ()
    chain_pairs: tuple[ChainPair, ...] = ()
    domains: tuple[Part, ...] = ()
    depth: tuple[float, ...] = ()
    rows: int | None = None
    effective_rows: float | None = None


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A prediction of one target (a chain or a complex) by one model, without padding.

    `helixfold.predict` returns predictions, and `helixfold.load_results` reads them from files.
    `helixfold.results.confidence.read_prediction` reads scores and a summary only: the structure, PAE, distances and
    optional outputs are then None.

    `name` is part of file names. `kinds` are the formats in which the structure can be written: without "pdb" if that
    format cannot hold it. `features` has the MSA and templates of the target. `program` is the name of the prediction
    program, and `file` the structure file that the prediction was read from. `measurements` are for timings.json, such
    as peaks of memory.
    """

    name: str  # such as model_1_ptm, or model_1_ptm_seed_3 if there are several seeds
    identity: PredictionIdentity
    provenance: Provenance | None = None
    plddt: Float[np.ndarray, "r"]  # 0 to 100
    ptm: float | None = None  # 0 to 1; None if the model does not predict aligned errors
    iptm: float | None = None  # 0 to 1; complexes only
    tm_by_chain: Float[np.ndarray, "k k"] | None = None  # complexes only, see `chain_tm.TmScores`
    # Mean pLDDT (0 to 100). With predicted aligned errors: 0.8 ipTM + 0.2 pTM (0 to 1) of a complex, and pTM of a
    # single chain by a multimer model.
    ranking_confidence: float
    num_recycles: int  # iterations after the first; -1 if unknown, in results of other programs
    converged: bool  # whether distances changed by less than the tolerance in the last iteration
    notes: tuple[str, ...] = ()  # warnings for readers of the files, for example that parameters are untrained
    chain_ids: tuple[str, ...] = ("A",)  # names of the chains; `protein.chain_index` is an index into them
    structure: Protein | None = None  # with pLDDT as B-factors
    pae: Float[np.ndarray, "r r"] | None = None  # Å: error of residue j when aligned on residue i
    max_pae: float | None = None  # Å, upper limit of PAE values
    distances: Distances | None = None
    logits: Mapping[str, np.ndarray] | None = None  # by head, with `FoldingOptions.logits`
    representations: Mapping[RepresentationName, np.ndarray] | None = None  # named by `FoldingOptions.representations`
    recycling_iterations: tuple[Protein, ...] | None = None  # structures, with `FoldingOptions.save_passes`
    # Representations of the iterations before the last, with `FoldingOptions.save_passes`.
    pass_representations: tuple[Mapping[RepresentationName, np.ndarray], ...] = ()
    measurements: Mapping[str, object] = field(default_factory=dict)
    summary: ConfidenceSummary | None = None  # only of predictions read from files
    kinds: tuple[str, ...] = STRUCTURE_KINDS
    features: TargetFeatures | None = None
    program: str = "helixfold"
    file: Path | None = None

    @property
    def protein(self) -> Protein:
        """Return the predicted structure; raise ValueError if only the scores were read."""
        if self.structure is None:
            raise ValueError(f"only the scores of {self.name} were read from its files, not the structure")
        return self.structure

    @property
    def coordinates(self) -> Float[np.ndarray, "r 37 3"]:
        """Return the atom positions (Å), with NaN for atoms that a residue lacks.

        Atoms are in the order of `data_pipeline.residues.ATOM_TYPES`, which begins with N, CA, C and CB.
        """
        return np.where(self.protein.atom_mask[..., None] > 0.5, self.protein.atom_positions, np.nan)

    @property
    def passes(self) -> tuple[Protein, ...] | None:
        """Deprecated: structures of the iterations before the last; use `recycling_iterations`, which has all.

        None if the iterations were not saved.
        """
        warn("Prediction.passes", "Prediction.recycling_iterations[:-1]")
        return None if self.recycling_iterations is None else self.recycling_iterations[:-1]

    @property
    def model(self) -> str:
        """Return the model's name."""
        return self.identity.model

    @property
    def seed(self) -> int:
        """Return the random seed."""
        return self.identity.seed

    @property
    def residue_numbers(self) -> tuple[int, ...]:
        """Return the residue numbers, which start again in each chain; empty without a structure or summary."""
        if self.structure is None:
            return () if self.summary is None else self.summary.residue_numbers
        return tuple(self.structure.residue_index.tolist())

    @property
    def mean_plddt(self) -> float:
        """Return the mean pLDDT, 0 to 100; rounded if the prediction was read from files."""
        return self.summary.mean_plddt if self.summary is not None else float(self.plddt.mean(dtype=np.float64))

    def __post_init__(self) -> None:
        if not _NAME_PATTERN.fullmatch(self.name):
            raise ValueError(
                f"name is part of file names: at most 100 letters, digits, '_', '-' and '.', got {self.name!r}"
            )
        length = len(self.plddt)
        check_chain_ids(self.chain_ids, len(self.chain_ids))
        if self.structure is not None:
            length, chain_indices = len(self.structure.aatype), np.unique(self.structure.chain_index)
            if not np.array_equal(chain_indices, np.arange(len(self.chain_ids))):
                raise ValueError(
                    f"chain_index must number each of {len(self.chain_ids)} chains from 0, got {chain_indices.tolist()}"
                )
        if self.plddt.shape != (length,):
            raise ValueError(f"plddt must have one value for each of {length} residues, got shape {self.plddt.shape}")
        if not ((self.plddt >= 0) & (self.plddt <= 100)).all():
            raise ValueError(f"plddt must be 0 to 100, got {self.plddt.min()} to {self.plddt.max()}")
        self._check_arrays(length)
        chains = len(self.chain_ids)
        if self.tm_by_chain is not None and (chains < 2 or self.tm_by_chain.shape != (chains, chains)):
            raise ValueError(
                f"tm_by_chain must have a score for each pair of two or more chains, got shape {self.tm_by_chain.shape}"
            )
        for name in ("ranking_confidence", "ptm", "iptm", "max_pae"):
            value = getattr(self, name)
            if value is not None and not np.isfinite(value):
                raise ValueError(f"{name} must be finite, got {value}")

    def _check_arrays(self, length: int) -> None:
        """Raise ValueError if PAE or distances have a wrong shape or impossible values."""
        if (self.pae is None) != (self.max_pae is None):
            raise ValueError("pae and max_pae go together: pass both or neither")
        if self.pae is not None:
            if self.pae.shape != (length, length):
                raise ValueError(f"pae must have shape {(length, length)}, got {self.pae.shape}")
            if not (self.pae.min() >= 0 and np.isfinite(self.pae.max())):
                raise ValueError(f"pae must be finite and at least 0, got {self.pae.min()} to {self.pae.max()}")
        if self.distances is not None and self.distances.expected.shape != (length, length):
            raise ValueError(f"distances must have shape {(length, length)}, got {self.distances.expected.shape}")

    # The following methods import packages above `folding` when they are called.

    def save_pdb(self, path: str | Path) -> None:
        """Write the structure as a PDB file, with pLDDT as B-factors; raise ValueError if the format cannot hold it."""
        from helixfold.results.prediction import pdb_of  # noqa: PLC0415
        from helixfold.results.writing import write_file  # noqa: PLC0415

        write_file(Path(path), pdb_of(self))

    def save_cif(self, path: str | Path) -> None:
        """Write the structure as an mmCIF file with the ModelCIF extension, with pLDDT as B-factors.

        The file's name without its suffix is the name of its entry. Raise ValueError for a prediction by another
        program, because the file names helixfold as its source.
        """
        from helixfold.results.prediction import mmcif_of  # noqa: PLC0415
        from helixfold.results.writing import write_file  # noqa: PLC0415

        if self.program != "helixfold":
            raise ValueError(
                f"{self.name} is a prediction by {self.program}; only helixfold's predictions can be written as mmCIF"
            )
        # Without PAE, so that the file does not refer to a PAE file next to it.
        write_file(Path(path), mmcif_of(replace(self, pae=None, max_pae=None), Path(path).stem))

    def save_pae(self, path: str | Path) -> None:
        """Write the PAE as JSON in AlphaFold DB's format, in tenths of an Angstrom; raise ValueError without a PAE."""
        from helixfold.results.prediction import pae_json  # noqa: PLC0415
        from helixfold.results.writing import write_file  # noqa: PLC0415

        write_file(Path(path), pae_json(self, self._pae_or_error()))

    def superpose_on(self, reference: Reference) -> "Prediction":
        """Return a copy that is superposed on a reference with minimum C-alpha RMSD.

        Residues are paired by sequence alignment, so the reference may be a homolog. For complexes, all common chains
        are superposed together. Raise `InputError` for a reference with fewer than three residues in common.
        """
        from helixfold.analysis.complexes import superposition_on  # noqa: PLC0415

        positions = superposition_on(chains_of(self), chains_of(reference)).apply(self.protein.atom_positions)
        return replace(self, structure=replace(self.protein, atom_positions=positions))

    def score_against(self, reference: Reference) -> "Scores | ComplexComparison":
        """Return lDDT, TM-score, GDT and RMSD against a reference; residues are paired by sequence alignment.

        If the reference has two or more chains of a complex, return DockQ, interface lDDT, TM-score and RMSD of these
        chains together. Raise `InputError` for a reference with fewer than three residues in common. Needs the extra
        `evaluate`.
        """
        from helixfold.analysis.complexes import scores_against  # noqa: PLC0415

        return scores_against(chains_of(self), chains_of(reference))

    def residue_lddt(self, reference: Reference) -> Float[np.ndarray, "r"]:
        """Return the lDDT of C-alpha atoms (0 to 1) of each residue against a reference: what pLDDT predicts.

        It is NaN for residues that the reference lacks. Residues are paired as by `superpose_on`. Needs the extra
        `evaluate`.
        """
        from helixfold.analysis import metrics  # noqa: PLC0415
        from helixfold.analysis.complexes import alpha_carbons  # noqa: PLC0415

        own, true = alpha_carbons(chains_of(self), chains_of(reference))
        (present,) = np.isfinite(true).all(1).nonzero()
        lddt = np.full(len(true), np.nan)
        lddt[present] = metrics.residue_lddt(own[present], true[present], np.arange(len(present)))[0]
        return lddt

    def distance_difference(self, reference: Reference) -> Float[np.ndarray, "r r"]:
        """Return in Angstrom how much further apart C-alpha atoms are than in a reference; negative where nearer.

        It is NaN for residues that the reference lacks. Residues are paired as by `superpose_on`, and nothing is
        superposed.
        """
        from helixfold.analysis import metrics  # noqa: PLC0415
        from helixfold.analysis.complexes import alpha_carbons  # noqa: PLC0415

        return metrics.distance_difference(*alpha_carbons(chains_of(self), chains_of(reference)))

    def plot_plddt(self, axes: "Axes | None" = None) -> "Axes":
        """Plot the pLDDT (0 to 100) of each residue over AlphaFold DB's confidence bands; return the axes."""
        from helixfold.report.plots import draw_plddt, new_axes  # noqa: PLC0415

        axes = axes or new_axes(8.0, 3.2)
        draw_plddt(axes, {self.name: self.plddt})
        axes.set(ylabel="pLDDT (0 to 100)", title=f"{self.name}, mean {self.mean_plddt:.1f}")
        return axes

    def plot_pae(self, axes: "Axes | None" = None) -> "Axes":
        """Plot the predicted aligned error (Å) of each residue pair; return the axes.

        Raise ValueError if the model does not predict it.
        """
        from helixfold.report.plots import draw_pae, new_axes  # noqa: PLC0415
        from helixfold.results.chains import split_chains  # noqa: PLC0415

        pae, max_pae = self._pae_or_error(), self.max_pae or 0.0
        axes = axes or new_axes(5.4, 4.4)
        chains = [(each.name, each.stop - each.start) for each in split_chains(self.protein, self.chain_ids)]
        draw_pae(axes, self.name, pae, max_pae, chains)
        return axes

    def plot_coverage(self, axes: "Axes | None" = None) -> "Axes":
        """Plot the MSA rows, sorted by identity to the target, and the MSA depth at each residue; return the axes.

        Raise ValueError if the prediction was read without its MSA.
        """
        from helixfold.report.plots import draw_features_coverage, new_axes  # noqa: PLC0415

        if self.features is None:
            raise ValueError(f"the MSA of {self.name} was not read with it")
        axes = axes or new_axes(8.0, 4.2)
        draw_features_coverage(axes, alignment_of(self.features))
        return axes

    def view(self, reference: Reference | None = None, *, color: Coloring = "plddt", side_chains: bool = False) -> Any:
        """Show the structure in a notebook, coloured by pLDDT as in AlphaFold DB, by chain, or from start to end.

        With a reference, show both in two colours, superposed; `color` and `side_chains` are then ignored. Needs the
        extra `notebooks`.
        """
        from helixfold.report.notebook.structures import show_structure, show_together  # noqa: PLC0415

        if reference is None:
            return show_structure(self.protein, color=color, side_chains=side_chains)
        reference_protein = protein_from_chains(chains_of(reference))
        return show_together({"reference": reference_protein, self.name: self.superpose_on(reference_protein).protein})

    def film(self, reference: Reference | None = None) -> Any:
        """Show the structures of the recycling iterations in a notebook, as a film with a counter.

        All are superposed on the reference, which is grey, or on the last one. Needs `save_passes=True` and the extra
        `notebooks`; raise ValueError without the structures.
        """
        from helixfold.report.notebook.structures import show_film  # noqa: PLC0415

        if self.recycling_iterations is None:
            raise ValueError(f"{self.name} has no recycling iterations: predict with save_passes=True")
        reference_protein = self.protein if reference is None else protein_from_chains(chains_of(reference))
        frames = [
            replace(self, structure=each).superpose_on(reference_protein).protein for each in self.recycling_iterations
        ]
        labels = [f"recycling iteration {number} of {len(frames)}" for number in range(1, len(frames) + 1)]
        return show_film(frames, None if reference is None else reference_protein, labels)

    def _pae_or_error(self) -> Float[np.ndarray, "r r"]:
        """Return the PAE; raise ValueError if the model does not predict it."""
        if self.pae is None:
            raise ValueError(f"{self.name} has no PAE: models with _ptm and _multimer predict it")
        return self.pae

    def _scores(self) -> dict[str, str]:
        """Return the scores that are not None as texts, by name."""
        scores = {"mean pLDDT": f"{self.mean_plddt:.1f}"}
        scores |= {
            name: f"{value:.2f}" for name, value in (("pTM", self.ptm), ("ipTM", self.iptm)) if value is not None
        }
        return scores

    def __repr__(self) -> str:
        size = f"{len(self.plddt)} residues" + (f" in {len(self.chain_ids)} chains" if len(self.chain_ids) > 1 else "")
        scores = ", ".join(f"{name} {value}" for name, value in self._scores().items())
        return f"<Prediction {self.name}: {size}, {scores}>"

    def _repr_html_(self) -> str:
        facts = {"residues": str(len(self.plddt)), "chains": " ".join(self.chain_ids), **self._scores()}
        cells = "".join(f"<tr><th>{name}</th><td>{escape(value)}</td></tr>" for name, value in facts.items())
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        return f"<table><caption>{escape(self.name)}</caption>{cells}</table>{notes}"


def chains_of(source: Reference) -> tuple[Chain, ...]:
    """Return the chains of a prediction, a structure, a `Protein`, or a structure file, given by its path."""
    if isinstance(source, str | Path):
        # This module takes long to import.
        from data_pipeline.parse.structures import read_structure  # noqa: PLC0415

        source = read_structure(source)
    if isinstance(source, Structure):
        return source.chains
    if isinstance(source, Prediction):
        return chains_of_protein(source.protein, source.chain_ids)
    return chains_of_protein(source)
