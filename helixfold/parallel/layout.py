"""Parallel layouts: how ranks are divided by data, branch and dynamic axial parallelism."""

from dataclasses import dataclass
from math import prod

from data_pipeline.config import ConfigError
from helixfold.config import ModelConfig, require


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Degrees of parallelism: `dp` groups each work on their own samples, with `bp` x `dap` ranks sharing a sample.

    `bp` is the degree of branch parallelism, 2 if the MSA half and the pair half of a block run on different ranks
    (HelixFold's parallel block). `dap` is the degree of dynamic axial parallelism, the number of shards of a stream.
    Consecutive ranks are neighbours along `dap` first, then `bp`, because these communicate most.
    """

    dp: int = 1
    bp: int = 1
    dap: int = 1

    def __post_init__(self) -> None:
        require(self, ["dp", "dap"], lambda degree: degree >= 1, "be at least 1")
        require(self, ["bp"], lambda degree: degree in (1, 2), "be 1 or 2, as a block has two branches")

    @classmethod
    def parse(cls, text: str, ranks: int, *, any_dp: bool = False) -> "Layout":
        """Parse a layout such as "dp=16,bp=2,dap=2" for this number of ranks.

        Without dp in the text, or with `any_dp`, dp follows from the number of ranks. Raise `ConfigError` if the text
        is malformed or does not fit.
        """
        given: dict[str, int] = {}
        for part in text.split(","):
            name, _, number = part.strip().partition("=")
            if name not in ("dp", "bp", "dap") or name in given or not number.isdecimal():
                raise ConfigError(f"a layout is such as dp=16,bp=2,dap=2, each part once; got {text!r}")
            given[name] = int(number)
        if any_dp:
            given.pop("dp", None)
        sharing = cls(**{name: count for name, count in given.items() if name != "dp"})
        if "dp" not in given:
            if ranks % sharing.ranks:
                raise ConfigError(
                    f"{ranks} ranks cannot be divided into groups of {sharing.ranks} ({text}); {_suggestions(ranks)}"
                )
            given["dp"] = ranks // sharing.ranks
        layout = cls(**given)
        if layout.ranks != ranks:
            raise ConfigError(f"{layout} is for {layout.ranks} ranks and there are {ranks}; {_suggestions(ranks)}")
        return layout

    @property
    def ranks(self) -> int:
        """Return the number of ranks."""
        return prod((self.dp, self.bp, self.dap))

    @property
    def sharing(self) -> int:
        """Return the number of ranks that share a sample."""
        return self.bp * self.dap

    def require_blocks(self, model: ModelConfig) -> None:
        """Raise `ConfigError` if branches are to run in parallel that depend on each other in this model."""
        for name, stack in (("evoformer", model.evoformer), ("extra_msa", model.extra_msa)):
            if self.bp > 1 and stack.blocks > 0 and stack.outer_product != "end":
                raise ConfigError(
                    f"bp={self.bp} needs blocks whose branches are independent, and {name}.outer_product is "
                    f"{stack.outer_product!r}; train with model.{name}.outer_product=end, or set bp=1"
                )

    def __str__(self) -> str:
        return f"dp={self.dp},bp={self.bp},dap={self.dap}"


def layouts(ranks: int, *, branches: bool, largest_dap: int = 16) -> list[Layout]:
    """Return all layouts of this number of ranks; bp=2 is included only if `branches`."""
    return [
        Layout(dp=ranks // (bp * dap), bp=bp, dap=dap)
        for bp in ((1, 2) if branches else (1,))
        for dap in range(1, min(ranks, largest_dap) + 1)
        if ranks % (bp * dap) == 0
    ]


def _suggestions(ranks: int) -> str:
    fitting = [layout for layout in layouts(ranks, branches=True) if layout.dap & (layout.dap - 1) == 0]
    return f"these fit: {'; '.join(str(layout) for layout in fitting)}"
