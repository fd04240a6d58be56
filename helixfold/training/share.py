"""What each rank tells the others of its share of a step, so that all of them decide alike."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from helixfold.optim.flat import StepReport
from helixfold.parallel.mesh import Mesh


@dataclass(frozen=True, kw_only=True)
class Share:
    """One rank's share of a step, or, joined, that of some ranks or all."""

    losses: dict[str, float]  # sums over the examples
    names: list[str]  # of their chains
    refused: list[str]  # chains that were drawn and cannot be used, with the reason
    data_seconds: float  # waiting for data
    memory: int  # bytes
    stop: bool  # whether the process was asked to end

    def joined(self, mesh: Mesh) -> "Share":
        """All ranks' shares as one, on every rank; what ranks that share a sample all have counts once."""
        shares = [Share(**share) for share in mesh.gather(asdict(self))]
        return together(shares[:: mesh.sample.size], shares)


def together(parts: Sequence[Share], shares: Sequence[Share]) -> Share:
    """Shares of one step as one, with each part of its batch once."""
    return Share(
        losses={name: sum(part.losses[name] for part in parts) for name in parts[0].losses},
        names=[name for part in parts for name in part.names],
        refused=[text for part in parts for text in part.refused],
        data_seconds=max(share.data_seconds for share in shares),
        memory=max(share.memory for share in shares),
        stop=any(share.stop for share in shares),
    )


@dataclass(frozen=True, kw_only=True)
class MadeStep:
    """A step that an island made, or, together, all islands; there the norm of the gradient is a mean over islands."""

    step: int
    share: Share
    report: StepReport
    learning_rate: float
    seconds: float

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "MadeStep":
        return cls(**{**values, "share": Share(**values["share"]), "report": StepReport(**values["report"])})


def one_step(made: Sequence[MadeStep]) -> MadeStep:
    """What all islands made of the same step."""
    if len(made) == 1:
        return made[0]
    shares = [each.share for each in made]
    return MadeStep(
        step=made[0].step,
        share=together(shares, shares),
        report=StepReport(
            gradient_norm=sum(each.report.gradient_norm for each in made) / len(made),
            clipped=sum(each.report.clipped for each in made) / len(made),
            skipped=any(each.report.skipped for each in made),
        ),
        learning_rate=made[0].learning_rate,
        seconds=max(each.seconds for each in made),
    )
