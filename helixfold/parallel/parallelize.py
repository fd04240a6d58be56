"""Everything that is done to a model from outside before it runs, in the order in which it is done."""

from dataclasses import dataclass

from helixfold.execution.recompute import RecomputeConfig, recompute
from helixfold.execution.slabs import Slabs
from helixfold.execution.stand_in import StandIn, put_back
from helixfold.execution.whole import Whole
from helixfold.model.alphafold import AlphaFold
from helixfold.model.update import Executor
from helixfold.parallel.axial import Axial
from helixfold.parallel.branch import divide_blocks
from helixfold.parallel.collectives import Channel, Traffic
from helixfold.parallel.mesh import Mesh


@dataclass(frozen=True, kw_only=True)
class Parallelized:
    """The executor of a model's updates on one rank, and what the rank has sent to those that share its sample."""

    run: Executor
    traffic: Traffic


def parallelize(
    model: AlphaFold,
    mesh: Mesh,
    keep: RecomputeConfig | None = None,
    within: Whole | Slabs | None = None,
) -> Parallelized:
    """Make a model compute this rank's share of a sample, as the mesh's layout and `keep` say.

    `keep` is what training passes keep for their gradients (None: everything); `within` carries out updates on the
    rank itself (None: `Whole`). Parameters and their names stay as they are, and whatever an earlier call did is
    undone. Raises `ConfigError` where the layout has two branches and the model's blocks do not, or where `keep` is not
    settled.
    """
    traffic = Traffic()

    # 1. Nothing is left of an earlier call.
    put_back(model, StandIn)

    # 2. The two halves of every block on two ranks.
    if mesh.branch.size > 1:
        divide_blocks(model, Channel(mesh.branch, traffic))

    # 3. Recompute, around whatever a block is by now: what is sent is sent again.
    recompute(model, keep or RecomputeConfig.everywhere("none"))

    # 4. Rows and columns of streams on several ranks.
    run = mesh_executor(mesh, within or Whole(), traffic)

    # 5. Gradients are averaged over the whole mesh by `GradientRule`, which is told of no parallelism but its mesh.
    return Parallelized(run=run, traffic=traffic)


def mesh_executor(mesh: Mesh, within: Whole | Slabs, traffic: Traffic | None = None) -> Executor:
    """Return what carries out updates on a rank of the mesh: with the others of its axial group, if there are any.

    A group of one has collectives too, if it was made with them.
    """
    return Axial(mesh.axial, within, traffic) if mesh.axial.has_collectives else within
