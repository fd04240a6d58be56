"""Apply branch parallelism, recompute and axial parallelism to a model, in that order."""

from dataclasses import dataclass

from helixfold.execution.recompute import RecomputeConfig, recompute
from helixfold.execution.slabs import Slabs
from helixfold.execution.stand_in import StandIn, put_back
from helixfold.execution.whole import Whole
from helixfold.model.alphafold import AlphaFold
from helixfold.model.update import Executor
from helixfold.parallel.axial import Axial
from helixfold.parallel.branch import divide_blocks
from helixfold.parallel.collectives import Channel, CommunicationCost
from helixfold.parallel.mesh import Mesh


@dataclass(frozen=True, kw_only=True)
class Parallelized:
    """The executor of a model's updates on one rank, and the communication cost within the ranks of a sample."""

    run: Executor
    communication: CommunicationCost


def parallelize(
    model: AlphaFold,
    mesh: Mesh,
    checkpointing: RecomputeConfig | None = None,
    within: Whole | Slabs | None = None,
) -> Parallelized:
    """Make a model compute this rank's part of a sample under the mesh's layout, and return its executor.

    `checkpointing` says what training passes recompute (None: nothing), and `within` is the executor on the rank
    itself (None: `Whole`). Parameters and their names do not change, and an earlier call is undone. Raise `ConfigError`
    if bp is 2 and the branches of the model's blocks depend on each other, or if `checkpointing` still has "auto".
    """
    communication = CommunicationCost()

    # 1. Undo an earlier call.
    put_back(model, StandIn)

    # 2. Branch parallelism: the two halves of every block on two ranks.
    if mesh.branch.size > 1:
        divide_blocks(model, Channel(mesh.branch, communication))

    # 3. Recompute, around the divided blocks: collectives run again as well.
    recompute(model, checkpointing or RecomputeConfig.everywhere("none"))

    # 4. Axial parallelism: rows and columns of streams on several ranks.
    run = mesh_executor(mesh, within or Whole(), communication)

    # 5. Gradients are averaged over the whole mesh by `GradientReducer`, whatever the layout.
    return Parallelized(run=run, communication=communication)


def mesh_executor(mesh: Mesh, within: Whole | Slabs, communication: CommunicationCost | None = None) -> Executor:
    """Return the executor of a rank of the mesh: `Axial` if its axial group has collectives, else `within`."""
    return Axial(mesh.axial, within, communication) if mesh.axial.has_collectives else within
