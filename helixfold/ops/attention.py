"""Attention with a mask over keys, a bias shared by all rows, and a gate."""

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor

from helixfold.ops.card import Card, card_of
from helixfold.ops.constants import MASKED
from helixfold.ops.dispatch import Backend, first_reason, operator, refusal_of_float64_or_nothing, wants_gradient
from helixfold.ops.mask_bias import every_key_counts
from helixfold.ops.precision import to_float32
from helixfold.ops.triton.refusal import refusal_of_kernels


def _shape_checks(query: Tensor, key: Tensor, value: Tensor) -> list[tuple[bool, str]]:
    return [
        (query.shape[-1] != value.shape[-1], "values are not as wide as keys"),
        (query.shape[2] != key.shape[2], "the heads share their keys"),
    ]


def _refusal_of_triton(
    card: Card,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    bias: Tensor | None = None,
    gate: Tensor | None = None,
) -> str | None:
    return first_reason(
        (query.dtype not in (torch.float32, torch.bfloat16, torch.float16), f"{query.dtype} is left to the reference"),
        (not query.dtype == key.dtype == value.dtype, "query, key and value differ in dtype"),
        (query.shape[-1] not in (8, 16, 32, 64), f"head dim {query.shape[-1]} is not 8, 16, 32 or 64"),
        *_shape_checks(query, key, value),
        (query.numel() == 0 or key.numel() == 0, "there is nothing to compute"),
    ) or refusal_of_kernels(
        card,
        f"attention-{query.element_size()}-{query.shape[-1]}",
        gradients=wants_gradient(query, key, value, bias, gate),
    )


def _refusal_of_sdpa(
    card: Card,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    bias: Tensor | None = None,
    gate: Tensor | None = None,
) -> str | None:
    return first_reason(
        (wants_gradient(query, key, value, bias, gate), "gradients are asked for"),
        *_shape_checks(query, key, value),
        (query.numel() == 0, "there is nothing to compute"),
    )


def _by_sdpa(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, bias: Tensor | None = None, gate: Tensor | None = None
) -> Tensor:
    """PyTorch's fused kernel, which keeps no logits, for one sample after the other."""
    gathered = torch.stack(
        [
            _sample_by_sdpa(*sample, None if bias is None else bias[index])
            for index, sample in enumerate(zip(query, key, value, mask, strict=True))
        ]
    )
    return gathered if gate is None else gathered * gate.sigmoid()


def _sample_by_sdpa(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, bias: Tensor | None) -> Tensor:
    n, h, q, d = query.shape
    term = None if bias is None else bias.to(query.dtype).expand(n, h, q, key.shape[-2])
    scale = d**-0.5
    if not every_key_counts(mask):
        # The kernel adds one term to the logits. A mask that differs from row to row would make that term as large as
        # the logits, so it goes in as one more channel: 1 in the queries, the mask's bias in the keys.
        channel = rearrange(MASKED / scale * (mask.float() - 1), "n k -> n 1 k 1").to(key.dtype).expand(n, h, -1, 1)
        query = torch.nn.functional.pad(query, (0, 1), value=1.0)
        key, value = torch.cat([key, channel], -1), torch.nn.functional.pad(value, (0, 1))
    if query.is_meta and card_of(query.device).kind == "cuda":
        # On meta tensors PyTorch would choose the way that keeps the logits.
        efficient = torch.ops.aten._scaled_dot_product_efficient_attention
        return efficient(query, key, value, term, compute_log_sumexp=False, scale=scale)[0][..., :d]
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, term, scale=scale)[..., :d]


@operator(
    Backend(
        name="triton",
        kinds=("cuda",),
        run="helixfold.ops.triton.attention:attention_triton",
        refusal=_refusal_of_triton,
    ),
    Backend(
        name="rows",
        kinds=("cpu",),
        run="helixfold.ops.cpu.attention:attention_rows",
        refusal=refusal_of_float64_or_nothing,
    ),
    Backend(name="sdpa", run=_by_sdpa, refusal=_refusal_of_sdpa),
)
def attention(
    query: Float[Tensor, "b n h q d"],
    key: Float[Tensor, "b n #h k d"],
    value: Float[Tensor, "b n #h k c"],
    mask: Float[Tensor, "b n k"],
    bias: Float[Tensor, "b h q k"] | None = None,
    gate: Float[Tensor, "b n h q c"] | None = None,
) -> Float[Tensor, "b n h q c"]:
    """Attend within every row n with a softmax, scaled by d**-0.5 (AlphaFold 2, Suppl. Alg. 7 lines 5 and 6).

    `mask` is 1 for keys that count; `bias` is added to the logits of all rows of its sample; the result is multiplied
    by the sigmoid of `gate`. The softmax is taken in float32 whatever the inputs are. What comes back may be a view of
    (b n q h c).
    """
    logits = to_float32(einsum(query * query.shape[-1] ** -0.5, key, "b n h q d, b n h k d -> b n h q k"))
    # So much that nothing of a logit is left beside it, in double precision as in float32.
    masked = MASKED if logits.dtype == torch.float32 else MASKED**2
    logits = logits + rearrange(masked * (mask.to(logits.dtype) - 1), "b n k -> b n 1 1 k")
    if bias is not None:
        logits = logits + rearrange(to_float32(bias), "b h q k -> b 1 h q k")
    gathered = einsum(logits.softmax(-1).to(value.dtype), value, "b n h q k, b n h k c -> b n h q c")
    return gathered if gate is None else gathered * gate.sigmoid()
