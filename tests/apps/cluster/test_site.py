"""The file of a cluster is read, and what is wrong with it is one sentence."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.io.errors import InputError
from helixfold.apps.cluster.site import Site, read_site

WHOLE = """
address = "10.0.0.1"

[search]
provider = "slurm"
nodes = 40
cores = 32
memory = "200GiB"
queue = "cpu"

[fold.a100]
provider = "slurm"
nodes = 8
gpus = 4
card = "a100"
cores = 64
memory = "400GiB"
walltime = "12:00:00"
directives = ["#SBATCH --qos=long"]

[fold.here]
memory = "8GiB"
task_minutes = 0.5
"""


def site(tmp_path: Path, text: str) -> Site:
    path = tmp_path / "site.toml"
    path.write_text(text)
    return read_site(path)


def test_pools_are_read(tmp_path: Path) -> None:
    found = site(tmp_path, WHOLE)
    assert found.search is not None
    assert (found.search.slots, found.search.threads, found.search.memory) == (40, 32, 200 * 2**30)
    gpu, here = found.folding
    assert (gpu.slots, gpu.workers, gpu.threads, gpu.device, gpu.memory_of_worker) == (32, 4, 16, "cuda", 100 * 2**30)
    assert gpu.directives == ("#SBATCH --qos=long",)
    assert (here.provider, here.slots, here.device, here.task_minutes) == ("local", 1, "cpu", 0.5)
    assert [pool.name for pool in found.pools] == ["search", "a100", "here"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[search", "not a TOML file of a cluster"),
        ("[folding.a]", "unknown folding; it can hold address, search, fold, train"),
        ("[fold]\nnodes = 2", "write each pool of folding nodes as a separate table, such as [fold.gpu]"),
        ("[fold.a]\ngpu = 2", "[fold.a]: unknown gpu; it can hold provider, nodes,"),
        ("[fold.a]\nprovider = 'sge'", "[fold.a]: provider must be one of local, slurm, pbs, lsf, kubernetes, got"),
        ("[fold.a]\nnodes = 0", "[fold.a]: nodes must be a whole number from 1 to 10,000, got 0"),
        ("[fold.a]\nnodes = true", "[fold.a]: nodes must be a whole number"),
        ("[fold.a]\nmemory = '8'", "[fold.a]: memory must be a size with its unit"),
        ("[fold.a]\nwalltime = '1 day'", "[fold.a]: walltime must be a time such as '24:00:00'"),
        ("[fold.a]\ngpus = 2", "[fold.a]: card, the model of the GPUs, is missing; set one of t4,"),
        ("[fold.a]\ncard = 'a100'", "[fold.a]: gpus, the number of GPUs of a node, is missing"),
        ("[fold.a]\ngpus = 2\ncard = 'a100'\nworkers = 1", "[fold.a]: workers cannot be set for nodes with GPUs"),
        ("[fold.a]\nprovider = 'slurm'", "[fold.a]: memory of a node is missing"),
        ("[fold.a]\nimage = 'x'", "[fold.a]: image can only be set for Kubernetes"),
        ("[fold.search]", "a pool of folding nodes cannot be named 'search'"),
        ("[fold.'a b']", "[fold.a b]: a pool's name is at most 31 letters"),
        ("[search]\ngpus = 1\ncard = 'a100'", "[search]: gpus cannot be set because searches run on processors"),
        ("search = 1", "write the pool as a table [search]"),
        ("address = 3", "address must be the address at which the nodes reach this machine"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        site(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'site.toml'}: {problem}")
    assert "\n" not in str(caught.value)


# What a key of a pool takes, and what it refuses.
VALUES: dict[str, tuple[list[Any], list[Any]]] = {
    "nodes": ([1, 40, 10_000], [0, -1, 10_001, True, 1.5, "4"]),
    "workers": ([1, 3], [0, 1025, False]),
    "cores": ([1, 64], [0, "8"]),
    "memory": (["1GiB", "200GiB"], ["8", 8, ""]),
    "walltime": (["12:00:00", "999:59:59"], ["12:60:00", "1 day", 12]),
    "queue": (["cpu"], ["", "a b", 3]),
    "directives": ([[], ["#SBATCH --qos=long", "#SBATCH -x a"]], ["x", ["a\nb"], [1]]),
    "task_minutes": ([0.5, 1440], [0, -1, 1441, "x", True]),
}
TABLES = st.fixed_dictionaries(
    {},
    optional={
        key: st.sampled_from([*((value, True) for value in right), *((value, False) for value in wrong)])
        | st.sampled_from([(value, True) for value in right])
        for key, (right, wrong) in VALUES.items()
    },
)


@settings(max_examples=100, deadline=None)
@given(TABLES)
def test_a_pool_has_the_values_of_its_table_or_a_wrong_one_is_named(
    tmp_path_factory: pytest.TempPathFactory, table: dict[str, tuple[Any, bool]]
) -> None:
    # Numbers, texts and lists of them are written alike in JSON and TOML.
    text = "[fold.a]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, (value, _) in table.items())
    wrong = [key for key, (_, is_right) in table.items() if not is_right]
    if wrong:
        with pytest.raises(InputError, match=rf"\[fold\.a\]: ({'|'.join(wrong)}) ") as caught:
            site(tmp_path_factory.mktemp("site"), text)
        assert "\n" not in str(caught.value)
        return
    (pool,) = site(tmp_path_factory.mktemp("site"), text).folding
    for key, (value, _) in table.items():
        expected = int(value.removesuffix("GiB")) * 2**30 if key == "memory" else value
        assert getattr(pool, key) == (tuple(expected) if isinstance(expected, list) else expected)


@pytest.mark.integration
@settings(max_examples=100, deadline=None)
@given(st.text(max_size=80) | st.sampled_from(WHOLE.splitlines()).map(lambda line: WHOLE.replace(line, line[:-2])))
def test_any_text_is_the_tables_it_holds_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    directory = tmp_path_factory.mktemp("site")
    try:
        found = site(directory, text)
    except InputError as error:
        assert "\n" not in str(error)
    else:
        # Python ends lines of a text file in \n.
        lines = text.replace("\r\n", "\n").replace("\r", "\n")
        assert [pool.name for pool in found.folding] == list(tomllib.loads(lines).get("fold", {}))
