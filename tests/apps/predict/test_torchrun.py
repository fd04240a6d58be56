"""`torchrun -m helixfold predict`, which needs no clone, divides targets among processes that it started."""

import json
import re
import subprocess
import sys
from pathlib import Path


def test_processes_of_torchrun_divide_the_targets_of_an_installed_package(tmp_path: Path) -> None:
    fasta = tmp_path / "two.fasta"
    fasta.write_text(">one\nMKTAYIAKQRQISFVK\n>two\nMKTAYIAKQRQISFV\n")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = ["two.fasta", "--models", "tiny", "--device", "cpu", "--num-recycles", "0", "--output", "out"]
    command = [*torchrun, "-m", "helixfold", "predict", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, done.stderr
    assert set(re.findall(r"(?m)^rank ([01]): (?:one|two): mean pLDDT", done.stdout)) == {"0", "1"}
    for name in ("one", "two"):
        assert (tmp_path / "out" / name / "ranked_0.pdb").is_file()
        settings = json.loads((tmp_path / "out" / name / "settings.json").read_text())
        assert "predict" in str(settings["provenance"])
    assert not (tmp_path / "out" / "failures.json").exists()
