"""Scale the parameters of a network so that its activations have the ranges of DeepMind's published parameters.

Random parameters give activations of order one. Those of a trained network reach hundreds, and thousands in padding,
which is what low precisions have to hold. The ranges are those of the outputs that are published for `model_1_ptm`.
"""

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from helixfold.apps.verify.runs import Arrays, run_network
from helixfold.apps.verify.verify import published_run
from helixfold.model.alphafold import AlphaFold
from helixfold.model.attention import SelfAttention
from helixfold.model.batch import Batch
from helixfold.model.layers import LayerNorm
from helixfold.model.msa import MSAGlobalColumnAttention
from helixfold.ops.linear import layer_norm
from helixfold.ops.weights import Affine

PAIR, MSA, EXTRA = "pair", "msa", "extra_msa"
# The largest logit of the first head of every attention in the trunk. Softmaxes of such logits choose one element each,
# and so enlarge rounding errors: with all heads like that, a network of a few blocks is chaotic.
LARGEST_LOGIT = 100.0
# The largest value in the pair stream where residues are padding, in the published run with padding.
LARGEST_PADDING = 11_392.0
# Layer norms multiply one channel in so many by such a factor.
OUTLIER_EVERY, OUTLIER = 32, 8.0
# Each factor changes what later layers read, so that they are found in several rounds, each of which multiplies them by
# such a power of what is missing: with all of it they swing.
ROUNDS, DAMPING = 12, 0.5

_BLOCK = r"blocks\.\d+\."
# The maps and norms whose results are added to each stream, and the maps that read it without a norm.
_WRITERS = {
    PAIR: r"input_embedder\.(left|right|relative_position)|recycling_embedder\.(norm_pair|distances)"
    r"|template_embedder\.(attention\.)?out"
    rf"|(extra_msa_stack|evoformer)\.{_BLOCK}(outer_product_mean\.out|triangle_(outgoing|incoming)\.out"
    r"|triangle_(starting|ending)\.attention\.out|pair_transition\.linear_2)",
    MSA: r"input_embedder\.(msa|target)|recycling_embedder\.norm_msa|template_embedder\.angles\.linear_2"
    rf"|evoformer\.{_BLOCK}((row|column)_attention\.attention\.out|msa_transition\.linear_2)",
    EXTRA: r"extra_msa_embedder\.linear"
    rf"|extra_msa_stack\.{_BLOCK}(row_attention\.attention\.out|column_attention\.out|msa_transition\.linear_2)",
}
_READERS = {
    PAIR: r"template_embedder\.attention\.query|heads\.(distogram|aligned_error)\.linear",
    MSA: r"single|heads\.masked_msa\.linear",
}
# Where all of a stream's rows are masked, the outer product mean divides its bias by a thousandth.
_PADDING = r"(extra_msa_stack|evoformer)\.blocks\.\d+\.outer_product_mean\.out"
# The last map of each head, and the published logits (or probabilities) that give its range.
_HEADS = {
    "heads.distogram.linear": "distogram/logits",
    "heads.masked_msa.linear": "masked_msa/logits",
    "heads.lddt.out": "predicted_lddt/logits",
    "heads.experimentally_resolved.linear": "experimentally_resolved/logits",
    "heads.aligned_error.linear": "predicted_aligned_error/logits",
}


@dataclass(frozen=True, kw_only=True)
class RangeFactors:
    """Factors of parameters that give a network the ranges of trained parameters.

    `norms` is the factor of some channels of every layer norm in the trunk. `streams` has a factor for each channel of
    the pair, MSA and extra-MSA streams; `padding` is that of the biases which fill masked edges; `queries` has one for
    the first head of each attention in the trunk and `heads` one for each output head, by the names of their modules.
    """

    norms: float
    streams: Mapping[str, Tensor]
    padding: float
    queries: Mapping[str, float]
    heads: Mapping[str, float]

    def to_arrays(self) -> Arrays:
        """Return the factors as arrays by name, to be written to a file."""
        arrays = {f"streams/{name}": value.numpy() for name, value in self.streams.items()}
        for kind, factors in (("queries", self.queries), ("heads", self.heads)):
            arrays |= {f"{kind}/{name}": np.asarray(value, np.float32) for name, value in factors.items()}
        return arrays | {"norms": np.asarray(self.norms, np.float32), "padding": np.asarray(self.padding, np.float32)}

    @staticmethod
    def from_arrays(arrays: Mapping[str, np.ndarray]) -> "RangeFactors":
        """Return the factors that `to_arrays` made arrays of."""

        def group(kind: str) -> dict[str, np.ndarray]:
            return {name.removeprefix(f"{kind}/"): each for name, each in arrays.items() if name.startswith(f"{kind}/")}

        return RangeFactors(
            norms=float(arrays["norms"]),
            streams={name: torch.from_numpy(each) for name, each in group("streams").items()},
            padding=float(arrays["padding"]),
            queries={name: float(each) for name, each in group("queries").items()},
            heads={name: float(each) for name, each in group("heads").items()},
        )


