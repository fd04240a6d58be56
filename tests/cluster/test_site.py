"""The file of a cluster is read, and what is wrong with it is one sentence."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.errors import InputError
from helixfold.cluster.site import Site, read_site

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
        ("[fold]\nnodes = 2", "write each pool of folding nodes as a table of its own, such as [fold.gpu]"),
        ("[fold.a]\ngpu = 2", "[fold.a]: unknown gpu; it can hold provider, nodes,"),
        ("[fold.a]\nprovider = 'sge'", "[fold.a]: provider must be one of local, slurm, pbs, lsf, kubernetes, got"),
        ("[fold.a]\nnodes = 0", "[fold.a]: nodes must be a whole number from 1 to 10,000, got 0"),
        ("[fold.a]\nnodes = true", "[fold.a]: nodes must be a whole number"),
        ("[fold.a]\nmemory = '8'", "[fold.a]: memory must be a size with its unit"),
        ("[fold.a]\nwalltime = '1 day'", "[fold.a]: walltime must be a time such as '24:00:00'"),
        ("[fold.a]\ngpus = 2", "[fold.a]: name the kind of its GPUs: card = one of t4,"),
        ("[fold.a]\ncard = 'a100'", "[fold.a]: card is the kind of GPUs; say how many a node has: gpus"),
        ("[fold.a]\ngpus = 2\ncard = 'a100'\nworkers = 1", "[fold.a]: a node with GPUs has a worker for each"),
        ("[fold.a]\nprovider = 'slurm'", "[fold.a]: say how much memory a node has"),
        ("[fold.a]\nimage = 'x'", "[fold.a]: image is for Kubernetes"),
        ("[fold.search]", "a pool of folding nodes cannot be named 'search'"),
        ("[fold.'a b']", "[fold.a b]: a pool's name is at most 31 letters"),
        ("[search]\ngpus = 1\ncard = 'a100'", "[search]: searches run on processors; leave out gpus"),
        ("search = 1", "write the pool as a table [search]"),
        ("address = 3", "address must be that of this machine"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        site(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'site.toml'}: {problem}")
    assert "\n" not in str(caught.value)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=80) | st.sampled_from(WHOLE.splitlines()).map(lambda line: WHOLE.replace(line, line[:-2])))
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    directory = tmp_path_factory.mktemp("site")
    try:
        site(directory, text)
    except InputError as error:
        assert "\n" not in str(error)
