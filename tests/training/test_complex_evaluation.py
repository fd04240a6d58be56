"""Held-out complexes are scored as a whole, by chains and by interfaces, whatever equal chains are called."""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from data_pipeline.parse.structures import read_structure
from data_pipeline.residues import ATOM14_TO_ATOM37, ATOM_ORDER
from data_pipeline.sampling.sample import SamplingConfig
from data_pipeline.sampling.training import ExampleConfig
from data_pipeline.training_sets import clustering
from data_pipeline.training_sets.build import BuildOptions, build_store
from data_pipeline.training_sets.chains import ChainFilter
from data_pipeline.training_sets.record_builder import RecordBuilder
from data_pipeline.training_sets.store import FeatureStore
from helixfold.analysis.complexes import compare_complexes
from helixfold.losses.config import complexes, finetuning
from helixfold.model.alphafold import AlphaFold
from helixfold.model.batch import MultimerBatch
from helixfold.model.outputs import Outputs
from helixfold.training import evaluate as module
from helixfold.training.config import EvaluationConfig
from helixfold.training.evaluate import HeldOutScores, deciding_score, evaluate, mean_scores
from helixfold.training.loader import TrainingBatch
from tests.data_pipeline.training_sets.assembly_files import write_mmcif
from tests.support.networks import tiny_multimer_config, with_every_parameter_random
from tests.training.complex_stores import NAMES, store_of_complexes

EXAMPLE = ExampleConfig(
    crop_size=8, sampling=SamplingConfig(max_msa_clusters=2, max_extra_msa=3, max_templates=4, target_as_extra=True)
)
CONFIG = EvaluationConfig(num_recycles=0, max_residues=200, structures=1)
# What a network predicts, from the true atoms (b r 37 3) and the numbers of the chains (b r).
Change = Callable[[Tensor, Tensor], Tensor]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    return store_of_complexes(tmp_path_factory.mktemp("complexes"))


@pytest.fixture(scope="module")
def model() -> AlphaFold:
    return with_every_parameter_random(tiny_multimer_config())


def refuse_to_report(text: str) -> None:
    raise AssertionError(text)


def scored(model: AlphaFold, store: FeatureStore, *names: str, **options: Any) -> tuple[HeldOutScores, ...]:
    settings = {"config": CONFIG, "structures": None, "report": refuse_to_report, "example": EXAMPLE, **options}
    return evaluate(
        model, store, names, loss=complexes(finetuning()), dtype=torch.float32, device=torch.device("cpu"), **settings
    )


