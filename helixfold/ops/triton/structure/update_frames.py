"""The update of backbone frames as Triton kernels, with the numbers of a residue in separate registers."""

from typing import Any, no_type_check

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from helixfold.ops.triton.language import cdiv, jit, kernel, tl

_BLOCK = 32  # residues of a program


@jit
@no_type_check
def _quaternion(at, residue, exists):
    """Return w, x, y and z of some residues."""
    at += 4 * residue
    return (
        tl.load(at, mask=exists, other=1.0),
        tl.load(at + 1, mask=exists, other=0.0),
        tl.load(at + 2, mask=exists, other=0.0),
        tl.load(at + 3, mask=exists, other=0.0),
    )


@jit
@no_type_check
def _vector(at, residue, exists, size):
    """Return three consecutive numbers of some residues, which have `size` numbers each."""
    at += size * residue
    return (
        tl.load(at, mask=exists, other=0.0),
        tl.load(at + 1, mask=exists, other=0.0),
        tl.load(at + 2, mask=exists, other=0.0),
    )


@jit
@no_type_check
def _store(at, residue, exists, size, a, b, c):
    """Store three numbers of some residues, which have `size` numbers each."""
    at += size * residue
    tl.store(at, a, mask=exists)
    tl.store(at + 1, b, mask=exists)
    tl.store(at + 2, c, mask=exists)


@jit
@no_type_check
def _turned(q, u):
    """Return the normalised product of q with (1, u), and the reciprocal of its length before normalisation."""
    w = q[0] - q[1] * u[0] - q[2] * u[1] - q[3] * u[2]
    x = q[1] + q[0] * u[0] + q[2] * u[2] - q[3] * u[1]
    y = q[2] + q[0] * u[1] - q[1] * u[2] + q[3] * u[0]
    z = q[3] + q[0] * u[2] + q[1] * u[1] - q[2] * u[0]
    length = tl.sqrt(w * w + x * x + y * y + z * z)
    return w / length, x / length, y / length, z / length, 1.0 / length


@kernel
@no_type_check
def _update(inputs, outputs, residues, block: tl.constexpr):
    """Store the updated frames of some residues; `inputs` are quaternion, rotation, translation and update."""
    residue = tl.program_id(0) * block + tl.arange(0, block)
    exists = residue < residues
    w, x, y, z, _ = _turned(_quaternion(inputs[0], residue, exists), _vector(inputs[3], residue, exists, 6))
    tl.store(outputs[0] + 4 * residue, w, mask=exists)
    _store(outputs[0] + 1, residue, exists, 4, x, y, z)
    ww, xx, yy, zz = w * w, x * x, y * y, z * z
    xy, xz, yz, wx, wy, wz = 2 * x * y, 2 * x * z, 2 * y * z, 2 * w * x, 2 * w * y, 2 * w * z
    _store(outputs[1], residue, exists, 9, ww + xx - yy - zz, xy - wz, xz + wy)
    _store(outputs[1] + 3, residue, exists, 9, xy + wz, ww - xx + yy - zz, yz - wx)
    _store(outputs[1] + 6, residue, exists, 9, xz - wy, yz + wx, ww - xx - yy + zz)
    s = _vector(inputs[3] + 3, residue, exists, 6)
    a = _vector(inputs[1], residue, exists, 9)
    b = _vector(inputs[1] + 3, residue, exists, 9)
    c = _vector(inputs[1] + 6, residue, exists, 9)
    t = _vector(inputs[2], residue, exists, 3)
    _store(
        outputs[2],
        residue,
        exists,
        3,
        t[0] + (a[0] * s[0] + a[1] * s[1] + a[2] * s[2]),
        t[1] + (b[0] * s[0] + b[1] * s[1] + b[2] * s[2]),
        t[2] + (c[0] * s[0] + c[1] * s[1] + c[2] * s[2]),
    )


@jit
@no_type_check
def _gradient_of_rotation(at, residue, exists, w, x, y, z):
    """Return the gradient of a unit quaternion, given the gradient of its rotation."""
    a = _vector(at, residue, exists, 9)
    b = _vector(at + 3, residue, exists, 9)
    c = _vector(at + 6, residue, exists, 9)
    xy, xz, yz, wx, wy, wz = a[1] + b[0], a[2] + c[0], b[2] + c[1], c[1] - b[2], a[2] - c[0], b[0] - a[1]
    return (
        2 * (w * (a[0] + b[1] + c[2]) + x * wx + y * wy + z * wz),
        2 * (x * (a[0] - b[1] - c[2]) + y * xy + z * xz + w * wx),
        2 * (y * (b[1] - a[0] - c[2]) + x * xy + z * yz + w * wy),
        2 * (z * (c[2] - a[0] - b[1]) + x * xz + y * yz + w * wz),
    )


