"""Hardware for a training run, such as a100x128: devices of one kind, and how many of them each stage has."""

import re
from dataclasses import dataclass

from helixfold.planning.machines import MACHINES

HERE = "here"
_MOST_RANKS = 1_000_000


@dataclass(frozen=True)
class Hardware:
    """Devices of a kind of `MACHINES`, or this machine ("here"), with the number of ranks of each stage of a training.

    The last number counts for all further stages.
    """

    machine: str
    ranks: tuple[int, ...]

    @classmethod
    def parse(cls, word: str) -> "Hardware":
        """Read a100x128, a100x256+512 (for two stages), here or herex2. Raise ValueError for anything else."""
        found = re.fullmatch(r"([a-z0-9]+?)(?:x([0-9]{1,7}(?:\+[0-9]{1,7})*))?", word.lower())
        names = (*MACHINES, HERE)
        if found is None or found[1] not in names or (found[2] is None and found[1] != HERE):
            raise ValueError(
                f"must be a kind of device ({', '.join(names)}) and the number of them, such as a100x128, or "
                f"a100x256+512 for two stages, got {word!r}"
            )
        ranks = tuple(map(int, (found[2] or "1").split("+")))
        if not all(1 <= count <= _MOST_RANKS for count in ranks):
            raise ValueError(f"must have from 1 to {_MOST_RANKS:,} devices, got {word!r}")
        return cls(found[1], ranks)

    def ranks_of(self, stage: int) -> int:
        """Return the number of ranks of a stage, which are counted from 0."""
        return self.ranks[min(stage, len(self.ranks) - 1)]

    def __str__(self) -> str:
        return f"{self.machine}x{'+'.join(map(str, self.ranks))}"