def with_trained_ranges(network: AlphaFold, factors: RangeFactors) -> AlphaFold:
    """Return a copy of the network with scaled parameters.

    A map into a stream is multiplied by the factors of the stream's channels, and a map that reads the stream without
    a layer norm is divided by them.
    """
    scaled = copy.deepcopy(network)
    with torch.no_grad():
        for name, module in scaled.named_modules():
            if isinstance(module, LayerNorm) and not name.startswith(("structure_module", "heads")):
                module.weight[len(name) % OUTLIER_EVERY :: OUTLIER_EVERY] *= factors.norms
            for stream, channels in factors.streams.items():
                if re.fullmatch(_WRITERS[stream], name):
                    _scale_outputs(module, channels)
                if stream in _READERS and re.fullmatch(_READERS[stream], name):
                    _scale(module.weight, 1 / channels)
            if re.fullmatch(_PADDING, name):
                _scale(module.bias, factors.padding)
            if name in factors.queries:
                _scale_queries(module, factors.queries[name])
            if name in factors.heads:
                _scale_outputs(module, torch.tensor([factors.heads[name]]))
    return scaled


def find_range_factors(
    network: AlphaFold, batches: Sequence[Batch], times: float = 1.0, *, extremes: bool = True
) -> RangeFactors:
    """Return factors that give the network trained ranges on these features, by running it several times.

    The streams, and their padding, get `times` the published ranges, and the output heads' logits the published ones.
    With `extremes`, each attention also gets logits up to 100 in its first head, and every layer norm outliers. Random
    parameters bear this; trained ones, which react to their input more, become chaotic by it.
    """
    published = published_run(torch.device("cpu")).outputs
    config = network.config
    rows = _root_mean_square(published["representations/msa_first_row"])
    targets = {
        PAIR: _for_channels(published["representations/pair"].std((0, 1)), config.c_z) * times,
        MSA: _for_channels(rows, config.evoformer.c_m) * times,
        EXTRA: _for_channels(rows, config.extra_msa.c_m) * times,
    }
    heads = {module: _spread(_published_logits(published, output)) for module, output in _HEADS.items()}
    attentions = [name for name, _ in _attentions(network)] if extremes else []
    factors = RangeFactors(
        norms=OUTLIER if extremes else 1.0,
        streams={name: torch.ones(len(target)) for name, target in targets.items()},
        padding=1.0,
        queries=dict.fromkeys(attentions, 1.0),
        heads=dict.fromkeys(heads.keys() & {name for name, _ in network.named_modules()}, 1.0),
    )
    for _ in range(ROUNDS):
        found = measured_ranges(with_trained_ranges(network, factors), batches)
        factors = RangeFactors(
            norms=factors.norms,
            streams={
                name: each * torch.from_numpy(targets[name] / found.streams[name]).float() ** DAMPING
                for name, each in factors.streams.items()
            },
            padding=factors.padding * (LARGEST_PADDING * times / found.padding if found.padding else 1.0) ** DAMPING,
            queries={
                name: each * (LARGEST_LOGIT / found.logits[name]) ** DAMPING for name, each in factors.queries.items()
            },
            # A head that was not trained gives zeros.
            heads={
                name: each * (heads[name] / (_spread(found.outputs[_HEADS[name]]) or heads[name])) ** DAMPING
                for name, each in factors.heads.items()
            },
        )
    return factors


@dataclass(frozen=True, kw_only=True)
class Ranges:
    """Ranges of a network's activations, and its outputs.

    `streams` are those of each channel: standard deviations over the edges of the pair stream, root mean squares over
    the first row of the MSA and all of the extra MSA. `padding` is the largest value of the pair stream where a residue
    is padding, and `logits` the largest of the first head of each attention in the trunk.
    """

    streams: dict[str, np.ndarray]
    padding: float
    logits: dict[str, float]
    outputs: Arrays


