"""Attention on a CPU in blocks whose logits stay in the cache and are recomputed by the backward pass."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor

from helixfold.ops.cpu.blocks import Scratch, all_slices, for_all_cores, l2_cache_bytes, slices, steps
from helixfold.ops.cpu.loops import compiled
from helixfold.ops.mask_bias import mask_bias
from helixfold.ops.precision import product_dtype
from helixfold.ops.recomputed import recomputed

# Bytes of the logits computed at a time, per core: enough for efficient operators, few enough for its cache.
_LOGITS_BYTES = 2 * l2_cache_bytes()
# Maximum bytes of logits, queries, keys and values, per core, of rows that are computed together, which copies heads.
_ROWS_BYTES = 4 * _LOGITS_BYTES
# Maximum elements of a bias that is converted to float32 at once. A larger bias, which may be as large as a stream, is
# converted part by part.
_BIAS_ELEMENTS = 2**22
# Maximum rows of a block whose gradients of the bias are added one by one, instead of summed in a float32 copy.
_FEW_ROWS = 16
# Maximum columns of matrix products that are several times faster if transposed, and faster in float32 than in lower
# precisions.
_FEW_COLUMNS = 16


def attention_rows(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, bias: Tensor | None = None, gate: Tensor | None = None
) -> Tensor:
    """Compute `attention` on a CPU without storing the logits of all rows."""
    queries, key_heads = query.shape[3], key.shape[2]
    # Heads that share keys become additional queries of one head.
    query = rearrange(query * query.shape[-1] ** -0.5, "b n (g h) q d -> b n g (h q) d", g=key_heads)
    bias = None if bias is None else rearrange(bias, "b (g h) q k -> b g (h q) k", g=key_heads)
    attended = recomputed(_attention, _attention_gradients, query, key, value, mask_bias(mask), bias)
    attended = rearrange(attended, "b n g (h q) c -> b n (g h) q c", q=queries)
    return attended if gate is None else attended * gate.sigmoid()


def _attention(query: Tensor, key: Tensor, value: Tensor, mask_bias: Tensor | None, bias: Tensor | None) -> Tensor:
    """Return the result of attention [b n h q c], sample by sample, without a gate."""
    b, n, h, q, _ = query.shape
    attended = value.new_empty(b, n, q, h, value.shape[-1]).transpose(2, 3)
    for index, sample in enumerate(_samples(query, key, value, mask_bias, bias)):
        sample.forward(attended[index])
    return attended


def _attention_gradients(
    needed: tuple[bool, ...],
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask_bias: Tensor | None,
    bias: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of query, key, value and bias; `needed` has a boolean for each argument from `query`."""
    grad_query, grad_key, grad_value = (torch.empty_like(x) for x in (query, key, value))
    grad_bias = None if bias is None or not needed[4] else torch.zeros(bias.shape, device=bias.device)
    for index, sample in enumerate(_samples(query, key, value, mask_bias, bias)):
        sample.backward(
            gradient[index],
            None,
            (grad_query[index], grad_key[index], grad_value[index]),
            None if grad_bias is None else grad_bias[index],
        )
    grad_bias = None if bias is None or grad_bias is None else grad_bias.to(bias.dtype)
    return grad_query, grad_key, grad_value, None, grad_bias


def float32_bias(bias: Tensor | None) -> Tensor | None:
    """Return a bias of up to 2**22 elements in float32, which attention reads fastest, or a larger one unchanged."""
    return bias.float() if bias is not None and bias.numel() <= _BIAS_ELEMENTS else bias


def _samples(
    query: Tensor, key: Tensor, value: Tensor, mask_bias: Tensor | None, bias: Tensor | None
) -> Iterator["AttentionBlock"]:
    """Yield the attention of each sample; all share one set of scratch buffers."""
    scratch = Scratch(query.device)
    for index in steps(range(len(query))):
        yield AttentionBlock(
            query=query[index],
            key=key[index],
            value=value[index],
            mask_bias=None if mask_bias is None else mask_bias[index],
            bias=None if bias is None else float32_bias(bias[index]),
            scratch=scratch,
        )


