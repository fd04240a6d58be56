"""Apply branch parallelism, recompute and axial parallelism to a model, in that order."""

from helixfold.execution.recompute import RecomputeConfig, recompute, restore_methods
from helixfold.execution.slabs import Slabs
from helixfold.execution.whole import Whole
from helixfold.model.alphafold import AlphaFold
from helixfold.model.update import Executor
from helixfold.parallel.axial import Axial
from helixfold.parallel.branch import divide_blocks
from helixfold.parallel.collectives import Channel, Message
from helixfold.parallel.mesh import Mesh


def parallelize(
    model: AlphaFold,
    mesh: Mesh,
    checkpointing: RecomputeConfig | None = None,
    within: Whole | Slabs | None = None,
    messages: list[Message] | None = None,
) -> Executor:
    """Make a model compute this rank's part of a sample under the mesh's layout, and return its executor.

    `checkpointing` says what training passes recompute (None: nothing), and `within` is the executor on the rank
    itself (None: `Whole`). Collectives among the ranks of a sample are added to `messages`, if given. Parameters and
    their names do not change, and an earlier call is undone. Raise `ConfigError` if bp is 2 and the branches of the
    model's blocks depend on each other, or if `checkpointing` still has "auto".
    """
    # 1. Undo an earlier call.
    restore_methods(model)

    # 2. Branch parallelism: the two halves of every block on two ranks.
    if mesh.branch.size > 1:
        divide_blocks(model, Channel(mesh.branch, messages))

    # 3. Recompute, around the divided blocks: collectives run again as well.
    recompute(model, checkpointing or RecomputeConfig.everywhere("none"))

    # 4. Axial parallelism: rows and columns of streams on several ranks.
    # Gradients are averaged over the whole mesh by `GradientReducer`, whatever the layout.
    return mesh_executor(mesh, within or Whole(), messages)


def mesh_executor(mesh: Mesh, within: Whole | Slabs, messages: list[Message] | None = None) -> Executor:
    """Return the executor of a rank of the mesh: `Axial` if its axial group has collectives, else `within`."""
    return Axial(mesh.axial, within, messages) if mesh.axial.has_collectives else within
