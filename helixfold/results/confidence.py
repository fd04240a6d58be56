"""Write and read the confidence file of a prediction: pLDDT, scores, and summaries of chains, pairs and domains."""

from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Float

from data_pipeline.features.alignment_depth import AlignmentDepth
from data_pipeline.io.errors import InputError
from helixfold.analysis.chain_tm import TmScores
from helixfold.analysis.domains import Domain, find_domains, mean_error
from helixfold.analysis.interfaces import complex_scores
from helixfold.folding.prediction import (
    CONFIDENCE_BANDS,
    STRUCTURE_KINDS,
    ChainPair,
    ConfidenceSummary,
    Part,
    Prediction,
    PredictionIdentity,
)
from helixfold.results.chains import split_chains
from helixfold.results.file_table import CONFIDENCE
from helixfold.results.json_object import AGAIN, JsonObject

# Key in the confidence file of the reason why the prediction has no PDB file; absent if it has one.
NO_PDB_FILE: Final = "no_pdb_file"
_PAIR_SCORES: Final = (
    ("iptm", "ipTM"),
    ("ipsae", "ipSAE"),
    ("pdockq2", "pDockQ2"),
    ("pdockq", "pDockQ"),
    ("lis", "LIS"),
    ("interface_plddt", "Interface pLDDT"),
    ("interface_pae", "Interface PAE, Å"),
)