@dataclass(frozen=True, kw_only=True)
class AttentionBlock:
    """Attention within rows of one sample.

    `query` [n h q d], already scaled, `key` [n h k d] and `value` [n h k c] may have any strides. `mask_bias` [n k] is
    float32, and `bias` [h q k] has any dtype.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask_bias: Tensor | None
    bias: Tensor | None
    scratch: Scratch

    def forward(self, attended: Tensor) -> None:
        """Write the result of attention into `attended` [n h q c]."""
        operands = self.query, self.key, self.value, self.mask_bias, self.bias
        if (loops := compiled("attention", *operands, attended)) and loops.computes(*operands[:3], attended):
            loops.attend(*operands, attended)
            return
        for rows in self._rows():
            key, value = self._flat(self.key[rows]), self._flat(self.value[rows])
            for part in slices(*self._queries):
                weights = self._weights(self._flat(self.query[rows, :, part]), key, rows, part)
                _write_product(weights, value, attended[rows, :, part])

    def backward(
        self,
        gradient: Tensor,
        attended: Tensor | None,
        grad_heads: tuple[Tensor, Tensor, Tensor],
        grad_bias: Tensor | None,
    ) -> None:
        """Write the gradients of query, key and value into `grad_heads`, and add the bias's gradient to `grad_bias`.

        `gradient` is the gradient of the result. Unless `attended` is None, also write the result into it.
        """
        operands = self.query, self.key, self.value, self.mask_bias, self.bias
        heads = *operands[:3], attended, gradient, *grad_heads
        if (loops := compiled("attention", *operands, *heads, grad_bias)) and loops.computes(*heads):
            loops.write_gradients(*operands, gradient, attended, grad_heads, grad_bias)
            return
        grad_query, grad_key, grad_value = grad_heads
        for rows in self._rows():
            key, value = self._flat(self.key[rows]), self._flat(self.value[rows])
            key_terms, value_terms = [], []
            for part in all_slices(*self._queries):
                query, grad_attended = self._flat(self.query[rows, :, part]), self._flat(gradient[rows, :, part])
                weights = self._weights(query, key, rows, part)
                if attended is not None:
                    _write_product(weights, value, attended[rows, :, part])
                value_terms.append(_product(weights.mT, grad_attended))
                # Holds the gradient of the weights, then the gradient of the logits, computed in float32.
                grad = self.scratch("gradients", *weights.shape, dtype=weights.dtype)
                torch.bmm(grad_attended, value.mT, out=grad)
                self._softmax_gradient(grad, weights, None if grad_bias is None else grad_bias[:, part])
                _copy(_product(grad, key), grad_query[rows, :, part])
                key_terms.append(_product(grad.mT, query))
            _copy(_total(key_terms), grad_key[rows])
            _copy(_total(value_terms), grad_value[rows])

    def _rows(self) -> Iterator[slice]:
        """Yield slices of rows whose logits, queries, keys and values fit `_ROWS_BYTES` per core."""
        n, h, q, d = self.query.shape
        k, c = self.value.shape[-2:]
        return slices(n, for_all_cores(_ROWS_BYTES) // (4 * h * (q * k + q * d + k * (d + c))))

    @property
    def _queries(self) -> tuple[int, int]:
        """The number of queries, and the maximum number computed at a time."""
        _, h, q, _ = self.query.shape
        return q, for_all_cores(_LOGITS_BYTES) // (4 * h * self.key.shape[2])

    def _weights(self, query: Tensor, key: Tensor, rows: slice, part: slice) -> Tensor:
        """Return the softmax of the logits [(n h) q k], computed in float32, in the dtype of `query`."""
        shape = (len(query), query.shape[1], key.shape[1])
        if loops := compiled("softmax", query, self.mask_bias, self.bias):
            weights = self.scratch("weights", *shape, dtype=query.dtype)
            torch.bmm(query, key.mT, out=weights)
            bias = None if self.bias is None else self.bias[:, part]
            mask_bias = None if self.mask_bias is None else self.mask_bias[rows]
            loops.write_softmax(weights, bias, mask_bias, self.query.shape[1])
            return weights
        logits = self.scratch("logits", *shape)
        by_row = logits.view(-1, self.query.shape[1], *shape[1:])
        mask_bias = None if self.mask_bias is None else self.mask_bias[rows, None, None]
        bias = None if self.bias is None else self._cast("bias", self.bias[:, part], torch.float32)
        terms = [term for term in (bias, mask_bias) if term is not None]
        if query.dtype == torch.float32 and terms:
            # Adding the product to the biases in place saves one traversal of the logits.
            if len(terms) == 2:
                torch.add(*terms, out=by_row)
            else:
                by_row.copy_(terms[0])
            logits.baddbmm_(query, key.mT)
        else:
            is_exact = query.dtype == torch.float32
            products = logits if is_exact else self.scratch("weights", *shape, dtype=query.dtype)
            torch.bmm(query, key.mT, out=products)
            if not is_exact:
                logits.copy_(products)
            for term in terms:
                by_row += term
        return self._cast("weights", torch.softmax(logits, -1, out=logits), query.dtype)

    def _softmax_gradient(self, grad: Tensor, weights: Tensor, grad_bias: Tensor | None) -> None:
        """Overwrite the gradient of the weights with the gradient of the logits, and add the gradient of the bias."""
        if loops := compiled("softmax", grad, grad_bias):
            loops.write_gradient(grad, weights, grad_bias, self.query.shape[1])
            return
        torch.ops.aten._softmax_backward_data.out(grad, weights, -1, grad.dtype, grad_input=grad)
        if grad_bias is not None:
            _add_terms(grad_bias, grad.view(-1, *grad_bias.shape))

    def _cast(self, name: str, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the tensor in another dtype; a conversion is written to the scratch buffer `name`."""
        return x if x.dtype == dtype else self.scratch(name, *x.shape, dtype=dtype).copy_(x)

    @property
    def _dtype(self) -> torch.dtype:
        """The dtype of the operands of matrix products."""
        has_few = min(self.query.shape[2], self.key.shape[2]) < _FEW_COLUMNS
        return torch.float32 if has_few else product_dtype(self.value.dtype)

    def _flat(self, heads: Tensor) -> Tensor:
        """Return [n h ...] as an operand [(n h) ...], contiguous below float32, where oneDNN is faster with it."""
        flat = heads.flatten(0, 1).to(self._dtype)
        return flat if flat.dtype == torch.float32 else flat.contiguous()