def measured_ranges(network: AlphaFold, batches: Sequence[Batch]) -> Ranges:
    """Run a network with recycling, and return the ranges of its activations in the last recycling iteration."""
    real, extra = batches[-1].seq_mask[0].bool().numpy(), batches[-1].extra_msa_mask[0].bool().numpy()
    # Without further sequences there is one row, which is padding.
    extra = extra if extra.any() else ~extra
    logits: dict[str, float] = {}
    streams: list[Any] = []

    with ExitStack() as hooks:
        for name, attention in _attentions(network):
            hooks.callback(attention.register_forward_pre_hook(_recording(logits, name)).remove)
        # The stack gives the streams to the trunk, which leaves the extra MSA unused.
        hooks.callback(network.extra_msa_stack.register_forward_hook(lambda *given: streams.append(given[-1])).remove)
        outputs = run_network(network, batches, torch.float32).outputs
    pair = outputs["representations/pair"]
    edges = real[:, None] & real
    return Ranges(
        streams={
            PAIR: pair[edges].std(0),
            MSA: _root_mean_square(outputs["representations/msa_first_row"][real]),
            EXTRA: _root_mean_square(streams[-1][0][0].numpy()[extra]),
        },
        padding=float(np.abs(pair[~edges]).max(initial=0.0)),
        logits=logits,
        outputs=outputs,
    )


def _attentions(network: AlphaFold) -> Iterator[tuple[str, nn.Module]]:
    for name, module in network.named_modules():
        if isinstance(module, SelfAttention | MSAGlobalColumnAttention):
            yield name, module


def _recording(logits: dict[str, float], name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    def record(module: nn.Module, given: tuple[Any, ...]) -> None:
        logits[name] = _largest_logit(module, *given)

    return record


def _largest_logit(
    module: nn.Module, x: Tensor, mask: Tensor, norm: Affine | tuple[()] = (), bias: Tensor | Affine | None = None
) -> float:
    """Return the largest logit of the first head, in absolute value, among elements that are not masked."""
    if isinstance(module, MSAGlobalColumnAttention):
        x = layer_norm(x, module.norm.affine)
        weights = mask[..., None] / mask.sum(-1)[..., None, None].clamp(min=1)
        # One query for each row.
        query = (x * weights).sum(-2, keepdim=True) @ _first_head(module.query.weight, module.heads).T
        logits, present = query @ (x @ module.key.weight.T).mT, mask[:, :, None]
    else:
        assert isinstance(module, SelfAttention)
        assert isinstance(norm, Affine)
        x = layer_norm(x, norm)
        query, key = (x @ _first_head(part, module.heads).T for part in module.qkv.weight.chunk(3)[:2])
        logits, present = query @ key.mT, mask[..., None] * mask[:, :, None]
    logits = logits * query.shape[-1] ** -0.5
    if isinstance(bias, Affine):  # a map of the same rows, normalised
        bias = (x @ bias.weight[:1].T).permute(0, 3, 1, 2)
    if bias is not None:
        logits = logits + bias[:, :1]
    return float((logits * present).abs().max())


def _first_head(weight: Tensor, heads: int) -> Tensor:
    """Return the rows of a map to all heads, as a view, that give the first head."""
    return weight.chunk(heads)[0]


def _scale_outputs(module: nn.Module, factors: Tensor) -> None:
    for parameter in module.parameters():
        _scale(parameter, factors[:, None] if parameter.ndim > 1 else factors)


def _scale_queries(module: nn.Module, factor: float) -> None:
    assert isinstance(module, SelfAttention | MSAGlobalColumnAttention)
    queries = module.qkv.weight.chunk(3)[0] if isinstance(module, SelfAttention) else module.query.weight
    _scale(_first_head(queries, module.heads), factor)


def _scale(parameter: Tensor, factors: Tensor | float) -> None:
    parameter.mul_(factors)


def _for_channels(values: np.ndarray, channels: int) -> np.ndarray:
    """Return the values of the published channels, or as many of their quantiles as there are channels."""
    if len(values) == channels:
        return values
    return np.quantile(values, np.linspace(0, 1, channels))


def _root_mean_square(rows: np.ndarray) -> np.ndarray:
    """Return the root mean square of every channel."""
    return np.sqrt(np.square(rows).mean(0))


def _published_logits(published: Arrays, output: str) -> np.ndarray:
    """Return the published logits of a head; of aligned errors the logarithms of probabilities are published."""
    if output in published:
        return published[output]
    return np.log(np.maximum(published["aligned_confidence_probs"], 1e-30))


def _spread(logits: np.ndarray) -> float:
    """Return the standard deviation of logits about the mean over their bins."""
    return float((logits - logits.mean(-1, keepdims=True)).std())
