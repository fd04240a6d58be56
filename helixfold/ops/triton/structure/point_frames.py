"""Kernels that convert the projections of residues to the inputs of invariant point attention, and back for gradients.

The projections of a residue are the query scalars of all heads, the key and value scalars of each head, then all x, all
y and all z coordinates of its points: the points of the queries, then for each head the points of key and value.
Attention reads

- queries and keys [b h r `width`]: scalars, x, y and z of the points in global coordinates, and a one,
- values [b h r d + 3 p]: scalars, and x, y and z of the points.

The origin of global coordinates is the origin of the first frame of the sample, near which points lose few digits.
"""

from typing import no_type_check

from helixfold.ops.triton.language import jit, kernel, tl


@jit
@no_type_check
def scalars_at(residue, sample, residues, count, width, head, channel):
    """Return offsets [heads, channels] into an array [b h r width]."""
    return ((sample * count + head[:, None]) * residues + residue) * width + channel[None, :]


@jit
@no_type_check
def frame(rotation_at, translation_at, sample, residue, residues):
    """Return the rotation of a residue by rows, and its origin relative to the origin of the first residue."""
    at = rotation_at + 9 * (sample * residues + residue)
    origin, first = translation_at + 3 * (sample * residues + residue), translation_at + 3 * sample * residues
    return (
        (tl.load(at), tl.load(at + 1), tl.load(at + 2)),
        (tl.load(at + 3), tl.load(at + 4), tl.load(at + 5)),
        (tl.load(at + 6), tl.load(at + 7), tl.load(at + 8)),
        (
            tl.load(origin) - tl.load(first),
            tl.load(origin + 1) - tl.load(first + 1),
            tl.load(origin + 2) - tl.load(first + 2),
        ),
    )


@jit
@no_type_check
def read_three(at, step, inside):
    """Return x, y and z, which are `step` elements apart."""
    return (
        tl.load(at, mask=inside, other=0.0),
        tl.load(at + step, mask=inside, other=0.0),
        tl.load(at + 2 * step, mask=inside, other=0.0),
    )


@jit
@no_type_check
def store_three(at, step, inside, three):
    tl.store(at, three[0], mask=inside)
    tl.store(at + step, three[1], mask=inside)
    tl.store(at + 2 * step, three[2], mask=inside)


@jit
@no_type_check
def turned(rows, v):
    """Return vectors rotated from local to global coordinates."""
    return (
        rows[0][0] * v[0] + rows[0][1] * v[1] + rows[0][2] * v[2],
        rows[1][0] * v[0] + rows[1][1] * v[1] + rows[1][2] * v[2],
        rows[2][0] * v[0] + rows[2][1] * v[1] + rows[2][2] * v[2],
    )


@jit
@no_type_check
def turned_back(rows, v):
    """Return vectors rotated from global to local coordinates."""
    return (
        rows[0][0] * v[0] + rows[1][0] * v[1] + rows[2][0] * v[2],
        rows[0][1] * v[0] + rows[1][1] * v[1] + rows[2][1] * v[2],
        rows[0][2] * v[0] + rows[1][2] * v[1] + rows[2][2] * v[2],
    )


@jit
@no_type_check
def _sum(x):
    return tl.sum(tl.sum(x, 1), 0)


@jit
@no_type_check
def _sums(v):
    return _sum(v[0]), _sum(v[1]), _sum(v[2])


@jit
@no_type_check
def _products(a, b):
    """Return the sum of the outer products of vectors a and b, by rows."""
    return (
        (_sum(a[0] * b[0]), _sum(a[0] * b[1]), _sum(a[0] * b[2])),
        (_sum(a[1] * b[0]), _sum(a[1] * b[1]), _sum(a[1] * b[2])),
        (_sum(a[2] * b[0]), _sum(a[2] * b[1]), _sum(a[2] * b[2])),
    )


@jit
@no_type_check
def _added(a, b):
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


