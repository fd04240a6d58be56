"""What every process of tests/parallel/test_mesh.py runs, under torchrun."""

import torch

from helixfold.parallel.mesh import Mesh, join, leave


def tell(mesh: Mesh) -> None:
    total = torch.arange(3.0) + mesh.rank
    mesh.all_reduce(total)
    assert total.tolist() == [1.0, 3.0, 5.0]
    for value in ("first", {"losses": [1.5, float("inf")], "names": ["ä"]}, None, []):
        assert mesh.broadcast(value if mesh.is_first else "other") == value
    values = [{"rank": 0, "text": ""}, {"rank": 1, "text": "longer than the other's"}]
    assert mesh.all_gather(values[mesh.rank]) == values
    assert mesh.all_gather(None) == [None, None]
    assert [list(mesh.micro_batches(count)) for count in (2, 6)] == [[mesh.rank], [3 * mesh.rank + i for i in range(3)]]
    mesh.barrier()
    # One writer, so that the lines cannot mix.
    for rank, text in enumerate(mesh.all_gather(f"rank {mesh.rank} of {mesh.size} has met the other")):
        if mesh.is_first:
            print(rank, text)


def main() -> None:
    # Nothing that holds the processes' connections is left when the interpreter is taken apart.
    try:
        tell(join("cpu"))
    finally:
        leave()


if __name__ == "__main__":
    main()
