"""State to keep in checkpoints, and ways to damage them."""

import shutil
from pathlib import Path

import torch
from torch import Tensor

from helixfold.parallel.mesh import Mesh
from helixfold.training import checkpoint, checkpoint_files
from helixfold.training.checkpoint import Checkpoints, Restored

ROOT = Path(__file__).parents[2]
ALONE = Mesh.alone()


def state(step: int) -> dict[str, Tensor]:
    """Tensors of the kinds that training state has; each number tells its step."""
    generator = torch.Generator().manual_seed(step)
    return {
        "masters": torch.randn(1000, generator=generator),
        "working": torch.randn(33, generator=generator).bfloat16(),
        "layers": torch.randn(3, 5, generator=generator),
        "updates": torch.tensor(step),
        "flags": torch.tensor([True, False, step % 2 == 0]),
        "empty": torch.zeros(0),
    }


def blank() -> dict[str, Tensor]:
    return {name: torch.full_like(tensor, 7) for name, tensor in state(0).items()}


def saved(directory: Path, *steps: int, keep: int = 3) -> Checkpoints:
    checkpoints = Checkpoints(directory, keep=keep, mesh=ALONE)
    for step in steps:
        checkpoints.save(step, state(step), {"loss": step / 3, "notes": ["ä", None]})
    checkpoints.finish()
    return checkpoints


def restored(directory: Path) -> Restored:
    """The newest whole checkpoint, after every bit of its tensors was compared."""
    tensors = blank()
    found = Checkpoints(directory, mesh=ALONE).restore(tensors)
    assert found is not None
    assert_same(tensors, state(found.step))
    assert found.record == {"loss": found.step / 3, "notes": ["ä", None]}
    return found


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        other = theirs[name]
        assert tensor.dtype == other.dtype
        flat, flat_other = tensor.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8)
        assert torch.equal(flat, flat_other), name


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name != checkpoint.LOCK)


def files(directory: Path, step: int) -> list[Path]:
    return sorted(checkpoint_files.checkpoint_path(directory, step).iterdir())


def largest(directory: Path, step: int) -> Path:
    return max(files(directory, step), key=lambda path: path.stat().st_size)


def remove(*paths: Path) -> None:
    for path in paths:
        path.unlink()


def file_instead(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("x")


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
