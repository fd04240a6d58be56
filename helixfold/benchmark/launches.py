"""Count the kernels and operators that parts of the network launch on a GPU, for `helixfold benchmark launches`."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch

from helixfold.benchmark.measurement import write_json
from helixfold.benchmark.options import LaunchesOptions
from helixfold.benchmark.passes import Part, Pass, both_passes, parts, shape_of
from helixfold.ops.device_properties import DEVICE_MODELS, DeviceProperties

_TABLE_HEADER = (
    f"{'':47} {'':8} {'kernels':>7} {'others':>6} "
    f"{'parameter casts':>15} {'other casts':>11} {'waits':>5} {'kept MiB':>8}"
)


@dataclass(frozen=True, kw_only=True)
class Launches:
    """Counts of the launches in a part's forward or backward pass.

    `kernels` counts launches of our kernels, and `others` calls of PyTorch's operators, including casts. `names` has
    the counts of both by name, the most frequent first. `parameter_casts` and `other_casts` count casts of parameters
    and of other tensors to another dtype. `waits` has the counts of the operators for which the host waits, by name.
    `kept` is the number of bytes that the forward pass saves for the backward pass, without parameters; it is 0 for a
    backward pass.
    """

    part: str
    backward: bool
    kernels: int
    others: int
    parameter_casts: int
    other_casts: int
    waits: dict[str, int]
    kept: int
    names: dict[str, int]

    @classmethod
    def of(cls, counted_pass: Pass) -> "Launches":
        """Return the counts of a pass that was run on meta tensors."""
        calls = counted_pass.calls
        launches = [call for call in calls if call.is_kernel or call.moved or not call.waits]
        return cls(
            part=counted_pass.name,
            backward=counted_pass.backward,
            kernels=sum(call.is_kernel for call in launches),
            others=sum(not call.is_kernel for call in launches),
            parameter_casts=sum(call.cast == "parameter" for call in calls),
            other_casts=sum(call.cast == "other" for call in calls),
            waits=dict(Counter(call.name for call in calls if call.waits)),
            kept=0 if counted_pass.backward else counted_pass.kept,
            names=dict(Counter(call.name for call in launches).most_common()),
        )

    def line(self) -> str:
        """Return the row of the table as text, with saved memory in MiB for a forward pass."""
        saved = "" if self.backward else f"{self.kept / 2**20:8,.0f}"
        return (
            f"{self.part:47} {'backward' if self.backward else 'forward':8} {self.kernels:7,} {self.others:6,} "
            f"{self.parameter_casts:15,} {self.other_casts:11,} {sum(self.waits.values()):5} {saved}"
        ).rstrip()


def run(options: LaunchesOptions) -> None:
    """Print the numbers of kernels, operators, casts and waits of every part, and the memory it saves for gradients.

    Only parts whose name contains `--only` are counted. With `--json`, the counts are also written to a file.
    """
    properties = DEVICE_MODELS[options.gpu]
    sizes = shape_of(options, torch.bfloat16)
    print(
        f"{properties.name}: {options.preset}, {options.residues} residues, {options.rows} + {options.extra_rows} "
        "rows, bfloat16, nothing recomputed"
    )
    print(_TABLE_HEADER)
    rows: list[Launches] = []
    for part in parts(sizes):
        if options.only in part.name:
            for launches in counted(part, properties):
                rows.append(launches)
                print(launches.line(), flush=True)
                for name, count in launches.waits.items():
                    print(f"    the host waits {count} times for {name}")
                if options.names:
                    print("    " + ", ".join(f"{count} {name}" for name, count in launches.names.items()))
    write_json(options.json, [asdict(each) for each in rows])


def counted(part: Part, properties: DeviceProperties) -> Iterator[Launches]:
    """Yield the launches of a part's forward pass, and of its backward pass if it has one, on a simulated GPU."""
    return map(Launches.of, both_passes(part, properties))
