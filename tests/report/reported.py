"""Directories of finished targets that look like real ones, written by the package's own writers, without folding."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from data_pipeline.features.complexes.chain_ids import default_chain_ids
from data_pipeline.features.schema import Features
from data_pipeline.parse.structures import read_structure
from data_pipeline.protein import Protein
from data_pipeline.residues import ATOM_ORDER, GAP, RESTYPES_WITH_X
from helixfold.folding.prediction import Distances, Prediction, PredictionIdentity
from helixfold.folding.provenance import Provenance
from helixfold.report.plot_files import write_alignment, write_plots
from helixfold.results.prediction import (
    ranked,
    read_finished,
    write_prediction,
    write_ranked,
    write_ranking,
    write_timings,
)
from tests.support.residue_arrays import RESIDUE_ARRAYS

HAIRPIN = Path(__file__).parents[2] / "examples/structures/helical_hairpin.pdb"


def chain_of(path: Path, name: str | None = None) -> Protein:
    """The observed residues of a chain, numbered from 1."""
    chains = {chain.name: chain for chain in read_structure(path).chains}
    chain = chains[name] if name is not None else next(iter(chains.values()))
    seen = chain.observed
    return Protein(
        aatype=chain.aatype[seen],
        atom_positions=chain.atom_positions[seen],
        atom_mask=chain.atom_mask[seen],
        residue_index=np.arange(1, seen.sum() + 1),
        chain_index=np.zeros(seen.sum(), dtype=np.int64),
        b_factors=chain.b_factors[seen],
    )


def predicted(protein: Protein, model: str, *, noise: float, seed: int, notes: Sequence[str] = ()) -> Prediction:
    """A prediction that is wrong by about so many Angstrom, more at the ends, and knows it."""
    random = np.random.default_rng(seed)
    alpha = protein.atom_positions[:, ATOM_ORDER["CA"]]
    length = len(alpha)
    place = np.linspace(0, 1, length)
    waves = sum(random.normal() * np.sin(np.pi * (k * place + random.uniform(0, 2))) for k in range(2, 9))
    wrong = noise * (0.25 + 0.5 * np.abs(waves) + 3.5 * np.exp(-np.minimum(place, 1 - place) * 28))
    distances = np.linalg.norm(alpha[:, None] - alpha[None], axis=-1)
    pae = 0.6 + 0.07 * distances * noise + 0.9 * wrong[None] + 0.5 * wrong[:, None]
    pae = np.clip(pae * random.normal(1, 0.04, pae.shape), 0.2, 31.7).astype(np.float32)
    plddt = np.clip(97 - 13 * wrong + random.normal(0, 1.2, length), 12, 98.6).astype(np.float32)
    moved = protein.atom_positions + random.normal(0, 0.06 * noise, (length, 1, 3)) + np.array([5.0 * seed, 3.0, -2.0])
    turn = np.linalg.qr(random.normal(size=(3, 3)))[0]
    turn[:, 0] *= np.linalg.det(turn)
    return Prediction(
        name=model,
        identity=PredictionIdentity(model=model),
        structure=replace(
            protein,
            atom_positions=(moved @ turn).astype(np.float32),
            b_factors=plddt[:, None] * np.ones_like(protein.atom_mask),
        ),
        plddt=plddt,
        pae=pae,
        max_pae=31.75,
        ptm=float(np.mean(1 / (1 + (pae / 5) ** 2))),
        ranking_confidence=float(plddt.mean()),
        chain_ids=default_chain_ids(int(protein.chain_index[-1]) + 1),
        num_recycles=3,
        converged=False,
        notes=tuple(notes),
        distances=Distances(
            expected=np.minimum(distances, 21.6).astype(np.float32),
            contact=(1 / (1 + np.exp(np.minimum(distances, 50) - 8))).astype(np.float32),
        ),
    )


def features_of(protein: Protein, name: str, rows: int, seed: int = 0) -> Features:
    """Features with an alignment of made-up relatives, some of which lack an end."""
    random = np.random.default_rng(seed)
    length = len(protein.aatype)
    msa = np.repeat(protein.aatype[None].astype(np.int8), rows, axis=0)
    changed = random.uniform(size=msa.shape) < random.beta(2, 1.6, (rows, 1))
    changed[0] = False
    msa[changed] = random.integers(0, 20, changed.sum())
    for row in msa[1:]:
        start, stop = sorted(random.integers(0, length, 2)) if random.uniform() < 0.5 else (0, length)
        row[: start // 2], row[(stop + length) // 2 :] = GAP, GAP
    return Features(
        domain_name=name,
        sequence="".join(RESTYPES_WITH_X[kind] for kind in protein.aatype),
        aatype=protein.aatype.astype(np.int32),
        residue_index=np.arange(length, dtype=np.int32),
        msa=msa,
        deletion_matrix=np.zeros_like(msa),
        template_domain_names=(),
        template_aatype=np.zeros((0, length), np.int32),
        template_all_atom_positions=np.zeros((0, length, 37, 3), np.float32),
        template_all_atom_masks=np.zeros((0, length, 37), np.float32),
        template_sum_probs=np.zeros((0, 1), np.float32),
    )


def write_target(
    directory: Path,
    *,
    protein: Protein | None = None,
    models: Sequence[str] = ("model_1_ptm",),
    noise: float = 0.6,
    rows: int = 40,
    notes: Sequence[str] = (),
    plots: bool = False,
    states: Sequence[Protein] = (),
) -> list[str]:
    """Everything that `helixfold predict` leaves but the report; the predictions, best first.

    `states` are the structures of the models, if each has its own.
    """
    protein = protein or chain_of(HAIRPIN)
    features = features_of(protein, directory.name, rows)
    directory.mkdir(parents=True)
    features.save(directory / "features.npz")
    depth = write_alignment(directory, features)
    for number, model in enumerate(models):
        worse = noise * (1 + 0.25 * number)
        own = states[number] if states else protein
        write_prediction(directory, predicted(own, model, noise=worse, seed=number, notes=notes), depth)
    order = ranked([found for model in models if (found := read_finished(directory, model)) is not None])
    write_ranked(directory, order)
    if plots:
        write_plots(directory, order)
    write_timings(directory, timings(len(protein.aatype), rows, models), notes)
    write_ranking(directory, order)
    return [each.name for each in order]


def timings(length: int, rows: int, models: Sequence[str]) -> dict[str, object]:
    stages = {"load parameters": (2.91, 1.1), "searches for all targets": (184.2, 0.9), "features": (6.2, 0.9)}
    for number, model in enumerate(models):
        stages |= {f"{model}: network": (41.7 + number, 2.31), f"{model}: writing": (0.31, 1.4)}
    return {
        **{"residues": length, "msa_rows": rows, "templates": 2, "device": "cpu", "ranks": 1, "threads": 8},
        **{"dtype": "float32", "torch": "2.13.0"},
        "models": {
            model: {"executor": "whole", "predicted_peak_gib": 1.21, "measured_peak_gib": 1.17} for model in models
        },
        "stages": {name: {"seconds": time, "peak_memory_gib": peak} for name, (time, peak) in stages.items()},
    }


def many_chains(chains: int) -> Protein:
    """So many pieces of six residues of a hairpin, side by side."""
    piece = Protein(**{name: getattr(chain_of(HAIRPIN), name)[:6] for name in RESIDUE_ARRAYS})
    copies = [
        replace(
            piece,
            atom_positions=piece.atom_positions + np.array([9, 0, 0], np.float32) * number,
            chain_index=piece.chain_index + number,
        )
        for number in range(chains)
    ]
    return Protein(**{name: np.concatenate([getattr(copy, name) for copy in copies]) for name in RESIDUE_ARRAYS})


def write_dimer(directory: Path) -> int:
    """Everything that is left of two hairpins side by side, with made-up scores; the number of contacts."""
    chain = chain_of(HAIRPIN)
    alpha = chain.atom_positions[:, ATOM_ORDER["CA"]]
    across = np.linalg.svd(alpha - alpha.mean(0))[2][2].astype(np.float32)
    beside = replace(chain, atom_positions=chain.atom_positions + 9 * across, chain_index=chain.chain_index + 1)
    dimer = Protein(
        **{name: np.concatenate([getattr(each, name) for each in (chain, beside)]) for name in RESIDUE_ARRAYS}
    )
    write_target(directory, protein=dimer, noise=0.0)
    path = directory / "confidence_model_1_ptm.json"
    content = json.loads(path.read_text())
    betas = np.array(
        [
            [float(line[start : start + 8]) for start in (30, 38, 46)]
            for line in (directory / "unrelaxed_model_1_ptm.pdb").read_text().splitlines()
            if line[:4] == "ATOM" and line[12:16] == (" CA " if line[17:20] == "GLY" else " CB ")
        ]
    )
    apart = np.linalg.norm(betas[: len(alpha), None] - betas[None, len(alpha) :], axis=-1)
    contacts = int((apart <= 8).sum())
    scores = {"iptm": 0.71, "ipsae": 0.64, "pdockq2": 0.5, "pdockq": None, "lis": 0.42}
    means = {"interface_plddt": 91.26, "interface_pae": 3.44}
    content |= {"iptm": 0.71, "interfaces": [{"chains": ["A", "B"], "contacts": contacts, **scores, **means}]}
    path.write_text(json.dumps(content))
    return contacts


def write_templates(directory: Path) -> None:
    used = {"rank": 1, "release_date": "2011-05-04", "aligned_residues": 28, "identity": 0.41, "note": ""}
    rejected = {"rank": 3, "reason": "short", "detail": "3 residues are aligned, and at least 10 are needed"}
    content = {"used": [{"name": "2abc_A", **used}], "rejected": [{"name": "9xyz_B", **rejected}]}
    (directory / "templates.json").write_text(json.dumps(content))


def write_read_templates(target: Path) -> None:
    """One template is the best structure without its end, elsewhere; others were not read, or are too short."""
    features = Features.load(target / "features.npz")
    chain = next(iter(read_structure(target / "ranked_0.pdb").chains))
    positions = np.repeat(chain.atom_positions[None] @ np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0]]) + 50, 3, axis=0)
    masks = np.repeat(chain.atom_mask[None], 3, axis=0)
    masks[0, 20:], masks[2, 2:] = 0, 0
    templates = {
        "template_domain_names": ("1abc_A", "2abc_A", "3abc_A"),
        "template_aatype": np.repeat(chain.aatype[None], 3, axis=0).astype(np.int32),
        "template_all_atom_positions": (positions * masks[..., None]).astype(np.float32),
        "template_all_atom_masks": masks.astype(np.float32),
        "template_sum_probs": np.zeros((3, 1), np.float32),
    }
    replace(features, **templates).save(target / "features.npz")
    record = Provenance(threads=1, executor="whole", backends={}, templates=("1abc_A", "3abc_A"))
    best = json.loads((target / "ranking_debug.json").read_text())["order"][0]
    settings = {"provenance": [{"predictions": [best], **asdict(record)}], "predictions": {}}
    (target / "settings.json").write_text(json.dumps(settings))


def write_relaxation(directory: Path, model: str, failed: str) -> None:
    """As if one model had been relaxed, which moved nothing, and another had failed."""
    for kind in ("pdb", "cif"):
        (directory / f"relaxed_{model}.{kind}").write_bytes((directory / f"unrelaxed_{model}.{kind}").read_bytes())
    before, after = {"residues": 12, "clashes": 31, "bonds": 4}, {"residues": 0, "clashes": 0, "bonds": 0}
    done = {
        **{"remaining_violations": [], "violations_before": before, "violations_after": after, "rounds": 1},
        **{"initial_energy_kcal_per_mol": 51234.5, "final_energy_kcal_per_mol": -4321.1, "rmsd_angstrom": 0.214},
        **{"seconds": 12.3, "platform": "CPU"},
    }
    content = {model: done, failed: {"failed": "atoms lie on each other, so that no force can part them"}}
    (directory / "relax_metrics.json").write_text(json.dumps(content))
