"""How a command comes to the network: few calls, which a person can follow in a traceback."""

import traceback
from pathlib import Path
from typing import Any

import pytest

from helixfold.apps.predict import lot
from helixfold.cli.main import main
from helixfold.model.alphafold import AlphaFold
from tests.support.sources import ROOT

MOST_FRAMES, MOST_MODULES = 12, 10


@pytest.mark.usefixtures("quick")
def test_the_network_is_few_calls_below_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stacks: list[list[traceback.FrameSummary]] = []
    fold = AlphaFold.fold

    def watched(network: AlphaFold, *given: Any, **named: Any) -> Any:
        if next(network.parameters()).device.type != "meta":  # where memory is counted
            stacks.append(traceback.extract_stack()[:-1])
        return fold(network, *given, **named)

    monkeypatch.setattr(AlphaFold, "fold", watched)
    assert main(["predict", "MKTAYIAKQR", "--models", "tiny", "--num-recycles", "0", "--output", str(tmp_path)]) == 0
    (stack,) = stacks
    own = [frame for frame in stack if Path(frame.filename).is_relative_to(ROOT / "helixfold")]
    # And two more: `command`, by which a process begins, and `AlphaFold.fold` itself, in a module of its own.
    assert len(own) + 2 <= MOST_FRAMES, [(frame.filename, frame.name) for frame in own]
    assert len({frame.filename for frame in own}) + 1 <= MOST_MODULES
    assert lot.__file__ in {frame.filename for frame in own}
    assert not [frame.name for frame in own if frame.name.startswith("<")]
