"""Frames of rigid groups and chi angles of an experimental structure as one Triton kernel, without gradients."""

from typing import no_type_check

from torch import Tensor

from helixfold.ops.triton.language import cdiv, jit, kernel, tl

_BLOCK = 16  # residues of a program
_ATOMS = tl.constexpr(37)
# A vector is divided by its length, or by 1e-4 if all coordinates are 0.
_SQUARED_FLOOR = tl.constexpr(1e-8)


@jit
@no_type_check
def _unit(v):
    """Return vectors of length 1."""
    length = tl.sqrt(v[0] * v[0] + v[1] * v[1] + v[2] * v[2] + _SQUARED_FLOOR)
    return v[0] / length, v[1] / length, v[2] / length


@jit
@no_type_check
def _difference(a, b):
    """Return the difference of two vectors."""
    return a[0] - b[0], a[1] - b[1], a[2] - b[2]


@jit
@no_type_check
def _product(a, b):
    """Return the scalar product of two vectors."""
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


@jit
@no_type_check
def _axes(negative_x, origin, xy_plane):
    """Return the axes of frames at `origin` whose x axis points away from `negative_x` (Suppl. Alg. 21)."""
    x = _unit(_difference(origin, negative_x))
    in_plane = _difference(xy_plane, origin)
    along = _product(in_plane, x)
    y = _unit((in_plane[0] - along * x[0], in_plane[1] - along * x[1], in_plane[2] - along * x[2]))
    return x, y, (x[1] * y[2] - x[2] * y[1], x[2] * y[0] - x[0] * y[2], x[0] * y[1] - x[1] * y[0])


@jit
@no_type_check
def _atom(structure, atoms_at, residue, inside):
    """Return the coordinates of an atom of each residue, whose index is at an address, and whether the atom exists."""
    atom = residue * _ATOMS + tl.load(atoms_at, mask=inside, other=0)
    at = structure[0] + 3 * atom
    return (
        tl.load(at, mask=inside, other=0.0),
        tl.load(at + 1, mask=inside, other=0.0),
        tl.load(at + 2, mask=inside, other=0.0),
    ), tl.load(structure[1] + atom, mask=inside, other=0.0)


@kernel
@no_type_check
def observe(structure, aatype_at, tables, groups, chis, residues, block: tl.constexpr):
    """Write the frames, alternative rotations and masks of 8 rigid groups, and the 4 chi angles, of some residues.

    `structure` are the positions and the mask of atoms. `tables` are described in `observed`.
    """
    atoms_at, exists_at, mirror_at, half_turn_at, chi_atoms_at, chi_exists_at, symmetric_at = tables
    residue = (tl.program_id(0) * block + tl.arange(0, block)).to(tl.int64)[:, None]
    # Gaps have residue type 21. Like unknown residues, of type 20, they have no groups and no atoms here.
    aatype = tl.minimum(tl.load(aatype_at + residue, mask=residue < residues, other=20), 20)

    group = tl.arange(0, 8)[None, :]
    inside, row = (residue < residues) & (group < 8), aatype * 8 + group
    negative_x, first = _atom(structure, atoms_at + row * 3, residue, inside)
    origin, second = _atom(structure, atoms_at + row * 3 + 1, residue, inside)
    xy_plane, third = _atom(structure, atoms_at + row * 3 + 2, residue, inside)
    axes = _axes(negative_x, origin, xy_plane)
    place = residue * 8 + group
    for column in tl.static_range(3):
        mirror = tl.load(mirror_at + group * 3 + column)
        half_turn = tl.load(half_turn_at + row * 3 + column, mask=inside, other=0.0)
        for axis in tl.static_range(3):
            value = axes[column][axis] * mirror
            tl.store(groups[0] + place * 9 + 3 * axis + column, value, mask=inside)
            tl.store(groups[1] + place * 9 + 3 * axis + column, value * half_turn, mask=inside)
        tl.store(groups[2] + place * 3 + column, origin[column], mask=inside)
    exists = tl.load(exists_at + row, mask=inside, other=0.0)
    tl.store(groups[3] + place, tl.minimum(tl.minimum(first, second), third) * exists, mask=inside)

    chi = tl.arange(0, 4)[None, :]
    inside, row = (residue < residues) & (chi < 4), aatype * 4 + chi
    plane, first = _atom(structure, chi_atoms_at + row * 4, residue, inside)
    negative_x, second = _atom(structure, chi_atoms_at + row * 4 + 1, residue, inside)
    origin, third = _atom(structure, chi_atoms_at + row * 4 + 2, residue, inside)
    last, fourth = _atom(structure, chi_atoms_at + row * 4 + 3, residue, inside)
    _, y, z = _axes(negative_x, origin, plane)
    apart = _difference(last, origin)
    sine, cosine = _product(z, apart), _product(y, apart)
    length = tl.sqrt(sine * sine + cosine * cosine + _SQUARED_FLOOR)
    sign = 1 - 2 * tl.load(symmetric_at + row, mask=inside, other=0).to(tl.float32)
    place = residue * 4 + chi
    tl.store(chis[0] + 2 * place, sine / length, mask=inside)
    tl.store(chis[0] + 2 * place + 1, cosine / length, mask=inside)
    tl.store(chis[1] + 2 * place, sign * sine / length, mask=inside)
    tl.store(chis[1] + 2 * place + 1, sign * cosine / length, mask=inside)
    exists = tl.load(chi_exists_at + row, mask=inside, other=0).to(tl.float32)
    tl.store(chis[2] + place, exists * first * second * third * fourth, mask=inside)


def observed(aatype: Tensor, positions: Tensor, mask: Tensor, tables: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the frames of 8 rigid groups and the chi angles of an experimental structure.

    The results are the rotations, alternative rotations, translations and mask of the groups, then the angles,
    alternative angles and mask of the chis. `tables` have a row for each residue type: the atoms of the groups, which
    groups exist, their mirrored axes and half turns, and the atoms of the chis, which chis exist and which are
    symmetric.
    """
    structure, shape = (positions.contiguous(), mask.contiguous()), aatype.shape
    groups = tuple(positions.new_empty(*shape, 8, *rest) for rest in ((3, 3), (3, 3), (3,), ()))
    chis = tuple(positions.new_empty(*shape, 4, *rest) for rest in ((2,), (2,), ()))
    observe[(cdiv(aatype.numel(), _BLOCK),)](
        structure, aatype.contiguous(), tables, groups, chis, aatype.numel(), block=_BLOCK, num_warps=4
    )
    return *groups, *chis
