"""The scripts that start training on many machines are whole, and every option in them exists."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from helixfold.cli.app import application

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = ("train.slurm", "train_nodes.sh")


@pytest.mark.parametrize("name", SCRIPTS)
def test_it_parses_and_its_options_exist(name: str) -> None:
    path = EXAMPLES / name
    subprocess.run(["bash", "-n", path], check=True)
    lines = path.read_text().replace("\\\n", " ").splitlines()
    (line,) = (line for line in lines if re.match(r"(srun|exec) .*torchrun", line))
    words = shlex.split(line[line.index("torchrun") :].removesuffix("&"))[1:]
    end = words.index("helixfold.cli.main") + 1
    launcher = get_args_parser().parse_args(words[:end])
    assert (launcher.module, launcher.training_script) == (True, "helixfold.cli.main")
    assert (launcher.rdzv_backend, launcher.max_restarts) == ("c10d", 100)
    example = next(line for line in lines if name in line).split(name)[1].replace("TRAINING_SET RUN", "")
    given = [*words[end:-1], *example.split()]
    options = application(given).parse_args(given)[1].arguments["options"]
    assert (options.layout, options.timeout, options.preset) == ("dap=2", 300, "initial_training")
