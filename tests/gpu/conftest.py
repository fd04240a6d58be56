"""Without a GPU, kernels run in Triton's interpreter, which computes in bfloat16 as a GPU does."""

from tests.ops.triton import conftest

bfloat16_as_on_a_gpu = conftest.bfloat16_as_on_a_gpu
