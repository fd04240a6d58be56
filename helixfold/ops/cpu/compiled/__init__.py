"""Loops compiled by Numba for this processor, each of which replaces several traversals of memory by PyTorch operators.

Numba is installed with the extra `fast`. Without it, or where a loop does not support its arguments,
`helixfold.ops.cpu` uses PyTorch operators. A loop takes addresses of tensors, because Numba has no bfloat16, and is
compiled for element sizes in bytes: 2 for bfloat16 and 4 for float32. It computes in float32.
"""
