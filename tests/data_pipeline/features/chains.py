"""Chains of complexes for tests: DeepMind's stored ones, and made ones."""

from pathlib import Path

import numpy as np

from data_pipeline.features.assembly import Chain
from data_pipeline.features.pairing import PairingRows
from data_pipeline.features.schema import Features
from data_pipeline.residues import HHBLITS_TO_OUR_AATYPE, RESTYPES


def stored_chain(reference: Path, letter: str, name: str) -> Chain:
    """A chain's features and pairing alignment from DeepMind's pipeline, with residue types renumbered."""
    with np.load(reference / "pipeline" / f"v23_chain_{letter}.npz") as stored:
        arrays = dict(stored)
    return Chain(
        name=name,
        features=Features(
            domain_name=name,
            sequence=str(arrays["sequence"][0]),
            aatype=arrays["aatype"].argmax(-1).astype(np.int8),
            residue_index=arrays["residue_index"],
            msa=HHBLITS_TO_OUR_AATYPE[arrays["msa"]].astype(np.int8),
            deletion_matrix=arrays["deletion_matrix_int"],
            template_domain_names=tuple("" for _ in arrays["template_aatype"]),
            template_aatype=HHBLITS_TO_OUR_AATYPE[arrays["template_aatype"].argmax(-1)].astype(np.int8),
            template_all_atom_positions=arrays["template_all_atom_positions"],
            template_all_atom_masks=arrays["template_all_atom_masks"],
            template_sum_probs=np.zeros((len(arrays["template_aatype"]), 1), np.float32),
        ),
        pairing=PairingRows(
            msa=HHBLITS_TO_OUR_AATYPE[arrays["msa_all_seq"]].astype(np.int8),
            deletion_matrix=arrays["deletion_matrix_int_all_seq"],
            species=tuple(map(str, arrays["msa_species_identifiers_all_seq"])),
        ),
    )


def pairing_rows(rows: str, *species: str) -> PairingRows:
    """An alignment from words of equal length, "ACDE ACDF", with the species of each row after the first."""
    msa = np.array([[RESTYPES.index(letter) for letter in row] for row in rows.split()], np.int8)
    return PairingRows(msa=msa, deletion_matrix=np.zeros(msa.shape, np.int8), species=("", *species))
