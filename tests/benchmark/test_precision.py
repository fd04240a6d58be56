"""The cost of a short precision: nothing for float32, little for others, by part, and a table of changed ranks."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helixfold.benchmark.options import PrecisionOptions, ShortDtype
from helixfold.benchmark.precision import PARTS, Cost, Way, rounded, run, table, ways
from helixfold.execution.whole import Whole
from helixfold.model.outputs import Outputs
from helixfold.ops.dispatch import Op, intercepted
from tests.support.networks import random_batch, tiny_model


@pytest.fixture
def two_targets(tmp_path: Path) -> Path:
    path = tmp_path / "two.fasta"
    path.write_text(">one\nMKVLITGAGSGIGLAEKF\n>two\nGSSGSSGRTYEDLWQKAH\n>long\n" + "A" * 40 + "\n")
    return path


def test_each_way_stands_beside_float32(two_targets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, one_target = two_targets.with_name("costs.json"), two_targets.with_name("one.fasta")
    one_target.write_text("".join(two_targets.read_text().splitlines(keepends=True)[:2]))
    dtypes: tuple[ShortDtype, ...] = ("bfloat16", "float16")
    sizes = PrecisionOptions(targets=(two_targets,), models=("tiny",), max_residues=30, num_recycles=0, json=output)

    def measured(options: PrecisionOptions) -> list[Cost]:
        run(options)
        found = [Cost(**each) for each in json.loads(output.read_text())]
        lines = capsys.readouterr().out.splitlines()
        assert [line[:44].strip() for line in lines[1:]] == list(dict.fromkeys(cost.way for cost in found))
        return found

    costs = measured(replace(sizes, dtypes=dtypes))
    assert {cost.target for cost in costs} == {"one", "two"}
    parts = measured(replace(sizes, targets=(one_target,), dtypes=dtypes[:1], by_part=True))
    assert {cost.target for cost in parts} == {"one"}
    for cost in (*costs, *parts):
        if cost.way.startswith("float32"):
            assert cost.rmsd < 1e-3, cost
            assert cost.pae < 1e-2, cost
        elif "global attention" not in cost.way and "heads" not in cost.way:
            assert 1e-7 < cost.rmsd < 4, cost  # of a random network
    # float16 keeps three bits more.
    means = {way: sum(cost.rmsd for cost in costs if cost.way == str(way)) for way in ways(dtypes, by_part=False)}
    assert means[Way(dtype="float16")] < 0.5 * means[Way(dtype="bfloat16")]
    (heads,) = (cost for cost in parts if "output heads" in cost.way)
    assert heads.rmsd < 1e-5 < heads.plddt, heads


def outputs_of(part: int | None) -> Outputs:
    model, batch = tiny_model(), random_batch()
    with torch.no_grad():
        previous = model(Whole(), [batch]).recycled()
        if part is None:
            return model(Whole(), [batch], previous)
        with rounded(model, PARTS[part], torch.bfloat16):
            return model(Whole(), [batch], previous)


def test_every_part_changes_results_and_their_dtype_stays() -> None:
    exact = outputs_of(None)
    for number, part in enumerate(PARTS):
        found = outputs_of(number)
        assert found.representations.pair.dtype == torch.float32
        changes = {
            "trunk": found.representations.pair - exact.representations.pair,
            "structure module": found.structure.positions - exact.structure.positions,
            "output heads": found.logits.distogram - exact.logits.distogram,
        }
        assert changes[part.within].abs().max() > 1e-5, part
        if part.within != "trunk":
            assert not changes["trunk"].any(), part


def test_the_parts_are_all_that_the_trunk_computes_by_operators() -> None:
    names = set()

    def note(operator: Op, args: tuple[object, ...], kwargs: dict[str, object]) -> object:  # type: ignore[type-arg]
        names.add(operator.name)
        with intercepted(lambda inner, args, kwargs: inner.run(*args, **kwargs)):
            return operator.run(*args, **kwargs)

    model = tiny_model()
    with torch.no_grad(), intercepted(note):
        model.trunk(Whole(), random_batch(), None, torch.float32)
    assert names <= {name for part in PARTS for name in part.operators}


def test_the_table_counts_pairs_whose_order_changes() -> None:
    def costs(way: str, ranks: list[float]) -> list[Cost]:
        return [
            Cost(target=str(number), way=way, rmsd=number / 10, plddt=0.0, mean_plddt=rank, pae=0.0)
            for number, rank in enumerate(ranks)
        ]

    lines = table([*costs("float32", [1, 2, 3, 4]), *costs("bfloat16", [2, 1, 3, 4])])
    assert lines[1].endswith(" 0.00%")
    assert lines[2].endswith("16.67%")
    assert f"{0.15:13.4f}" in lines[2]
    assert str(Way(dtype="bfloat16", plain=True)) == "bfloat16, whole, plain PyTorch"