@kernel
@no_type_check
def to_heads(
    projected_at,
    frames,
    packed,
    sizes,
    widths,
    heads: tl.constexpr,
    scalar_width: tl.constexpr,
    query_width: tl.constexpr,
    point_width: tl.constexpr,
):
    """Write the queries, keys and values of a residue, with its points in global coordinates."""
    residues, count = sizes
    d, q, p, width = widths
    program = tl.program_id(0)
    sample, residue = tl.cast(program // residues, tl.int64), tl.cast(program % residues, tl.int64)
    head, scalar = tl.arange(0, heads), tl.arange(0, scalar_width)
    query_point, point = tl.arange(0, query_width), tl.arange(0, point_width)
    inside = (head < count)[:, None] & (scalar < d)[None, :]
    projected_at += tl.cast(program, tl.int64) * 3 * count * (d + 2 * q + p)
    rows_0, rows_1, rows_2, origin = frame(frames[0], frames[1], sample, residue, residues)
    rows = (rows_0, rows_1, rows_2)
    query_at = packed[0] + scalars_at(residue, sample, residues, count, width, head, scalar)
    key_at = packed[1] + scalars_at(residue, sample, residues, count, width, head, scalar)
    value_at = packed[2] + scalars_at(residue, sample, residues, count, d + 3 * p, head, scalar)
    at = projected_at + head[:, None] * d + scalar[None, :]
    tl.store(query_at, tl.load(at, mask=inside, other=0.0), mask=inside)
    at = projected_at + count * d + head[:, None] * 2 * d + scalar[None, :]
    tl.store(key_at, tl.load(at, mask=inside, other=0.0), mask=inside)
    tl.store(value_at, tl.load(at + d, mask=inside, other=0.0), mask=inside)
    # After the points follow a one and zeros.
    past = tl.arange(0, 4)
    rest = (head < count)[:, None] & (d + 3 * q + past < width)[None, :]
    one = tl.where(past == 0, 1.0, 0.0)[None, :] + tl.zeros([heads, 4], tl.float32)
    place = scalars_at(residue, sample, residues, count, width, head, d + 3 * q + past)
    tl.store(packed[0] + place, one, mask=rest)
    tl.store(packed[1] + place, one, mask=rest)
    step = count * (2 * q + p)
    points_at = projected_at + 3 * count * d
    inside = (head < count)[:, None] & (query_point < q)[None, :]
    place = scalars_at(residue, sample, residues, count, width, head, d + query_point)
    local = read_three(points_at + head[:, None] * q + query_point[None, :], step, inside)
    store_three(packed[0] + place, q, inside, _added(turned(rows, local), origin))
    keys_at = points_at + count * q + head[:, None] * (q + p)
    local = read_three(keys_at + query_point[None, :], step, inside)
    store_three(packed[1] + place, q, inside, _added(turned(rows, local), origin))
    inside = (head < count)[:, None] & (point < p)[None, :]
    place = scalars_at(residue, sample, residues, count, d + 3 * p, head, d + point)
    local = read_three(keys_at + q + point[None, :], step, inside)
    store_three(packed[2] + place, p, inside, _added(turned(rows, local), origin))


@kernel
@no_type_check
def of_features(
    features_at,
    grad_features_at,
    frames,
    of_values_at,
    grad_frames_at,
    sizes,
    widths,
    min_length,
    heads: tl.constexpr,
    scalar_width: tl.constexpr,
    point_width: tl.constexpr,
):
    """Write the gradients of the mean values and global points of a query residue, and of its frame."""
    rows, residues, count, first = sizes
    d, p, c = widths
    program = tl.program_id(0)
    sample, row = tl.cast(program // rows, tl.int64), tl.cast(program % rows, tl.int64)
    head, scalar, point = tl.arange(0, heads), tl.arange(0, scalar_width), tl.arange(0, point_width)
    start = tl.cast(program, tl.int64) * count * (d + 4 * p + c)
    inside = (head < count)[:, None] & (scalar < d)[None, :]
    gradient = tl.load(grad_features_at + start + head[:, None] * d + scalar[None, :], mask=inside, other=0.0)
    tl.store(of_values_at + scalars_at(row, sample, rows, count, d + 3 * p, head, scalar), gradient, mask=inside)
    inside = (head < count)[:, None] & (point < p)[None, :]
    place = start + count * d + head[:, None] * p + point[None, :]
    local = read_three(features_at + place, count * p, inside)
    x, y, z = read_three(grad_features_at + place, count * p, inside)
    length = tl.load(features_at + place + 3 * count * p, mask=inside, other=1.0)
    grad_length = tl.load(grad_features_at + place + 3 * count * p, mask=inside, other=0.0)
    slope = tl.where(length > min_length, grad_length / length, 0.0)
    gradient = (x + slope * local[0], y + slope * local[1], z + slope * local[2])
    rows_0, rows_1, rows_2, _ = frame(frames[0], frames[1], sample, first + row, residues)
    rotation = (rows_0, rows_1, rows_2)
    along = turned(rotation, gradient)
    place = scalars_at(row, sample, rows, count, d + 3 * p, head, d + point)
    store_three(of_values_at + place, p, inside, along)
    # A local point is the transposed rotation times a difference, which is the rotation times the local point.
    products = _products(local, gradient)
    sums = _sums(along)
    grad_frames_at += 12 * tl.cast(program, tl.int64)
    for axis in tl.static_range(3):
        column = turned(rotation, (products[0][axis], products[1][axis], products[2][axis]))
        for row_of_rotation in tl.static_range(3):
            tl.store(grad_frames_at + 3 * row_of_rotation + axis, column[row_of_rotation])
        tl.store(grad_frames_at + 9 + axis, -sums[axis])


@jit
@no_type_check
def _of_distances(product_at, sum_at, packed_at, step, inside, exists, is_used, weight):
    """Return the gradients of some global points, and for each head their unweighted sum of products with the points.

    The gradient of minus half a squared distance is the difference of the two points. The sum over the other residues
    is the product of the gradients of the logits with their points, minus the sum of these gradients times the point.
    Unused elements are 0.
    """
    point = read_three(packed_at, step, inside)
    product = read_three(product_at, step, inside)
    total = tl.load(sum_at, mask=exists, other=0.0)[:, None]
    x = is_used * (product[0] - total * point[0])
    y = is_used * (product[1] - total * point[1])
    z = is_used * (product[2] - total * point[2])
    along = tl.sum(x * point[0] + y * point[1] + z * point[2], 1)
    return (weight * x, weight * y, weight * z), along


@jit
@no_type_check
def _to_local(projected_at, grad_projected_at, place, step, inside, rotation, gradient):
    """Store the gradients of local points, and return the gradients of the rotation and of the origin."""
    store_three(grad_projected_at + place, step, inside, turned_back(rotation, gradient))
    return _products(gradient, read_three(projected_at + place, step, inside)), _sums(gradient)


@kernel
@no_type_check
def to_projections(
    projected_at,
    frames,
    packed,
    gradients,
    point_weight_at,
    grad_projected_at,
    grad_frames_at,
    grad_point_weights_at,
    sizes,
    widths,
    heads: tl.constexpr,
    scalar_width: tl.constexpr,
    query_width: tl.constexpr,
    point_width: tl.constexpr,
):
    """Write the gradients of projections and frame of a residue, and its part of the gradients of point weights.

    `packed` are queries and keys. `gradients` are the products of the gradients of the logits with keys and with
    queries, the gradients of values, and the gradients of the frames of query residues from their features.
    """
    rows, residues, count, first = sizes
    d, q, p, width = widths
    program = tl.program_id(0)
    sample, residue = tl.cast(program // residues, tl.int64), tl.cast(program % residues, tl.int64)
    # Residues that are not queries here read another residue, whose values are replaced by 0.
    is_query = tl.where(residue >= first, 1.0, 0.0) * tl.where(residue < first + rows, 1.0, 0.0)
    row = tl.minimum(tl.maximum(residue - first, 0), rows - 1)
    head, scalar = tl.arange(0, heads), tl.arange(0, scalar_width)
    query_point, point = tl.arange(0, query_width), tl.arange(0, point_width)
    rows_0, rows_1, rows_2, _ = frame(frames[0], frames[1], sample, residue, residues)
    rotation = (rows_0, rows_1, rows_2)
    exists = head < count
    weight = tl.load(point_weight_at + head, mask=exists, other=0.0)[:, None]
    projected_at += tl.cast(program, tl.int64) * 3 * count * (d + 2 * q + p)
    grad_projected_at += tl.cast(program, tl.int64) * 3 * count * (d + 2 * q + p)

    inside = exists[:, None] & (scalar < d)[None, :]
    of_query = gradients[0] + scalars_at(row, sample, rows, count, width, head, scalar)
    of_key = gradients[1] + scalars_at(residue, sample, residues, count, width, head, scalar)
    of_value = gradients[2] + scalars_at(residue, sample, residues, count, d + 3 * p, head, scalar)
    place = head[:, None] * d + scalar[None, :]
    tl.store(grad_projected_at + place, is_query * tl.load(of_query, mask=inside, other=0.0), mask=inside)
    place = count * d + head[:, None] * 2 * d + scalar[None, :]
    tl.store(grad_projected_at + place, tl.load(of_key, mask=inside, other=0.0), mask=inside)
    tl.store(grad_projected_at + place + d, tl.load(of_value, mask=inside, other=0.0), mask=inside)

    step, points = count * (2 * q + p), 3 * count * d
    inside = exists[:, None] & (query_point < q)[None, :]
    place = scalars_at(row, sample, rows, count, width, head, d + query_point)
    key_place = scalars_at(residue, sample, residues, count, width, head, d + query_point)
    sum_at = gradients[0] + ((sample * count + head) * rows + row) * width + d + 3 * q
    key_sum_at = gradients[1] + ((sample * count + head) * residues + residue) * width + d + 3 * q
    away, along = _of_distances(
        gradients[0] + place, sum_at, packed[0] + key_place, q, inside, exists, is_query, weight
    )
    place = points + head[:, None] * q + query_point[None, :]
    of_query, query_origin = _to_local(projected_at, grad_projected_at, place, step, inside, rotation, away)
    away, along_key = _of_distances(
        gradients[1] + key_place, key_sum_at, packed[1] + key_place, q, inside, exists, 1.0, weight
    )
    place = points + count * q + head[:, None] * (q + p) + query_point[None, :]
    of_key, key_origin = _to_local(projected_at, grad_projected_at, place, step, inside, rotation, away)
    inside = exists[:, None] & (point < p)[None, :]
    place = scalars_at(residue, sample, residues, count, d + 3 * p, head, d + point)
    away = read_three(gradients[2] + place, p, inside)
    place = points + count * q + head[:, None] * (q + p) + q + point[None, :]
    of_value, value_origin = _to_local(projected_at, grad_projected_at, place, step, inside, rotation, away)

    # A quadratic form is half the sum of the products of its gradients with the points.
    tl.store(grad_point_weights_at + program * count + head, 0.5 * (along + along_key), mask=exists)
    grad_frames_at += 12 * tl.cast(program, tl.int64)
    own_at = gradients[3] + 12 * (sample * rows + row)
    for x in tl.static_range(3):
        for y in tl.static_range(3):
            own = is_query * tl.load(own_at + 3 * x + y)
            tl.store(grad_frames_at + 3 * x + y, own + of_query[x][y] + of_key[x][y] + of_value[x][y])
        own = is_query * tl.load(own_at + 9 + x)
        tl.store(grad_frames_at + 9 + x, own + query_origin[x] + key_origin[x] + value_origin[x])
