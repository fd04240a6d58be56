"""Triton's interpreter made to compute in bfloat16 as a GPU does."""

from typing import Any

import pytest
import torch


@pytest.fixture(autouse=True)
def bfloat16_as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter keeps these numbers as integers: it multiplies matrices of their bits, and cuts off the digits
    that a GPU rounds.
    """
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    language = pytest.importorskip("triton.language")
    convert, dot = interpreter._convert_float, interpreter.InterpreterBuilder.create_dot

    def rounded(given: Any, from_type: Any, to_type: Any, rounding: Any) -> Any:
        if (from_type, to_type) != (language.float32, language.bfloat16):
            return convert(given, from_type, to_type, rounding)
        return torch.tensor(given).bfloat16().view(torch.int16).numpy().view("uint16")

    def widened(given: Any) -> Any:
        if given.dtype.scalar != language.bfloat16:
            return given
        wide = convert(given.data, language.bfloat16, language.float32, None).view("float32")
        return interpreter.TensorHandle(wide, language.float32)

    def dot_of_wide(self: Any, left: Any, right: Any, *rest: Any) -> Any:
        return dot(self, widened(left), widened(right), *rest)

    monkeypatch.setattr(interpreter, "_convert_float", rounded)
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot_of_wide)