def _add_terms(total: Tensor, terms: Tensor) -> None:
    """Add all terms to a float32 sum in place."""
    if len(terms) > _FEW_ROWS:
        terms = terms.sum(0, keepdim=True, dtype=torch.float32)
    for term in terms:
        total.add_(term)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Return the batched product of `left` [m i k] and `right` [m k j], computed in the fastest way."""
    if left.shape[2] == 1:
        return left * right
    if right.shape[2] <= _FEW_COLUMNS < left.shape[1] and left.dtype == torch.float32:
        return torch.bmm(right.mT, left.mT).mT
    return torch.bmm(left, right)


def _write_product(left: Tensor, right: Tensor, out: Tensor) -> None:
    """Write the batched product of `left` [(n h) i m] and `right` [(n h) m j] into `out` [n h i j]."""
    if out.is_contiguous() and out.dtype == left.dtype and min(left.shape[1], right.shape[2]) > _FEW_COLUMNS:
        torch.bmm(left, right, out=out.view(-1, *out.shape[2:]))
    else:
        _copy(_product(left, right), out)


def _copy(flat: Tensor, out: Tensor) -> None:
    """Copy a result [(n h) ...] into `out` [n h ...]."""
    out.copy_(flat.view(out.shape))


def _total(terms: list[Tensor]) -> Tensor:
    """Return the sum of the terms, in float32 if there are several."""
    return terms[0] if len(terms) == 1 else torch.stack(terms).sum(0, dtype=torch.float32)
