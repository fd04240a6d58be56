"""What a parity case is: which network, what input sizes, which seed."""

from dataclasses import asdict, dataclass

from data_pipeline.io.errors import InputError

WITH_TEMPLATES = ("model_1", "model_2", "model_1_ptm", "model_2_ptm")
MULTIMER = tuple(f"model_{number}_multimer{release}" for release in ("_v3", "_v2", "") for number in range(1, 6))
WITHOUT_TEMPLATES = ("model_3", "model_4", "model_5", "model_3_ptm", "model_4_ptm", "model_5_ptm")
# Sizes of layers: small ones for tests, those of the published models, those of the model in the package.
CHANNELS = ("tiny", "full", "demonstration")
LIKE_DEMONSTRATION = "model_1_ptm"
MODELS = WITH_TEMPLATES + WITHOUT_TEMPLATES + MULTIMER


@dataclass(frozen=True, kw_only=True)
class Spec:
    """The settings of one case, under the names that every `meta.json` has in its `spec`.

    Sizes include padding: `res` residues of which the last `pad` are padding, `seq` clustered rows of which the last
    `pad_seq` are, `extra_seq` and `pad_extra_seq` likewise, `templ` template slots of which the first `real_templ`
    hold a template. `evoformer`, `extra` and `template` are the numbers of blocks of the three stacks.

    Multimer models have `chains`, one letter each; equal letters stand for equal sequences. Their recycling ends once
    distances change by less than `tolerance` Angstrom.

    `times` scales the parameters until activations have that many times the ranges of trained networks; 0 leaves them
    as they are. They are random, or those of the demonstration model where `channels` says so.
    """

    model: str = "model_1_ptm"
    channels: str = "tiny"
    evoformer: int = 2
    extra: int = 1
    template: int = 1
    res: int = 26
    pad: int = 0
    seq: int = 10
    pad_seq: int = 0
    extra_seq: int = 14
    pad_extra_seq: int = 0
    templ: int = 0
    real_templ: int = 0
    recycle: int = 0
    ensemble: int = 1
    with_x: bool = False
    chains: str = "A"
    tolerance: float = 0.0
    times: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise InputError(f"model {self.model!r} is none of {', '.join(MODELS)}")
        if self.channels not in CHANNELS:
            raise InputError(f"channels {self.channels!r} is none of {', '.join(CHANNELS)}")
        if self.channels == "demonstration" and self.model != LIKE_DEMONSTRATION:
            raise InputError(f"the demonstration model is built like {LIKE_DEMONSTRATION}, got {self.model}")
        for name, value in asdict(self).items():
            if isinstance(value, int | float) and value < 0:
                raise InputError(f"{name} must not be negative, got {value}")
        for name in ("evoformer", "extra", "template", "ensemble", "extra_seq"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.res - self.pad < 8:
            raise InputError(f"at least 8 residues must remain, got {self.res} with {self.pad} of them padding")
        if self.pad_seq >= self.seq:
            raise InputError(
                f"the query row cannot be padding, got {self.seq} rows with {self.pad_seq} of them padding"
            )
        if self.pad_extra_seq > self.extra_seq:
            raise InputError(f"{self.pad_extra_seq} of {self.extra_seq} extra rows cannot be padding")
        if self.real_templ > self.templ:
            raise InputError(f"{self.real_templ} templates do not fit into {self.templ} slots")
        if (self.templ > 0) != (self.model not in WITHOUT_TEMPLATES):
            branch = "no" if self.model in WITHOUT_TEMPLATES else "a"
            raise InputError(f"{self.model} has {branch} template branch, got {self.templ} template slots")
        self._check_chains()

    def _check_chains(self) -> None:
        if not self.chains.isalpha() or (len(self.chains) > 1 and not self.is_multimer):
            raise InputError(
                f"{self.model} takes {'letters' if self.is_multimer else 'one chain'}, got {self.chains!r}"
            )
        if self.is_multimer and (self.ensemble > 1 or self.pad_seq):
            raise InputError("multimer cases have no ensemble, and only extra rows as padding")

    @property
    def is_multimer(self) -> bool:
        return self.model in MULTIMER

    @property
    def passes(self) -> int:
        """Number of input samples: one per recycling pass and ensemble member."""
        return (self.recycle + 1) * self.ensemble