@kernel
@no_type_check
def _differentiate(inputs, gradients, grad_inputs, residues, block: tl.constexpr):
    """Store the gradients of quaternion, rotation and update (`grad_inputs`) from the `gradients` of new frames."""
    residue = tl.program_id(0) * block + tl.arange(0, block)
    exists = residue < residues
    q, u = _quaternion(inputs[0], residue, exists), _vector(inputs[3], residue, exists, 6)
    w, x, y, z, factor = _turned(q, u)
    grad = _quaternion(gradients[0], residue, exists)
    of_rotation = _gradient_of_rotation(gradients[1], residue, exists, w, x, y, z)
    gw, gx = grad[0] + of_rotation[0], grad[1] + of_rotation[1]
    gy, gz = grad[2] + of_rotation[2], grad[3] + of_rotation[3]
    along = w * gw + x * gx + y * gy + z * gz
    gw, gx, gy, gz = (
        factor * (gw - w * along),
        factor * (gx - x * along),
        factor * (gy - y * along),
        factor * (gz - z * along),
    )
    tl.store(grad_inputs[0] + 4 * residue, gw + u[0] * gx + u[1] * gy + u[2] * gz, mask=exists)
    _store(
        grad_inputs[0] + 1,
        residue,
        exists,
        4,
        gx - u[0] * gw - u[2] * gy + u[1] * gz,
        gy - u[1] * gw + u[2] * gx - u[0] * gz,
        gz - u[2] * gw - u[1] * gx + u[0] * gy,
    )
    _store(
        grad_inputs[2],
        residue,
        exists,
        6,
        q[0] * gx - q[1] * gw + q[3] * gy - q[2] * gz,
        q[0] * gy - q[2] * gw - q[3] * gx + q[1] * gz,
        q[0] * gz - q[3] * gw + q[2] * gx - q[1] * gy,
    )
    s, t = _vector(inputs[3] + 3, residue, exists, 6), _vector(gradients[2], residue, exists, 3)
    a = _vector(inputs[1], residue, exists, 9)
    b = _vector(inputs[1] + 3, residue, exists, 9)
    c = _vector(inputs[1] + 6, residue, exists, 9)
    _store(
        grad_inputs[2] + 3,
        residue,
        exists,
        6,
        a[0] * t[0] + b[0] * t[1] + c[0] * t[2],
        a[1] * t[0] + b[1] * t[1] + c[1] * t[2],
        a[2] * t[0] + b[2] * t[1] + c[2] * t[2],
    )
    _store(grad_inputs[1], residue, exists, 9, t[0] * s[0], t[0] * s[1], t[0] * s[2])
    _store(grad_inputs[1] + 3, residue, exists, 9, t[1] * s[0], t[1] * s[1], t[1] * s[2])
    _store(grad_inputs[1] + 6, residue, exists, 9, t[2] * s[0], t[2] * s[1], t[2] * s[2])


class _UpdateFrames(torch.autograd.Function):
    """The update, whose gradients are computed from its inputs."""

    @staticmethod
    def forward(
        ctx: Any, quaternion: Tensor, rotation: Tensor, translation: Tensor, update: Tensor
    ) -> tuple[Tensor, ...]:
        inputs = tuple(x.contiguous() for x in (quaternion, rotation, translation, update))
        ctx.save_for_backward(*inputs)
        outputs = tuple(torch.empty_like(x) for x in inputs[:3])
        residues = translation.numel() // 3
        _update[(cdiv(residues, _BLOCK),)](inputs, outputs, residues, block=_BLOCK, num_warps=1)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of quaternion, rotation, translation and update."""
        inputs = ctx.saved_tensors
        grad_quaternion, grad_rotation, grad_update = (torch.empty_like(inputs[index]) for index in (0, 1, 3))
        gradients = tuple(x.contiguous() for x in gradients)
        residues = inputs[2].numel() // 3
        _differentiate[(cdiv(residues, _BLOCK),)](
            tuple(inputs),
            gradients,
            (grad_quaternion, grad_rotation, grad_update),
            residues,
            block=_BLOCK,
            num_warps=1,
        )
        return grad_quaternion, grad_rotation, gradients[2], grad_update


def update_frames_triton(
    quaternion: Tensor, rotation: Tensor, translation: Tensor, update: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `update_frames` on a CUDA device."""
    updated: tuple[Tensor, Tensor, Tensor] = _UpdateFrames.apply(quaternion, rotation, translation, update)
    return updated
