"""Held-out chains are scored alike whenever and wherever they are, and none of them stops a run."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from data_pipeline.features.labels import ChainLabels
from data_pipeline.features.schema import Features
from data_pipeline.io.config import ConfigError
from data_pipeline.io.errors import InputError
from data_pipeline.parse.structures import read_structure
from data_pipeline.residues import ATOM_ORDER
from data_pipeline.sampling.alignment_augmentation import AlignmentAugmentation
from data_pipeline.sampling.sample import SamplingConfig
from data_pipeline.sampling.template_augmentation import TemplateAugmentation
from data_pipeline.sampling.training import ExampleConfig
from data_pipeline.training_sets.examples import ChainStore
from helixfold.analysis.metrics import superposed_scores
from helixfold.execution.whole import Whole
from helixfold.losses.config import LossConfig, finetuning
from helixfold.losses.total import total_loss
from helixfold.losses.violations import violations
from helixfold.model.alphafold import AlphaFold
from helixfold.model.outputs import Outputs
from helixfold.model.update import Executor
from helixfold.training import evaluate as module
from helixfold.training.config import EvaluationConfig
from helixfold.training.evaluate import HeldOutScores, evaluate, mean_scores, read_names
from helixfold.training.loader import TrainingBatch
from tests.data_pipeline.training_sets.memory_store import MemoryStore, entry, small_store
from tests.support.networks import tiny_model

EXAMPLE = ExampleConfig(
    crop_size=8,
    sampling=SamplingConfig(max_msa_clusters=4, max_extra_msa=6, max_templates=2),
    spatial_crop_probability=1.0,
    unclamped_fraction=1.0,
)
CONFIG = EvaluationConfig(num_recycles=1, max_residues=30, structures=2)
CA = ATOM_ORDER["CA"]
CHAINS = {"chain1", "chain2", "chain3"}


@pytest.fixture(scope="module")
def model() -> AlphaFold:
    return tiny_model().eval()


def scored(model: AlphaFold, store: ChainStore, *names: str, **options: Any) -> tuple[HeldOutScores, ...]:
    settings = {
        "config": CONFIG,
        "structures": None,
        "report": refuse_to_report,
        "loss": LossConfig(),
        "example": EXAMPLE,
        **options,
    }
    return evaluate(model, store, names, dtype=torch.float32, device=torch.device("cpu"), **settings)


def refuse_to_report(text: str) -> None:
    raise AssertionError(text)


@pytest.mark.integration
def test_a_chain_scores_the_same_in_any_company(model: AlphaFold) -> None:
    store = small_store()
    together = scored(model, store, "chain0", "chain1", "chain2")
    torch.manual_seed(1)
    np.random.default_rng(5).random()
    assert scored(model, store, "chain2") == together[2:]
    assert scored(model, store, "chain1", "chain0") == (together[1], together[0])
    assert len({each.lddt_ca for each in together}) == 3


@pytest.mark.integration
def test_a_held_out_chain_never_has_its_own_structure_as_a_template(model: AlphaFold) -> None:
    augmented = replace(
        EXAMPLE,
        template_augmentation=TemplateAugmentation(own_fraction=1.0),
        alignment_augmentation=AlignmentAugmentation(alone_fraction=1.0),
    )
    store = small_store()
    assert scored(model, store, "chain0", example=augmented) == scored(model, store, "chain0")


@pytest.mark.integration
def test_scores_are_of_whole_chains_or_of_one_stretch(model: AlphaFold) -> None:
    store = MemoryStore((entry("short", length=21), entry("long", length=90)))
    short, long = scored(model, store, "short", "long")
    assert (short.residues, long.residues) == (21, 30)
    # The stretch is the same however often the chain is recycled.
    seen: list[torch.Tensor] = []

    def remember(model: AlphaFold, batch: TrainingBatch, run: Executor, dtype: torch.dtype) -> Outputs:
        seen.append(batch.recycling_inputs[-1].residue_index)
        return forward(model, batch, run, dtype)

    forward = module.forward
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "forward", remember)
        scored(model, store, "long")
        scored(model, store, "long", config=replace(CONFIG, num_recycles=0))
    assert torch.equal(*seen)
    assert torch.equal(seen[0].diff(), torch.ones(1, 29, dtype=torch.int64))


@pytest.mark.integration
def test_chains_of_other_names_are_drawn_otherwise_and_no_row_is_deleted(model: AlphaFold) -> None:
    seen: list[TrainingBatch] = []

    def remember(model: AlphaFold, batch: TrainingBatch, run: Executor, dtype: torch.dtype) -> Outputs:
        seen.append(batch)
        return forward(model, batch, run, dtype)

    forward = module.forward
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "forward", remember)
        store = MemoryStore((entry("one", length=20), entry("two", length=20)))  # of the same features
        scored(model, store, "one", "two", example=replace(EXAMPLE, sampling=SamplingConfig(max_msa_clusters=64)))
    one, two = (batch.recycling_inputs[0].msa_feat for batch in seen)
    assert one.shape[1] == two.shape[1] >= 25
    assert not torch.equal(one, two)


@pytest.mark.integration
def test_losses_are_those_of_training_with_the_whole_network(model: AlphaFold) -> None:
    batches: list[TrainingBatch] = []

    def remember(model: AlphaFold, batch: TrainingBatch, run: Executor, dtype: torch.dtype) -> Outputs:
        batches.append(batch)
        return forward(model, batch, run, dtype)

    forward = module.forward
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "forward", remember)
        (found,) = scored(model, small_store(), "chain3", loss=finetuning())
    (batch,) = batches
    assert len(batch.recycling_inputs) == 2
    assert batch.labels.use_clamped_fape.tolist() == [1]
    with torch.no_grad():
        first = model(Whole(), [batch.recycling_inputs[0]])
        outputs = model(Whole(), [batch.recycling_inputs[1]], first.recycled())
        losses = total_loss(outputs, batch.recycling_inputs[1], batch.labels, finetuning())
    expected = {name: float(value) for name, value in losses.terms().items()}
    assert found.losses == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert found.losses["total"] > 0
    labels, numbers = batch.labels, batch.recycling_inputs[1].residue_index
    broken = violations(outputs.structure.atom14[-1], labels.atom14_atom_exists, labels.aatype, numbers)
    assert found.violations == pytest.approx(float(broken.residues_mask.mean()))
    assert found.violations > float(broken.within_mask.amax(-1).mean())


def with_truth(exchange: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Outputs]:
    """A network that knows the answer, as far as it was observed, and puts other atoms anywhere."""
    forward = module.forward

    def knowing(model: AlphaFold, batch: TrainingBatch, run: Executor, dtype: torch.dtype) -> Outputs:
        outputs, labels = forward(model, batch, run, dtype), batch.labels
        atoms = torch.where(
            exchange(labels.aatype)[..., None, None], labels.atom14_alt_gt_positions, labels.atom14_gt_positions
        )
        anywhere = 50 * torch.randn_like(labels.all_atom_positions) * (1 - labels.all_atom_mask[..., None])
        structure = replace(
            outputs.structure,
            positions=labels.all_atom_positions + anywhere + 5,
            atom14=atoms.expand_as(outputs.structure.atom14),
        )
        return replace(outputs, structure=structure)

    return knowing


@pytest.mark.integration
@pytest.mark.parametrize(("exchanged", "every"), [(False, 1), (True, 1), (False, 3)])
def test_the_truth_scores_best_under_either_name_of_ambiguous_atoms(
    model: AlphaFold, monkeypatch: pytest.MonkeyPatch, exchanged: bool, every: int
) -> None:
    """Residues that were not observed count nowhere."""
    monkeypatch.setattr(module, "forward", with_truth(lambda aatype: torch.full(aatype.shape, exchanged)))
    # Every atom observed: of a pair that is half observed no one knows which half.
    (found,) = scored(model, Observed(small_store(), every), "chain4")
    assert (found.lddt_ca, found.lddt, found.gdt_ts, found.gdt_ha) == (1, 1, 1, 1)
    assert found.tm_score == pytest.approx(1)
    assert found.rmsd == pytest.approx(0, abs=1e-4)


class Observed:
    """The same store, with all atoms of every residue observed, of some of them, or (0) of none."""

    def __init__(self, store: MemoryStore, every: int = 1) -> None:
        self.store, self.entries, self.every = store, store.entries, every

    def load(self, name: str) -> tuple[Features, ChainLabels]:
        features, labels = self.store.load(name)
        positions = 20 * np.random.default_rng(0).random(labels.all_atom_positions.shape, np.float32)
        mask = np.zeros_like(labels.all_atom_mask)
        if self.every:
            mask[:: self.every] = 1
        positions *= mask[..., None]
        return features, replace(labels, all_atom_positions=positions, all_atom_mask=mask)


@pytest.mark.integration
def test_a_model_in_training_is_evaluated_alike_and_torchs_random_numbers_stay(model: AlphaFold) -> None:
    mixed = tiny_model().train()
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    assert scored(mixed, small_store(), "chain0") == scored(model, small_store(), "chain0")
    assert torch.equal(torch.rand(1), expected)
    with pytest.raises(ZeroDivisionError):
        scored(mixed, small_store(faulty=frozenset({"chain1"})), "chain1")


@pytest.mark.integration
def test_chains_that_cannot_be_used_are_reported_and_left_out(model: AlphaFold) -> None:
    said: list[str] = []
    store = small_store(damaged=frozenset({"chain1"}))
    found = scored(model, store, "chain0", "chain1", "chain2", report=said.append)
    assert [each.name for each in found] == ["chain0", "chain2"]
    assert said == ["held-out chain chain1 is skipped: the record of 'chain1' is damaged"]
    assert scored(model, Observed(store, every=0), "chain0", report=said.append) == ()
    assert "none of the C-alpha atoms" in said[1]


@pytest.mark.integration
def test_a_network_that_fell_apart_scores_nothing_and_goes_on(tmp_path: Path) -> None:
    broken = tiny_model()
    with torch.no_grad():
        broken.single.weight.fill_(torch.nan)
    said: list[str] = []
    found = scored(broken, small_store(), "chain0", "chain1", structures=tmp_path, report=said.append)
    assert [(each.lddt_ca, each.lddt, each.tm_score) for each in found] == [(0, 0, 0)] * 2
    assert np.isnan(mean_scores(found)["loss"])
    assert len(said) == 2
    assert "cannot write the structure of held-out chain" in said[0]
    assert not [*tmp_path.iterdir()]


@pytest.mark.integration
def test_structures_are_the_ones_that_were_scored(model: AlphaFold, tmp_path: Path) -> None:
    store = Observed(small_store(), every=3)
    found = scored(model, store, "chain5", "chain6", "chain7", structures=tmp_path / "new")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["chain5.pdb", "chain6.pdb"]
    (written,) = read_structure(tmp_path / "new" / "chain5.pdb").chains
    assert len(written.sequence) == found[0].residues
    features, labels = store.load("chain5")
    start = features.sequence.index(written.sequence)
    crop = slice(start, start + found[0].residues)
    observed = labels.all_atom_mask[crop, CA] > 0
    again = superposed_scores(written.atom_positions[observed, CA], labels.all_atom_positions[crop][observed, CA])
    assert 0.2 < observed.mean() < 0.5
    assert np.abs(written.atom_positions[:, CA].mean(0)).max() < 1e-3
    assert again.tm_score == pytest.approx(found[0].tm_score, abs=2e-3)
    assert again.rmsd == pytest.approx(found[0].rmsd, abs=2e-3)
    assert written.b_factors[:, CA].mean() == pytest.approx(found[0].plddt, abs=0.01)
    assert list(written.residue_numbers) == [*range(start + 1, start + 1 + found[0].residues)]


@pytest.mark.integration
def test_no_name_leads_out_of_the_directory_and_no_disk_stops_a_run(model: AlphaFold, tmp_path: Path) -> None:
    store = MemoryStore((entry("../../evil", length=12), entry("good", length=12)))
    scored(model, store, "../../evil", structures=tmp_path / "a" / "b")
    (written,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert written.parent == tmp_path / "a" / "b"
    assert written.name.startswith("chain_")
    said: list[str] = []
    (tmp_path / "file").touch()
    assert len(scored(model, store, "good", structures=tmp_path / "file" / "x", report=said.append)) == 1
    assert len(said) == 1
    assert "cannot write the structure of held-out chain good" in said[0]


def test_a_summary_is_of_means() -> None:
    one = HeldOutScores(
        name="a",
        residues=10,
        lddt_ca=0.5,
        lddt=0.4,
        tm_score=0.3,
        gdt_ts=0.2,
        gdt_ha=0.1,
        rmsd=5.0,
        plddt=70.0,
        violations=0.0,
        losses={"lddt": 2.0, "weighted": 30.0},
    )
    other = replace(one, name="b", lddt_ca=0.7, losses={"lddt": 4.0, "weighted": 10.0})
    means = mean_scores([one, other])
    assert means["lddt_ca"] == pytest.approx(0.6)
    assert (means["loss"], means["loss/lddt"], means["lddt"]) == pytest.approx((20, 3, 0.4))
    assert not {"name", "residues", "losses", "interface", "dockq"} & means.keys()
    assert mean_scores([]) == {}


def test_a_list_of_names_has_comments_and_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "held_out.txt"
    path.write_text("# chains of the spring\nchain3\n\n  chain1  # long\r\nchain2")
    assert read_names(path, CHAINS) == ("chain3", "chain1", "chain2")
    path.write_text("#chain3\nlike#this\t# and no other\n")
    assert read_names(path, {"like#this"}) == ("like#this",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"chain1\nchain99\n", "line 2: the feature store has no chain 'chain99'"),
        (b"chain1\n\nchain1\n", "line 3: 'chain1' is also in line 1"),
        (b"# nothing\n", "the file has no chain names"),
        (b"\xff\x00\xfe", "not UTF-8"),
    ],
)
def test_a_wrong_list_says_where(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "list"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_names(path, CHAINS)


def test_a_missing_list_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_names(tmp_path / "absent", CHAINS)
    with pytest.raises(InputError, match="is a directory; pass a file with the name of one chain on each line"):
        read_names(tmp_path, CHAINS)


@pytest.mark.parametrize(
    "setting", [{"every": 0}, {"max_residues": 0}, {"num_recycles": -1}, {"structures": -1}], ids=str
)
def test_settings_that_cannot_be_are_refused(setting: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(setting))):
        EvaluationConfig(**setting)
    assert EvaluationConfig.from_dict(CONFIG.to_dict()) == CONFIG
