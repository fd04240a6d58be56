"""Content of confidence_<prediction>.json: AlphaFold DB's three lists, and summaries of chains and domains."""

import numpy as np

from data_pipeline.features.alignment_depth import AlignmentDepth
from helixfold.analysis.domains import Domain, find_domains, mean_error
from helixfold.prediction import CONFIDENCE_BANDS, Prediction
from helixfold.write.chains import split_chains


def confidence_content(prediction: Prediction, depth: AlignmentDepth | None = None) -> dict[str, object]:
    """Return the content as JSON values: residues by number, errors in Angstrom, and the alignment's `depth`."""
    plddt = prediction.plddt.astype(np.float64)
    bands = len(CONFIDENCE_BANDS) - 1 - np.digitize(plddt, [band.least for band in reversed(CONFIDENCE_BANDS[:-1])])
    scores = [round(value, 2) for value in plddt.tolist()]
    domains = () if prediction.pae is None else find_domains(prediction.pae, prediction.plddt)
    content: dict[str, object] = {
        "residueNumber": prediction.protein.residue_index.tolist(),
        "confidenceScore": scores,
        "confidenceCategory": [CONFIDENCE_BANDS[band].letter for band in bands.tolist()],
        "model": prediction.model,
        "seed": prediction.seed,
        "plddt": scores,
        "mean_plddt": _mean(plddt),
        "fraction_plddt": {
            band.name.replace(" ", "_"): round(float(np.mean(bands == index)), 4)
            for index, band in enumerate(CONFIDENCE_BANDS)
        },
        "ptm": _rounded(prediction.ptm),
        "iptm": _rounded(prediction.iptm),
        "chains": _chains(prediction),
        "domains": [_domain(name, domain, prediction) for name, domain in enumerate(domains, start=1)],
        "domain_pae": [[_error(aligned, scored, prediction) for scored in domains] for aligned in domains],
        "ranking_confidence": float(prediction.ranking_confidence),
        "num_recycles": prediction.num_recycles,
        "converged": prediction.converged,
        "notes": list(prediction.notes),
    }
    if depth is not None:
        content["msa"] = {
            "rows": depth.rows,
            "effective_rows": round(depth.effective_rows, 1),
            "coverage": depth.coverage.tolist(),
            "effective_coverage": [round(value, 1) for value in depth.effective_coverage.tolist()],
        }
    return content


def _chains(prediction: Prediction) -> list[dict[str, object]]:
    protein, chains = prediction.protein, split_chains(prediction.protein, prediction.chain_ids)
    return [
        {
            "chain": chain.name,
            "first": int(protein.residue_index[chain.start]),
            "last": int(protein.residue_index[chain.stop - 1]),
            "residues": chain.stop - chain.start,
            "mean_plddt": _mean(prediction.plddt[chain.start : chain.stop]),
            # With several chains, a chain's pTM would need the distribution of its own PAE.
            "ptm": _rounded(prediction.ptm) if len(chains) == 1 else None,
        }
        for chain in chains
    ]


def _domain(name: int, domain: Domain, prediction: Prediction) -> dict[str, object]:
    numbers = prediction.protein.residue_index
    return {
        "name": str(name),
        "ranges": [[int(numbers[first]), int(numbers[last])] for first, last in domain.stretches],
        "residues": len(domain.residues),
        "mean_plddt": _mean(prediction.plddt[domain.residues]),
        "mean_pae": _error(domain, domain, prediction),
    }


def _error(aligned: Domain, scored: Domain, prediction: Prediction) -> float:
    assert prediction.pae is not None
    return round(mean_error(prediction.pae, aligned, scored), 2)


def _mean(values: np.ndarray) -> float:
    return round(float(values.mean(dtype=np.float64)), 2)


def _rounded(score: float | None) -> float | None:
    return None if score is None else round(float(score), 4)
