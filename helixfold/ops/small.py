"""Sizes up to which plain PyTorch trains faster on a CPU than operators that recompute what they do not keep.

Small tensors stay in the processor's cache, and calls cost more than memory. Measured on one core with 64 channels, 64
and 128 residues, forward and backward: plain PyTorch takes half to four fifths of the time of most operators, and keeps
up to three times as much.
"""

from torch import Tensor, is_grad_enabled

# Elements of the stream, and of the largest tensor that plain PyTorch keeps for the gradients.
STREAM = 2**20
KEPT = 2**23


def plain_is_faster(stream: Tensor, *_: object, kept: int = 0, **__: object) -> str | None:
    """Return why plain PyTorch is faster if a small stream takes gradients, or None if it is not.

    `kept` is the number of elements of the largest tensor that plain PyTorch keeps, if that is not a stream.
    """
    if stream.numel() <= STREAM and kept <= KEPT and stream.requires_grad and is_grad_enabled():
        return f"plain PyTorch is faster with gradients of up to {STREAM} elements on a CPU"
    return None
