"""Layouts that divide the ranks of a run: by samples, by branches of a block, by parts of one sample's streams."""

from dataclasses import dataclass, fields
from math import prod

from data_pipeline.config import ConfigError
from helixfold.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Ranks along three axes: `dp` groups work on samples of their own, the `bp` x `dap` ranks of a group share theirs.

    `bp` is 2 where the MSA half and the pair half of a block are on different ranks (HelixFold's parallel block), `dap`
    is the number of parts that streams are cut into (dynamic axial parallelism). Ranks that follow each other are next
    to each other along `dap` first, then `bp`: what talks most is closest.
    """

    dp: int = 1
    bp: int = 1
    dap: int = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise ConfigError(f"{field.name} of a layout must be at least 1, got {getattr(self, field.name)}")
        if self.bp > 2:
            raise ConfigError(f"bp of a layout is 1 or 2, as a block has two branches; got {self.bp}")

    @classmethod
    def parse(cls, text: str, ranks: int, *, any_dp: bool = False) -> "Layout":
        """Read a layout such as "dp=16,bp=2,dap=2", for so many ranks.

        Without dp it has as many groups as there are ranks for, and with `any_dp` whatever dp the text has.
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
                    f"{ranks} ranks cannot be divided into groups of {sharing.ranks} ({text}); {_that_fit(ranks)}"
                )
            given["dp"] = ranks // sharing.ranks
        layout = cls(**given)
        if layout.ranks != ranks:
            raise ConfigError(f"{layout} is for {layout.ranks} ranks and there are {ranks}; {_that_fit(ranks)}")
        return layout

    @property
    def ranks(self) -> int:
        return prod((self.dp, self.bp, self.dap))

    @property
    def sharing(self) -> int:
        """Ranks that share a sample."""
        return self.bp * self.dap

    def require_blocks(self, model: ModelConfig) -> None:
        """Raises `ConfigError` where branches are to be parallel that depend on each other in this model."""
        for name, stack in (("evoformer", model.evoformer), ("extra_msa", model.extra_msa)):
            if self.bp > 1 and stack.blocks > 0 and stack.outer_product != "end":
                raise ConfigError(
                    f"bp={self.bp} needs blocks whose branches are independent, and {name}.outer_product is "
                    f"{stack.outer_product!r}; train with model.{name}.outer_product=end, or set bp=1"
                )

    def __str__(self) -> str:
        return f"dp={self.dp},bp={self.bp},dap={self.dap}"


def layouts(ranks: int, *, branches: bool, largest_dap: int = 16) -> list[Layout]:
    """All layouts of so many ranks; with two branches only where the model has them."""
    return [
        Layout(dp=ranks // (bp * dap), bp=bp, dap=dap)
        for bp in ((1, 2) if branches else (1,))
        for dap in range(1, min(ranks, largest_dap) + 1)
        if ranks % (bp * dap) == 0
    ]


def _that_fit(ranks: int) -> str:
    fitting = [layout for layout in layouts(ranks, branches=True) if layout.dap & (layout.dap - 1) == 0]
    return f"these fit: {'; '.join(str(layout) for layout in fitting)}"
