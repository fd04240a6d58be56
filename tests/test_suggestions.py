"""An error that lists choices ends with the one that may be meant, wherever the word comes from."""

from collections.abc import Callable
from pathlib import Path

import pytest

from data_pipeline.io.errors import InputError
from data_pipeline.search.alignment_server import ServerOptions
from data_pipeline.search.database_profile import read_database_profile
from helixfold.apps.cluster.site import read_site
from helixfold.apps.design.options import DesignOptions
from helixfold.apps.evaluate.benchmark_table import read_benchmark
from helixfold.apps.score.mutations import TargetChains
from helixfold.apps.serve.alignment_request import AlignmentRequest
from helixfold.folding.options import FoldingOptions
from helixfold.folding.residue_offsets import rings_of
from helixfold.model.config import ModelConfig
from helixfold.model.presets import preset, tiny
from helixfold.planning.memory import MemoryOptions
from helixfold.training.finetune.jobs import read_tasks
from helixfold.training.presets import training_preset
from helixfold.training.recipes import recipe

Reader = Callable[[Path], object]
CHAINS = TargetChains(target="t", names=("A", "B"), sequences=("MK", "MK"))


def file(name: str, content: str, read: Reader) -> Reader:
    def written(folder: Path) -> object:
        path = folder / name
        path.write_text(content)
        return read(path)

    return written


def profile(path: Path) -> object:
    return read_database_profile(path, ())


def tasks(path: Path) -> object:
    return read_tasks(path, tiny(), path.parent)


ALIGNMENTS = "[[alignments]]\nname = 'a'\npath = 'x'\n"
CASES: dict[str, tuple[Reader, str]] = {
    "a model": (lambda _: preset("model_1_pmt"), "model_1_ptm"),
    "a preset of trainings": (lambda _: training_preset("initail_training"), "initial_training"),
    "a recipe": (lambda _: recipe("smal"), "small"),
    "a setting": (lambda _: ModelConfig().with_settings(["evoformer.blcoks=3"]), "blocks"),
    "the value of a setting": (lambda _: ModelConfig().with_settings(["method=multimre"]), "multimer"),
    "a precision": (lambda _: FoldingOptions(dtype="bfloat61"), "bfloat16"),
    "representations": (lambda _: FoldingOptions(representations=("pari",)), "pair"),  # type: ignore[arg-type]
    "an executor": (lambda _: MemoryOptions(executor="spiled"), "spilled"),
    "an optimizer": (lambda _: DesignOptions(optimizer="adm"), "adam"),  # type: ignore[arg-type]
    "a mode of a server": (
        lambda _: ServerOptions(url="http://x", mode="nofiltr"),  # type: ignore[arg-type]
        "nofilter",
    ),
    "a mode of our server": (
        lambda _: AlignmentRequest(kind="msa", mode="env-nofiltr", names=("1",), sequences=("M",)),
        "env-nofilter",
    ),
    "a chain of a ring": (lambda _: rings_of(("A", "B"), ["b"], "t"), "B"),
    "a chain with a mutation": (lambda _: CHAINS.position("a", 1), "A"),
    "a key of a profile": (file("p.toml", f"{ALIGNMENTS}tol = 'x'\n", profile), "tool"),
    "a tool of a profile": (file("p.toml", f"{ALIGNMENTS}tool = 'jakhmmer'\n", profile), "jackhmmer"),
    "a table of a cluster": (file("s.toml", "[serch]\n", read_site), "search"),
    "a key of a cluster": (file("s.toml", "[fold.a]\nmemroy = '2GiB'\n", read_site), "memory"),
    "a table of fine-tunings": (file("j.toml", "[[jobs]]\nname = 'a'\n", tasks), "job"),
    "a key of a fine-tuning": (file("j.toml", "[[job]]\nname = 'a'\ntrainig_set = 'x'\n", tasks), "training_set"),
    "an adapter": (file("j.toml", "[[job]]\nname = 'a'\ntraining_set = 'x'\nadapter = 'lra'\n", tasks), "lora"),
    "a column of a benchmark": (
        file("b.csv", "id,sequnce\na,MK\n", lambda path: read_benchmark(str(path))),
        "sequence",
    ),
}


@pytest.mark.parametrize(("read", "nearest"), CASES.values(), ids=CASES)
def test_the_nearest_choice_is_offered(read: Reader, nearest: str, tmp_path: Path) -> None:
    with pytest.raises((InputError, ValueError)) as caught:
        read(tmp_path)
    assert str(caught.value).endswith(f"; did you mean {nearest}?")
