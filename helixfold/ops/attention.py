"""Attention within rows, with a key mask, a bias shared by all rows of a sample, and a gate."""

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from helixfold.ops.constants import MASKED
from helixfold.ops.device_properties import DeviceProperties, properties_of
from helixfold.ops.dispatch import Backend, first_reason, operator, unsupported_float64_or_empty, wants_gradient
from helixfold.ops.mask_bias import every_key_counts
from helixfold.ops.precision import to_float32
from helixfold.ops.sizes import plain_is_faster
from helixfold.ops.triton.requirements import missing_requirement


def _shape_checks(query: Tensor, key: Tensor, value: Tensor) -> list[tuple[bool, str]]:
    """Return (condition, reason) pairs for shapes that only the reference supports."""
    return [
        (query.shape[-1] != value.shape[-1], "values and keys differ in channels"),
        (query.shape[2] != key.shape[2], "all heads have the same keys"),
    ]


def _unsupported_by_triton(
    properties: DeviceProperties,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    bias: Tensor | None = None,
    gate: Tensor | None = None,
) -> str | None:
    """Return why the Triton kernels do not support these arguments on a device with these properties, or None."""
    return first_reason(
        (query.dtype not in (torch.float32, torch.bfloat16, torch.float16), f"{query.dtype} is left to the reference"),
        (not query.dtype == key.dtype == value.dtype, "query, key and value differ in dtype"),
        (query.shape[-1] not in (8, 16, 32, 64), f"head dim {query.shape[-1]} is not 8, 16, 32 or 64"),
        *_shape_checks(query, key, value),
        (query.numel() == 0 or key.numel() == 0, "there is nothing to compute"),
    ) or missing_requirement(
        properties,
        f"attention-{query.element_size()}-{query.shape[-1]}",
        gradients=wants_gradient(query, key, value, bias, gate),
    )


def _unsupported_by_sdpa(
    properties: DeviceProperties,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    bias: Tensor | None = None,
    gate: Tensor | None = None,
) -> str | None:
    """Return why PyTorch's `scaled_dot_product_attention` does not support these arguments, or None."""
    is_cuda, has_bfloat16 = properties.kind == "cuda", (properties.capability or (8, 0)) >= (8, 0)
    return first_reason(
        (not is_cuda and wants_gradient(query, key, value, bias, gate), "gradients are needed"),
        (is_cuda and query.dtype == torch.float64, "float64 is left to the reference"),
        (query.dtype == torch.bfloat16 and not has_bfloat16, "bfloat16 needs compute capability 8.0"),
        *_shape_checks(query, key, value),
        (query.numel() == 0 or key.numel() == 0, "there is nothing to compute"),
    )


def _slower_than_plain(query: Tensor, key: Tensor, *_: object, **__: object) -> str | None:
    """Return why plain PyTorch is faster; the largest tensor that it saves are the attention weights."""
    return plain_is_faster(query, saved=query.shape[:-1].numel() * key.shape[-2])


def _by_sdpa(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, bias: Tensor | None = None, gate: Tensor | None = None
) -> Tensor:
    """Attend sample by sample with PyTorch's fused kernel, which does not store the logits.

    On NVIDIA GPUs it is the memory-efficient kernel, forward and backward, also before compute capability 8.0.
    """
    attended = torch.stack(
        [
            _sample_by_sdpa(*sample, None if bias is None else bias[index])
            for index, sample in enumerate(zip(query, key, value, mask, strict=True))
        ]
    )
    return attended if gate is None else attended * gate.sigmoid()


def _sample_by_sdpa(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, bias: Tensor | None) -> Tensor:
    """Attend in one sample, [n h q d] and [n h k d], with a bias [h q k] or None and a mask [n k]."""
    n, h, q, d = query.shape
    keys, scale = key.shape[-2], d**-0.5
    if bias is not None:
        # On a GPU, the kernel needs rows of the bias without gaps that start at multiples of 16 elements.
        bias = pad(bias.to(query.dtype), (0, -keys % 16))[..., :keys].expand(n, h, q, keys)
    if not every_key_counts(mask):
        # The kernel adds one bias to the logits. A mask that differs between rows would make this bias as large as the
        # logits, so the mask becomes an additional channel: 1 in the queries, the bias of the mask in the keys.
        # The largest float16 is 65,504, which masks logits up to a few thousand. Gradients of a row without keys are
        # wrong unless they are 0, as in the network, because the kernel computes weights from a sum of exp(-1e30).
        masked = max(-MASKED / scale, torch.finfo(key.dtype).min)
        channel = rearrange(masked * (1 - mask.float()), "n k -> n 1 k 1").to(key.dtype).expand(n, h, -1, 1)
        # On a GPU, the kernel that stores no logits needs a multiple of 8 channels; the others are zeros in the keys.
        added = 1 if properties_of(query.device).kind == "cpu" else 8
        query, value = pad(query, (0, added), value=1.0), pad(value, (0, added))
        key = pad(torch.cat([key, channel], -1), (0, added - 1))
    if properties_of(query.device).kind != "cuda":
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, bias, scale=scale)[..., :d]
    # `scaled_dot_product_attention` would copy the bias for every row to align it, and compute with stored logits what
    # the kernel does not support, always on meta tensors.
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    return efficient(query, key, value, bias, wants_gradient(query, key, value, bias), scale=scale)[0][..., :d]


@operator(
    Backend(
        name="triton",
        kinds=("cuda",),
        run="helixfold.ops.triton.attention:attention_triton",
        unsupported_reason=_unsupported_by_triton,
    ),
    Backend(
        name="rows",
        kinds=("cpu",),
        run="helixfold.ops.cpu.attention:attention_rows",
        unsupported_reason=unsupported_float64_or_empty,
        slower=_slower_than_plain,
    ),
    Backend(name="sdpa", run=_by_sdpa, unsupported_reason=_unsupported_by_sdpa),
)
def attention(
    query: Float[Tensor, "b n h q d"],
    key: Float[Tensor, "b n #h k d"],
    value: Float[Tensor, "b n #h k c"],
    mask: Float[Tensor, "b n k"],
    bias: Float[Tensor, "b h q k"] | None = None,
    gate: Float[Tensor, "b n h q c"] | None = None,
) -> Float[Tensor, "b n h q c"]:
    """Return softmax(query key^T / sqrt(d) + bias) value for every row n (AlphaFold 2, Suppl. Alg. 7 lines 5 and 6).

    `mask` is 1 for unmasked keys. `bias` is added to the logits of all rows of its sample. The result is multiplied by
    the sigmoid of `gate`. The softmax is computed in at least float32. The result may be a view of a tensor
    (b n q h c).
    """
    logits = to_float32(einsum(query * query.shape[-1] ** -0.5, key, "b n h q d, b n h k d -> b n h q k"))
    # Large enough that adding a logit does not change it, also in float64.
    masked = MASKED if logits.dtype == torch.float32 else MASKED**2
    logits = logits + rearrange(masked * (mask.to(logits.dtype) - 1), "b n k -> b n 1 1 k")
    if bias is not None:
        logits = logits + rearrange(to_float32(bias), "b h q k -> b 1 h q k")
    attended = einsum(logits.softmax(-1).to(value.dtype), value, "b n h q k, b n h k c -> b n h q c")
    return attended if gate is None else attended * gate.sigmoid()
