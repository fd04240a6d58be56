"""Loops that Numba compiles for this processor, each for what PyTorch computes in several passes over memory.

Numba comes with the extra `fast`; without it, and where a loop does not serve, `helixfold.ops.cpu` computes the same
with PyTorch's operators. A loop gets addresses of tensors, since Numba knows no bfloat16, and the sizes of their
elements in bytes, for which it is compiled: 2 of bfloat16 and 4 of float32. It computes in float32.
"""
