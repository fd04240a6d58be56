"""Store the outputs, losses and sequence gradients of a design step of ColabDesign.

    python -m scripts.parity.make_design_cases --output tests/parity/data

Needs a separate environment, without this project: `pip install colabdesign==1.1.1 jax==0.4.28 jaxlib==0.4.28
dm-haiku==0.0.12 'numpy<2' 'scipy<1.14'`. Networks and parameters are from the case `monomer_ptm_tiny`.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.parity.parameters import from_manifest

FOLDER = Path(__file__).parents[2] / "tests" / "parity" / "data"
NETWORK = FOLDER / "monomer_ptm_tiny"
STRUCTURE = Path(__file__).parents[2] / "examples" / "structures" / "hairpin_short.pdb"
RECYCLES = 2
# Settings of ColabDesign's sequence and weights of its losses, by protocol. The second uses the gradient of cold
# probabilities as straight-through gradient.
SETTINGS: dict[str, dict[str, float]] = {
    "hallucination": {"soft": 0.7, "hard": 0.0, "temp": 0.8},
    "fixbb": {"soft": 1.0, "hard": 1.0, "temp": 0.5},
}
WEIGHTS: dict[str, dict[str, float]] = {
    "hallucination": {"con": 1.0, "plddt": 0.5, "pae": 0.3, "helix": 0.2},
    "fixbb": {"dgram_cce": 1.0, "con": 0.2, "plddt": 0.4, "pae": 0.0, "helix": 0.0, "rmsd": 0.0, "fape": 0.0},
}
RESIDUES = 18  # of the hallucination
READ = (
    *("residue_index", "seq_mask", "msa_mask", "extra_msa", "extra_has_deletion", "extra_deletion_value"),
    *("extra_msa_mask", "template_aatype", "template_all_atom_positions", "template_mask", "template_pseudo_beta"),
    "template_pseudo_beta_mask",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="the folder to write design_<protocol>.npz to")
    output = parser.parse_args().output
    for protocol in SETTINGS:
        np.savez_compressed(output / f"design_{protocol}.npz", allow_pickle=False, **design_step(protocol))


def design_step(protocol: str) -> dict[str, np.ndarray]:
    """Return the inputs, outputs, losses and gradient of one design step of ColabDesign."""
    # Imported here, so that tests can import the settings above without ColabDesign.
    from colabdesign import mk_afdesign_model  # noqa: PLC0415
    from colabdesign.af.alphafold.model import utils  # noqa: PLC0415

    model = mk_afdesign_model(
        protocol=protocol,
        use_templates=True,
        use_bfloat16=False,
        use_remat=False,
        recycle_mode="backprop",
        num_recycles=RECYCLES,
        debug=True,
        dropout=False,
        data_dir="/nowhere",
    )
    settings = json.loads((NETWORK / "meta.json").read_text())["config"]
    sizes = model._cfg.model
    for path, value in numbers(settings):
        *parents, leaf = path
        node = sizes
        for name in parents:
            node = node.get(name, {}) if node else {}
        if node and leaf in node and leaf not in ("subbatch_size", "num_recycle"):
            node[leaf] = value
    model._model_params = [utils.flat_params_to_haiku(from_manifest(NETWORK / "params_manifest.json"), fuse=True)]
    model._model_names = ["tiny"]
    if protocol == "fixbb":
        with tempfile.NamedTemporaryFile("w", suffix=".pdb") as file:
            file.write(moved(STRUCTURE.read_text()))
            file.flush()
            model.prep_inputs(pdb_filename=file.name, chain="A", rm_template_seq=False, rm_template_sc=False)
        model._inputs["offset"] = cyclic_offsets(model._len)
    else:
        model.prep_inputs(length=RESIDUES)
    trunk, length = settings["embeddings_and_evoformer"], model._len
    model._inputs["prev"] = {
        "prev_msa_first_row": np.zeros([length, trunk["msa_channel"]]),
        "prev_pair": np.zeros([length, length, trunk["pair_channel"]]),
        "prev_pos": np.zeros([length, 37, 3]),
    }
    random = np.random.default_rng(7)
    # Without rows, the outer product is a thousand times its bias. With random parameters, logits are then so large
    # that losses have no gradients.
    model._inputs["extra_msa"] = random.integers(0, 20, (1, length))
    model._inputs["extra_msa_mask"] = np.ones((1, length))
    model._params["seq"] = random.normal(size=(1, length, 20))
    model.set_opt(dropout=False, **SETTINGS[protocol])
    model.set_weights(**WEIGHTS[protocol], seq_ent=0.0, exp_res=0.0)
    model.run(backprop=True, models=[0], num_models=1)
    aux = model.aux
    read, outputs = aux["debug"]["inputs"], aux["debug"]["outputs"]
    arrays = {f"input/{name}": np.asarray(read[name]) for name in READ}
    arrays["input/template_all_atom_masks"] = np.asarray(read["template_all_atom_mask"])
    if "offset" in read:
        arrays["input/offsets"] = np.asarray(read["offset"])
    if protocol == "fixbb":
        arrays["input/known_positions"] = np.asarray(model._inputs["batch"]["all_atom_positions"])
        arrays["input/known_mask"] = np.asarray(model._inputs["batch"]["all_atom_mask"])
    arrays["input/numbers"] = model._params["seq"]
    arrays |= {f"loss/{name}": np.asarray(value) for name, value in aux["losses"].items() if name in WEIGHTS[protocol]}
    arrays |= {
        "loss": np.asarray(aux["loss"]),
        "gradient": np.asarray(aux["grad"]["seq"]),
        "output/msa_feat": np.asarray(read["msa_feat"]),
        "output/target_feat": np.asarray(read["target_feat"]),
        "output/plddt": np.asarray(aux["plddt"]),
        "output/pae": np.asarray(aux["pae"]),
        "output/contacts": np.asarray(aux["cmap"]),
        "output/positions": np.asarray(aux["atom_positions"] if protocol == "hallucination" else _unaligned(outputs)),
        "output/pair": np.asarray(outputs["representations"]["pair"]),
        "output/distogram": np.asarray(outputs["distogram"]["logits"]),
    }
    return {name: value.astype(np.float32) if value.dtype.kind == "f" else value for name, value in arrays.items()}


def moved(text: str) -> str:
    """Return a PDB file whose first N is on the x axis, and whose first CA is above it, along y.

    The first residue has a pre-omega torsion from the origin, which AlphaFold does not mask. Elsewhere its direction
    depends on rounding errors.
    """
    lines = text.splitlines()
    places = [index for index, line in enumerate(lines) if line.startswith("ATOM")]
    atoms = np.array([[float(lines[place][start : start + 8]) for start in (30, 38, 46)] for place in places])
    names = [lines[place][12:16].strip() for place in places]
    nitrogen, alpha = (atoms[names.index(name)] for name in ("N", "CA"))
    y = (alpha - nitrogen) / np.linalg.norm(alpha - nitrogen)
    x = np.cross(y, [0.0, 0.0, 1.0])
    x /= np.linalg.norm(x)
    turned = (atoms - nitrogen) @ np.stack([x, y, np.cross(x, y)], 1) + np.array([4.0, 0.0, 0.0])
    for place, (a, b, c) in zip(places, turned.round(3) + 0.0, strict=True):
        lines[place] = f"{lines[place][:30]}{a:8.3f}{b:8.3f}{c:8.3f}{lines[place][54:]}"
    return "\n".join(lines) + "\n"


def numbers(settings: Mapping[str, Any], before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the path and the value of each integer in nested settings."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from numbers(value, (*before, name))
        elif type(value) is int:
            yield (*before, name), value


def cyclic_offsets(length: int) -> np.ndarray:
    """Return the offsets on a ring as in ColabDesign's notebook for cyclic peptides (type 2)."""
    i = np.arange(length)
    ij = np.stack([i, i + length], -1)
    offset = i[:, None] - i[None, :]
    around = np.abs(ij[:, None, :, None] - ij[None, :, None, :]).min((2, 3))
    shorter = around < np.abs(offset)
    around[shorter] = -around[shorter]
    return around * np.sign(offset)


def _unaligned(outputs: Mapping[str, Any]) -> np.ndarray:
    """Return the atoms as the network outputs them, before ColabDesign superposes them on a known structure."""
    return np.asarray(outputs["structure_module"]["final_atom_positions"])


if __name__ == "__main__":
    main()
