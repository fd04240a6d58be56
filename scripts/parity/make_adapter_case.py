"""Make the parity case of a merged adapter: DeepMind's code with a `.npz` file from `helixfold weights merge`.

    python scripts/parity/make_adapter_case.py

It writes tests/parity/data/adapter.npz: the inputs of the network (`in:`), and the outputs of DeepMind's code (`out:`)
with the parameters of the demonstration model plus a random adapter. Install its requirements:
    pip install -c constraints.txt -e '.[parity]'
"""

import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # Python finds only the folder of a script

from helixfold.model.presets import preset
from helixfold.weights.adapters import AdapterCard, WeightedAdapter, save_adapter
from helixfold.weights.demonstration import NAME, WEIGHTS
from helixfold.weights.files import merge
from helixfold.weights.load import load_weights
from helixfold.weights.low_rank import LORA_A, LORA_B, MAGNITUDE, LowRankConfig, row_lengths
from helixfold.weights.tensor_file import digest_of
from tests.parity.cases import DATA
from tests.parity.spec import LIKE_DEMONSTRATION, Spec
from tests.parity.synthetic_features import make_features

SPEC = Spec(
    model=LIKE_DEMONSTRATION,
    channels="demonstration",
    evoformer=6,
    res=18,
    seq=8,
    extra_seq=12,
    templ=2,
    real_templ=1,
    seed=41,
)
# Changes of every part of the network, each with a different length.
LOW_RANK = LowRankConfig(rank=3, alpha=2.0, targets="*", decomposed=True)
STORED_OUTPUTS = (
    *("structure_module/final_atom_positions", "predicted_lddt/logits", "predicted_aligned_error/logits"),
    *("distogram/logits", "masked_msa/logits", "representations/pair"),
)


def main() -> None:
    """Compute and write the parity case."""
    from tests.parity import deepmind  # noqa: PLC0415 (it needs the extra)

    features = make_features(SPEC)
    with tempfile.TemporaryDirectory() as directory:
        merged = Path(directory) / f"params_{NAME}.npz"
        merge(WEIGHTS, merged, [WeightedAdapter(path=random_adapter(Path(directory)))])
        outputs = deepmind.run(SPEC, features, dict(np.load(merged))).outputs
    stored = {f"in:{name}": value for name, value in features.items()}
    stored |= {f"out:{name}": outputs[name] for name in STORED_OUTPUTS}
    np.savez_compressed(DATA / "adapter.npz", **stored)  # type: ignore[arg-type]
    print(f"{len(STORED_OUTPUTS)} outputs")


def random_adapter(directory: Path) -> Path:
    """Write a reproducible random adapter of the demonstration model that changes every linear map."""
    state = load_weights(WEIGHTS, preset(NAME).model)
    tensors = {}
    for name in LOW_RANK.matching_maps({each: tuple(tensor.shape) for each, tensor in state.items()}):
        weight, random = state[f"{name}.weight"], np.random.RandomState(zlib.crc32(name.encode()))
        outputs, inputs = weight.shape
        deviation = float(weight.std())
        a, b = (random.standard_normal(shape) for shape in ((LOW_RANK.rank, inputs), (outputs, LOW_RANK.rank)))
        tensors[f"{name}.{LORA_A}"] = torch.from_numpy(a).float()
        tensors[f"{name}.{LORA_B}"] = torch.from_numpy(0.2 * deviation * b).float()
        lengths = 1 + 0.1 * random.standard_normal(outputs)
        tensors[f"{name}.{MAGNITUDE}"] = row_lengths(weight) * torch.from_numpy(lengths).float()
    card = AdapterCard(kind="lora", base=digest_of(state), base_name=WEIGHTS.name, low_rank=LOW_RANK)
    save_adapter(directory / "adapter.safetensors", tensors, card)
    return directory / "adapter.safetensors"


if __name__ == "__main__":
    main()