def confidence_content(
    prediction: Prediction, depth: AlignmentDepth | None = None, no_pdb_file: str | None = None
) -> dict[str, object]:
    """Return the content of the confidence file as JSON values, with AlphaFold DB's keys and ours; errors are in Å.

    `depth` is the depth of the alignment. Domains are found only if the prediction has a PAE. A complex also has
    `interfaces`, the scores of each pair of chains, and `chain_pair_iptm`, a matrix whose rows are aligned chains: pTM
    of each chain on the diagonal, and ipTM in each direction elsewhere. `no_pdb_file` is the reason why there is no PDB
    file.
    """
    plddt = prediction.plddt.astype(np.float64)
    bands = len(CONFIDENCE_BANDS) - 1 - np.digitize(plddt, [band.min_plddt for band in reversed(CONFIDENCE_BANDS[:-1])])
    scores = [round(value, 2) for value in plddt.tolist()]
    domains = () if prediction.pae is None else find_domains(prediction.pae, prediction.plddt)
    content: dict[str, object] = {
        "residueNumber": prediction.protein.residue_index.tolist(),
        "confidenceScore": scores,
        "confidenceCategory": [CONFIDENCE_BANDS[band].letter for band in bands.tolist()],
        "model": prediction.name,
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
        **_pairs(prediction),
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
    if no_pdb_file is not None:
        content[NO_PDB_FILE] = no_pdb_file
    return content


def _chains(prediction: Prediction) -> list[dict[str, object]]:
    protein, chains = prediction.protein, split_chains(prediction.protein, prediction.chain_ids)
    ptms: list[float | None] = [prediction.ptm] if len(chains) == 1 else [None] * len(chains)
    if prediction.tm_by_chain is not None:
        ptms = prediction.tm_by_chain.diagonal().tolist()
    return [
        {
            "chain": chain.name,
            "first": int(protein.residue_index[chain.start]),
            "last": int(protein.residue_index[chain.stop - 1]),
            "residues": chain.stop - chain.start,
            "mean_plddt": _mean(prediction.plddt[chain.start : chain.stop]),
            "ptm": _rounded(ptm),
        }
        for chain, ptm in zip(chains, ptms, strict=True)
    ]


def _pairs(prediction: Prediction) -> dict[str, object]:
    """Return the scores of a complex's pairs of chains; empty for a single chain."""
    if len(prediction.chain_ids) < 2:
        return {}
    matrix, tm = prediction.tm_by_chain, None
    if matrix is not None and prediction.ptm is not None and prediction.iptm is not None:
        tm = TmScores(ptm=prediction.ptm, iptm=prediction.iptm, by_chain=matrix)
    scores = complex_scores(prediction.protein, prediction.chain_ids, plddt=prediction.plddt, pae=prediction.pae, tm=tm)
    return {
        "chain_pair_iptm": None if matrix is None else np.around(matrix.astype(np.float64), 4).tolist(),
        "interfaces": [_rounded(interface.to_dict()) for interface in scores.interfaces],
    }


def _rounded(value: Any) -> Any:
    """Return JSON values with numbers rounded to four decimals."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return round(value, 4) if isinstance(value, float) else value


def _domain(name: int, domain: Domain, prediction: Prediction) -> dict[str, object]:
    """Return a domain's content; in a complex, `chains` names the chain of each range of residue numbers."""
    numbers = prediction.protein.residue_index
    parts = [
        (max(first, chain.start), min(last, chain.stop - 1), chain.name)
        for first, last in domain.stretches
        for chain in split_chains(prediction.protein, prediction.chain_ids)
        if chain.start <= last and first < chain.stop
    ]
    return {
        "name": str(name),
        "ranges": [[int(numbers[first]), int(numbers[last])] for first, last, _ in parts],
        **({"chains": [chain for *_, chain in parts]} if len(prediction.chain_ids) > 1 else {}),
        "residues": len(domain.residues),
        "mean_plddt": _mean(prediction.plddt[domain.residues]),
        "mean_pae": _error(domain, domain, prediction),
    }


def _error(aligned: Domain, scored: Domain, prediction: Prediction) -> float:
    assert prediction.pae is not None
    return round(mean_error(prediction.pae, aligned, scored), 2)


def _mean(values: np.ndarray) -> float:
    return round(float(values.mean(dtype=np.float64)), 2)


def read_prediction(directory: Path, name: str) -> Prediction:
    """Read a prediction's scores and their summary from its confidence file, without structure and PAE.

    `directory` is the target's, and `name` the prediction's. Raise `InputError` if the file is missing or damaged.
    """
    content = JsonObject.read(CONFIDENCE.path(directory, prediction=name))
    plddt, numbers = content.list_of("plddt", float), content.list_of("residueNumber", float)
    if not plddt or len(numbers) != len(plddt):
        problem = f"it has {len(plddt)} pLDDT values for {len(numbers)} residues; fold the target again"
        raise InputError.at(content.path, problem)
    msa, chains = content.child("msa"), content.children("chains")
    depth = msa.list_of("coverage", float, [])
    with np.errstate(over="ignore"):  # too large a number becomes infinite, which `Prediction` refuses
        plddt_values = np.array(plddt, dtype=np.float32)
    no_pdb = content.content.get(NO_PDB_FILE) is not None
    try:
        return Prediction(
            name=name,
            identity=PredictionIdentity(model=content.get("model", str, name), seed=content.get("seed", int, 0)),
            plddt=plddt_values,
            ptm=content.optional_number("ptm"),
            iptm=content.optional_number("iptm"),
            tm_by_chain=_tm_by_chain(content, len(chains)),
            ranking_confidence=content.get("ranking_confidence", float),
            num_recycles=content.get("num_recycles", int),
            converged=content.get("converged", bool),
            notes=content.list_of("notes", str),
            chain_ids=tuple(chain.get("chain", str) for chain in chains) or ("A",),
            kinds=tuple(kind for kind in STRUCTURE_KINDS if kind != "pdb" or not no_pdb),
            summary=ConfidenceSummary(
                target=content.get("target", str, directory.resolve().name),
                mean_plddt=content.get("mean_plddt", float),
                residue_numbers=tuple(map(int, numbers)),
                chains=tuple(map(_read_chain, chains)),
                chain_pairs=tuple(map(_read_pair, content.children("interfaces"))),
                domains=tuple(map(_read_domain, content.children("domains"))),
                depth=depth if len(depth) == len(plddt) else (),
                rows=msa.get("rows", int) if "rows" in msa.content else None,
                effective_rows=msa.optional_number("effective_rows"),
            ),
        )
    except InputError:
        raise
    except ValueError as error:  # The values are not possible for a prediction.
        raise InputError.at(content.path, f"{error}; {AGAIN}") from error


def _tm_by_chain(content: JsonObject, chains: int) -> Float[np.ndarray, "k k"] | None:
    """Read the TM-scores of chains and pairs of a complex. Raise `InputError` if they are damaged."""
    rows = content.list_of("chain_pair_iptm", list, [])
    if not rows:
        return None
    numbers = [[value for value in row if isinstance(value, float | int)] for row in rows]
    if [len(row) for row in numbers] != [chains] * chains:
        raise InputError.at(content.path, f"chain_pair_iptm must have a number for each pair of {chains} chains")
    return np.array(numbers, np.float64)


def _read_chain(record: JsonObject) -> Part:
    ptm = record.optional_number("ptm")
    return Part(
        name=record.get("chain", str),
        ranges=((record.get("first", int), record.get("last", int)),),
        chains=(),
        residues=record.get("residues", int),
        mean_plddt=record.get("mean_plddt", float),
        measures=() if ptm is None else (("pTM", ptm),),
    )


def _read_pair(record: JsonObject) -> ChainPair:
    chains = record.list_of("chains", str)
    if len(chains) != 2:
        raise InputError.at(record.path, f"an interface has {len(chains)} chains; expected 2; fold the target again")
    return ChainPair(
        chains=(chains[0], chains[1]),
        contacts=record.get("contacts", int),
        scores=tuple((title, record.optional_number(key)) for key, title in _PAIR_SCORES),
    )


def _read_domain(record: JsonObject) -> Part:
    ranges = record.get("ranges", list)
    if not all(
        isinstance(ends, list) and len(ends) == 2 and all(isinstance(end, int) for end in ends) for ends in ranges
    ):
        raise InputError.at(record.path, "a domain's range is not a pair of residue numbers; fold the target again")
    chains = record.list_of("chains", str, [])
    if chains and len(chains) != len(ranges):
        problem = f"a domain has {len(ranges)} ranges but {len(chains)} chains; fold the target again"
        raise InputError.at(record.path, problem)
    pae = record.optional_number("mean_pae")
    return Part(
        name=record.get("name", str),
        ranges=tuple((first, last) for first, last in ranges),
        chains=tuple(chains),
        residues=record.get("residues", int),
        mean_plddt=record.get("mean_plddt", float),
        measures=() if pae is None else (("mean PAE", pae),),
    )