def predicting(change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the network predict the truth after a change."""
    forward = module.forward

    def knowing(model: AlphaFold, batch: TrainingBatch, *others: Any) -> Outputs:
        outputs, last, labels = forward(model, batch, *others), batch.recycling_inputs[-1], batch.labels
        assert isinstance(last, MultimerBatch)
        atoms = change(labels.all_atom_positions, last.asym_id)
        index = labels.aatype.new_tensor(np.asarray(ATOM14_TO_ATOM37))[labels.aatype]
        atom14 = atoms.gather(2, index[..., None].expand(*index.shape, 3)) * labels.atom14_atom_exists[..., None]
        structure = replace(
            outputs.structure, positions=atoms, atom14=atom14.expand_as(outputs.structure.atom14).contiguous()
        )
        return replace(outputs, structure=structure)

    monkeypatch.setattr(module, "forward", knowing)


def other_order(atoms: Tensor, chain: Tensor) -> Tensor:
    """Two equal chains exchanged, and the whole complex moved."""
    rotation = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(1)))[0]
    rotation = rotation * torch.det(rotation)
    exchanged = torch.cat([atoms[:, chain[0] == 2], atoms[:, chain[0] == 1]], 1)
    return exchanged @ rotation.T + 7


def test_the_truth_scores_best_in_any_order_of_equal_chains(
    model: AlphaFold, store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    predicting(other_order, monkeypatch)
    for found in scored(model, store, "hairpins", "helices"):
        assert (found.lddt_ca, found.lddt) == (1, 1)
        interface = found.interface
        assert interface is not None
        assert (interface.chains, interface.interfaces) == (2, 1)
        assert (interface.chain_lddt_ca, interface.interface_lddt, interface.fnat, interface.acceptable) == (1, 1, 1, 1)
        assert interface.dockq == pytest.approx(1, abs=1e-4)
        assert interface.chain_tm_score == pytest.approx(1, abs=1e-4)
        assert (interface.irms, interface.lrms) == pytest.approx((0, 0), abs=1e-3)
        assert found.losses["centre_of_mass"] == 0


def test_equal_chains_of_different_shapes_may_be_exchanged(
    model: AlphaFold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clustering, "find_mmseqs", lambda: None)
    chains = [("A", "A", "MKTAYIAKQRW"), ("B", "B", "MKTAYIAKQRW")]
    write_mmcif(tmp_path / "structures/1abc.cif", chains, [("1", "A,B")])
    options = BuildOptions(structures=tmp_path / "structures", output=tmp_path / "store")
    build_store(options, RecordBuilder(filter=ChainFilter(), assemblies=True))
    predicting(other_order, monkeypatch)
    (found,) = scored(model, FeatureStore.open(tmp_path / "store"), "1abc")
    assert found.lddt_ca == 1
    assert found.interface is not None
    assert found.interface.chain_lddt_ca == 1
    assert found.losses["centre_of_mass"] == 0


def test_chains_that_are_right_and_put_together_wrong_are_told_apart(
    model: AlphaFold, store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    predicting(lambda atoms, chain: atoms + 15 * (chain == 2)[..., None, None], monkeypatch)
    (found,) = scored(model, store, "helix_and_strands")
    interface = found.interface
    assert interface is not None
    assert interface.chain_lddt_ca == 1
    assert interface.chain_tm_score == pytest.approx(1, abs=1e-4)
    assert interface.fnat is not None
    assert interface.fnat < 0.1
    assert interface.acceptable == 0
    assert interface.interface_lddt is not None
    assert interface.interface_lddt < 0.2
    assert found.lddt_ca < 0.95
    assert interface.lrms == pytest.approx(15 * 3**0.5, abs=1e-3)


def test_scores_are_those_of_the_structure_that_is_written(
    model: AlphaFold, store: FeatureStore, tmp_path: Path
) -> None:
    """Those that `helixfold evaluate` finds in the file."""
    (found,) = scored(model, store, "helix_and_polyproline", structures=tmp_path)
    assert found.interface is not None
    (path,) = tmp_path.iterdir()
    predicted = read_structure(path).chains
    made = store.load_complex("helix_and_polyproline")
    truth = read_structure(Path(module.__file__).parents[2] / f"examples/complexes/{made.name}.cif").chains
    assert [chain.sequence for chain in predicted] == [chain.sequence for chain in truth]
    compared = compare_complexes(predicted, truth)
    assert compared is not None
    assert found.interface.dockq == pytest.approx(compared.dockq, abs=1e-3)
    assert found.interface.interface_lddt == pytest.approx(compared.interface_lddt, abs=5e-3)
    assert found.tm_score == pytest.approx(compared.tm_score, abs=2e-3)
    assert "DockQ" in path.read_text()
    assert found.interface.iptm is not None
    assert 0 < found.interface.iptm < 1


def test_large_complexes_are_cropped_around_an_interface_always_the_same(
    model: AlphaFold, store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[MultimerBatch] = []
    forward = module.forward

    def remember(model: AlphaFold, batch: TrainingBatch, *others: Any) -> Outputs:
        seen.append(batch.recycling_inputs[-1])  # type: ignore[arg-type]
        return forward(model, batch, *others)

    monkeypatch.setattr(module, "forward", remember)
    config = replace(CONFIG, max_residues=16)
    first = scored(model, store, *NAMES, config=config)
    for name, batch in zip(NAMES, seen, strict=True):
        made = store.load_complex(name)
        alpha = made.labels.all_atom_positions[:, ATOM_ORDER["CA"]]
        places = {*zip(batch.asym_id[0].tolist(), batch.residue_index[0].tolist(), strict=True)}
        everywhere = [*zip(made.features.asym_id.tolist(), made.features.residue_index.tolist(), strict=True)]
        crop = {number for number, place in enumerate(everywhere) if place in places}
        nearest = [{*np.linalg.norm(alpha - centre, axis=-1).argsort(kind="stable")[:16].tolist()} for centre in alpha]
        assert len(crop) == 16
        assert crop in nearest, name
    torch.manual_seed(5)
    assert scored(model, store, NAMES[1], config=config) == first[1:2]


def test_a_network_that_fell_apart_scores_nothing(store: FeatureStore) -> None:
    broken = with_every_parameter_random(tiny_multimer_config())
    with torch.no_grad():
        broken.single.weight.fill_(torch.nan)
    (found,) = scored(broken, store, "helices")
    assert found.interface is not None
    assert (found.lddt_ca, found.interface.dockq, found.interface.chain_lddt_ca) == (0, 0, 0)


def test_means_are_over_the_complexes_that_have_a_score(
    model: AlphaFold, store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    predicting(lambda atoms, _: atoms, monkeypatch)
    (one,) = scored(model, store, "helices")
    assert one.interface is not None
    none = replace(one.interface, interfaces=0, dockq=None, fnat=None, interface_lddt=None)
    means = mean_scores([one, replace(one, interface=none), replace(one, interface=replace(none, dockq=0.5))])
    assert means["dockq"] == pytest.approx((1 + 0.5) / 2, abs=1e-4)
    assert means["fnat"] == 1
    assert deciding_score(means) == means["interface_lddt"] == 1
    assert "interfaces" not in means
    alone = mean_scores([replace(one, interface=none)])
    assert "dockq" not in alone
    assert deciding_score(alone) == alone["lddt_ca"]
    assert deciding_score({}) is None


def test_scores_pass_between_processes(model: AlphaFold, store: FeatureStore) -> None:
    (found,) = scored(model, store, "helices")
    assert HeldOutScores.from_dict(asdict(found)) == found
