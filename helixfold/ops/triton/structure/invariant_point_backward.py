"""The Triton kernel for the gradients of invariant point attention that all pairs have: logits and channels."""

from typing import no_type_check

from helixfold.ops.constants import EPS
from helixfold.ops.triton.language import jit, kernel, tl
from helixfold.ops.triton.layer_norm import gradient_through_norm, normalised
from helixfold.ops.triton.structure.invariant_point_tiles import means_at, of_keys, pair_at, read_weight

_EPS = tl.constexpr(EPS)


@jit
@no_type_check
def _read(pair, arrays, log_sum, sample, row, index, heads: tl.constexpr, c: tl.constexpr, sizes):
    """Return the normalised channels, reciprocal standard deviations, weights and weight gradients of some keys."""
    x = tl.load(pair_at(pair, sample, row, index, c), mask=(index < sizes[1])[:, None], other=0.0).to(tl.float32)
    normed, factor = normalised(x, tl.arange(0, c), _EPS, c)
    at, exists = of_keys(arrays[0], sample, row, index, heads, sizes)
    weights = tl.exp(tl.load(at, mask=exists, other=-float("inf")) - log_sum[None, :])
    grad_weights = tl.load(of_keys(arrays[2], sample, row, index, heads, sizes)[0], mask=exists, other=0.0)
    return normed, factor, weights, grad_weights


@kernel
@no_type_check
def differentiate(
    pair,
    parameters,
    arrays,
    log_sum_at,
    grad_pairs_of,
    grad_pair,
    sums_at,
    sizes,
    samples,
    heads: tl.constexpr,
    c: tl.constexpr,
    block: tl.constexpr,
):
    """Compute the gradients of the logits and the pair, given the gradients of the weights and mean channels.

    `arrays` are the logits, the weights, which are written, and the gradients of the weights without the part from the
    mean channels, which are overwritten with the gradients of the logits. `grad_pairs_of` are the gradients of the mean
    channels and their stride from one residue to the next. Every program sums the gradients [h + 2, c] of its residues
    for the map to the bias and for the scale and offset of the norm.
    """
    scale_at, weight_at = parameters
    rows, keys, count = sizes
    head, channel = tl.arange(0, heads), tl.arange(0, c)
    scale = tl.load(scale_at + channel)
    weight = read_weight(weight_at, scale, heads, c, count)
    sum_weight = tl.zeros([heads, c], tl.float32)
    sum_scale, sum_offset = tl.zeros([c], tl.float32), tl.zeros([c], tl.float32)
    for program in range(tl.program_id(0), samples * rows, tl.num_programs(0)):
        sample, row = tl.cast(program // rows, tl.int64), tl.cast(program % rows, tl.int64)
        place, inside = means_at(heads, c, count, c)
        grad_pairs = tl.load(
            grad_pairs_of[0] + tl.cast(program, tl.int64) * grad_pairs_of[1] + place, mask=inside, other=0.0
        )
        sum_offset += tl.sum(grad_pairs, 0)
        grad_mean = grad_pairs * scale[None, :]
        log_sum = tl.load(log_sum_at + program * count + head, mask=head < count, other=0.0)
        mean = tl.zeros([heads, c], tl.float32)
        along = tl.zeros([heads], tl.float32)
        for first in range(0, keys, block):
            index = first + tl.arange(0, block)
            normed, _, weights, gradient = _read(pair, arrays, log_sum, sample, row, index, heads, c, sizes)
            gradient += tl.dot(normed, tl.trans(grad_mean), input_precision="ieee")
            along += tl.sum(weights * gradient, 0)
            mean += tl.dot(tl.trans(weights), normed, input_precision="ieee")
        sum_scale += tl.sum(grad_pairs * mean, 0)
        for first in range(0, keys, block):
            index = first + tl.arange(0, block)
            normed, factor, weights, gradient = _read(pair, arrays, log_sum, sample, row, index, heads, c, sizes)
            gradient += tl.dot(normed, tl.trans(grad_mean), input_precision="ieee")
            gradient = weights * (gradient - along[None, :])
            at, exists = of_keys(arrays[1], sample, row, index, heads, sizes)
            tl.store(at, weights, mask=exists)
            tl.store(of_keys(arrays[2], sample, row, index, heads, sizes)[0], gradient, mask=exists)
            sum_weight += tl.dot(tl.trans(gradient), normed, input_precision="ieee")
            if grad_pair is not None:
                grad_normed = tl.dot(gradient, weight, input_precision="ieee")
                grad_normed += tl.dot(weights, grad_mean, input_precision="ieee")
                grad_x = gradient_through_norm(grad_normed, normed, factor, c)
                at = pair_at(grad_pair, sample, row, index, c)
                tl.store(at, grad_x.to(grad_pair[0].dtype.element_ty), mask=(index < keys)[:, None])
    # The weight of the map is multiplied by the scale of the norm.
    place, inside = means_at(heads, c, count, c)
    sum_scale += tl.sum(sum_weight * tl.load(weight_at + place, mask=inside, other=0.0), 0)
    sums_at += tl.program_id(0) * (count + 2) * c
    tl.store(sums_at + place, sum_weight * scale[None, :], mask=inside)
    tl.store(sums_at + count * c + channel, sum_scale)
    tl.store(sums_at + (count + 1) * c + channel, sum_offset)
