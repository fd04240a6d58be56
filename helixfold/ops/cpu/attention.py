"""Attention a few rows at a time: logits stay in the cache, and a backward pass computes them again."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor

from helixfold.ops.cpu.blocks import Scratch, every_part, of_all_cores, parts, steps
from helixfold.ops.mask_bias import mask_bias
from helixfold.ops.precision import product_dtype
from helixfold.ops.recomputed import recomputed

# Of the logits of a row that are there at a time, for each core: enough to keep it busy, little enough for its cache.
_LOGITS_BYTES = 2**20
# Of all that several rows need: larger ones are not taken together, for then their heads must be copied.
_ROWS_BYTES = 4 * 2**20
# A bias of no more elements is made float32 once for all rows. A larger one, perhaps as large as a stream, is made so a
# part at a time.
_WIDE_ELEMENTS = 2**22
# Tall products whose results are no wider run several times faster the other way round, and those of narrow dtypes
# take longer than in float32.
_NARROW = 16


def attention_rows(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, bias: Tensor | None = None, gate: Tensor | None = None
) -> Tensor:
    """`attention` on a CPU; keeps nothing of rows by queries by keys."""
    queries, key_heads = query.shape[3], key.shape[2]
    # Heads with the same keys are as many more queries.
    query = rearrange(query * query.shape[-1] ** -0.5, "b n (g h) q d -> b n g (h q) d", g=key_heads)
    bias = None if bias is None else rearrange(bias, "b (g h) q k -> b g (h q) k", g=key_heads)
    gathered = recomputed(_attention, _attention_gradients, query, key, value, mask_bias(mask), bias)
    gathered = rearrange(gathered, "b n g (h q) c -> b n (g h) q c", q=queries)
    return gathered if gate is None else gathered * gate.sigmoid()


def _attention(query: Tensor, key: Tensor, value: Tensor, penalty: Tensor | None, bias: Tensor | None) -> Tensor:
    b, n, h, q, _ = query.shape
    gathered = value.new_empty(b, n, q, h, value.shape[-1]).transpose(2, 3)
    for index, rows in enumerate(_samples(query, key, value, penalty, bias)):
        rows.gather(gathered[index])
    return gathered


def _attention_gradients(
    needed: tuple[bool, ...],
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    penalty: Tensor | None,
    bias: Tensor | None,
) -> tuple[Tensor | None, ...]:
    of_query, of_key, of_value = (torch.empty_like(each) for each in (query, key, value))
    of_bias = None if bias is None or not needed[4] else torch.zeros(bias.shape, device=bias.device)
    for index, rows in enumerate(_samples(query, key, value, penalty, bias)):
        rows.gather_again(
            gradient[index],
            None,
            (of_query[index], of_key[index], of_value[index]),
            None if of_bias is None else of_bias[index],
        )
    return of_query, of_key, of_value, None, None if bias is None or of_bias is None else of_bias.to(bias.dtype)


def bias_of_rows(bias: Tensor | None) -> Tensor | None:
    """A bias as `Rows` read it fastest, if that does not take much memory."""
    return bias.float() if bias is not None and bias.numel() <= _WIDE_ELEMENTS else bias


def _samples(
    query: Tensor, key: Tensor, value: Tensor, penalty: Tensor | None, bias: Tensor | None
) -> Iterator["Rows"]:
    scratch = Scratch(query.device)
    for index in steps(range(len(query))):
        yield Rows(
            query=query[index],
            key=key[index],
            value=value[index],
            penalty=None if penalty is None else penalty[index],
            bias=None if bias is None else bias_of_rows(bias[index]),
            scratch=scratch,
        )


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows that attend each within itself.

    Query [n h q d], scaled already, key [n h k d] and value [n h k c] have any strides; `penalty` [n k] is float32 and
    `bias` [h q k] of any dtype.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    penalty: Tensor | None
    bias: Tensor | None
    scratch: Scratch

    def gather(self, gathered: Tensor) -> None:
        """Write what the queries find into `gathered` [n h q c]."""
        for rows in self._rows():
            key, value = self._flat(self.key[rows]), self._flat(self.value[rows])
            for part in parts(*self._queries):
                weights = self._weights(self._flat(self.query[rows, :, part]), key, rows, part)
                weights = self._cast("rounded", weights, self._dtype)
                _put(_product(weights, value), gathered[rows, :, part])

    def gather_again(
        self,
        gradient: Tensor,
        gathered: Tensor | None,
        of_heads: tuple[Tensor, Tensor, Tensor],
        of_bias: Tensor | None,
    ) -> None:
        """Write the gradients of query, key and value that follow from what is found, and add those of the bias.

        What is found is written again where there is room for it.
        """
        of_query, of_key, of_value = of_heads
        for rows in self._rows():
            key, value = self._flat(self.key[rows]), self._flat(self.value[rows])
            to_key, to_value = [], []
            for part in every_part(*self._queries):
                query, of_found = self._flat(self.query[rows, :, part]), self._flat(gradient[rows, :, part])
                weights = self._weights(query, key, rows, part)
                rounded = self._cast("rounded", weights, self._dtype)
                if gathered is not None:
                    _put(_product(rounded, value), gathered[rows, :, part])
                to_value.append(_product(rounded.mT, of_found))
                of_logits = self._wide_product("gradients", of_found, value)
                torch.ops.aten._softmax_backward_data.out(of_logits, weights, -1, torch.float32, grad_input=of_logits)
                if of_bias is not None:
                    terms = of_logits.view(-1, *of_bias[:, part].shape)
                    of_bias[:, part].add_(terms[0] if len(terms) == 1 else terms.sum(0))
                rounded = self._cast("rounded gradients", of_logits, self._dtype)
                _put(_product(rounded, key), of_query[rows, :, part])
                to_key.append(_product(rounded.mT, query))
            _put(_total(to_key), of_key[rows])
            _put(_total(to_value), of_value[rows])

    def _rows(self) -> Iterator[slice]:
        n, h, q, d = self.query.shape
        k, c = self.value.shape[-2:]
        return parts(n, of_all_cores(_ROWS_BYTES) // (4 * h * (q * k + q * d + k * (d + c))))

    @property
    def _queries(self) -> tuple[int, int]:
        """How many queries there are, and how many of them are taken at a time."""
        _, h, q, _ = self.query.shape
        return q, of_all_cores(_LOGITS_BYTES) // (4 * h * self.key.shape[2])

    def _weights(self, query: Tensor, key: Tensor, rows: slice, part: slice) -> Tensor:
        """The softmax of logits [(n h) q k], in float32 whatever the queries are."""
        shape = (len(query), query.shape[1], key.shape[1])
        logits = self.scratch("weights", *shape)
        by_row = logits.view(-1, self.query.shape[1], *shape[1:])
        penalty = None if self.penalty is None else self.penalty[rows, None, None]
        bias = None if self.bias is None else self._cast("bias", self.bias[:, part], torch.float32)
        terms = [each for each in (bias, penalty) if each is not None]
        if query.dtype == logits.dtype and terms:
            # A product that is added to what is there saves a pass.
            if len(terms) == 2:
                torch.add(*terms, out=by_row)
            else:
                by_row.copy_(terms[0])
            logits.baddbmm_(query, key.mT)
        else:
            self._wide_product("weights", query, key)
            for term in terms:
                by_row += term
        return torch.softmax(logits, -1, out=logits)

    def _wide_product(self, name: str, left: Tensor, right: Tensor) -> Tensor:
        """Products of all with all in float32, in the memory of that name."""
        room = self.scratch(name, *left.shape[:2], right.shape[1])
        if left.dtype == room.dtype:
            return torch.bmm(left, right.mT, out=room)
        narrow = self.scratch("narrow", *room.shape, dtype=left.dtype)
        return room.copy_(torch.bmm(left, right.mT, out=narrow))

    def _cast(self, name: str, x: Tensor, dtype: torch.dtype) -> Tensor:
        """The same in that dtype, in the memory of that name if it has another one."""
        return x if x.dtype == dtype else self.scratch(name, *x.shape, dtype=dtype).copy_(x)

    @property
    def _dtype(self) -> torch.dtype:
        """Of the operands of products."""
        is_tall = min(self.query.shape[2], self.key.shape[2]) < _NARROW
        return torch.float32 if is_tall else product_dtype(self.value.dtype)

    def _flat(self, heads: Tensor) -> Tensor:
        """[n h ...] as [(n h) ...], operands of products; oneDNN, for narrow dtypes, is faster if contiguous."""
        flat = heads.flatten(0, 1).to(self._dtype)
        return flat if flat.dtype == torch.float32 else flat.contiguous()


def _product(left: Tensor, right: Tensor) -> Tensor:
    if left.shape[2] == 1:
        return left * right
    if right.shape[2] <= _NARROW < left.shape[1] and left.dtype == torch.float32:
        return torch.bmm(right.mT, left.mT).mT
    return torch.bmm(left, right)


def _put(flat: Tensor, into: Tensor) -> None:
    into.copy_(flat.view(into.shape))


def _total(terms: list[Tensor]) -> Tensor:
    """In float32 if there are several."""
    return terms[0] if len(terms) == 1 else torch.stack(terms).sum(0, dtype=torch.float32)
