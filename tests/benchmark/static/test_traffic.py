"""What a launch reads, writes and computes is what its text says, counted by hand here."""

import pytest
import torch

pytest.importorskip("triton", reason="launches are of compiled kernels")

from helixfold.benchmark.static import table
from helixfold.benchmark.static.gpus import GPUS
from helixfold.benchmark.static.machine_code import MachineCode
from helixfold.benchmark.static.passes import Pass
from helixfold.benchmark.static.traffic import INSTRUCTIONS, launch_work, moved_bytes
from helixfold.benchmark.static.ttir import NotFollowedError
from helixfold.ops.triton.compiled import CompiledKernel, Launch

# Each program adds up 16 rows of 32 numbers in steps of 4 rows, times a weight [32, 32], and writes their mean of
# squares; programs from `rows` on do nothing.
TEXT = """
#loc = loc("kernel.py":1:1)
module {
  tt.func public @_example(%x_at: !tt.ptr<bf16> {tt.divisibility = 16 : i32} loc("x_at"(#loc)), %weight_at: !tt.ptr<bf16> loc("weight_at"(#loc)), %out.0: !tt.ptr<f32> loc("out.0"(#loc)), %out.1: i32 loc("out.1"(#loc)), %rows: i32 loc("rows"(#loc))) attributes {noinline = false} {
    %cst = arith.constant dense<0.000000e+00> : tensor<16x32xf32> loc(#loc)
    %c16_i32 = arith.constant 16 : i32 loc(#loc)
    %c4_i32 = arith.constant 4 : i32 loc(#loc)
    %c0_i32 = arith.constant 0 : i32 loc(#loc)
    %first = tt.get_program_id x : i32 loc(#loc)
    %0 = arith.cmpi sge, %first, %rows : i32 loc(#loc)
    cf.cond_br %0, ^bb1, ^bb2 loc(#loc)
  ^bb1:  // pred: ^bb0
    tt.return loc(#loc)
  ^bb2:  // pred: ^bb0
    %row = tt.make_range {end = 16 : i32, start = 0 : i32} : tensor<16xi32> loc(#loc)
    %column = tt.make_range {end = 32 : i32, start = 0 : i32} : tensor<32xi32> loc(#loc)
    %column_1 = tt.expand_dims %column {axis = 0 : i32} : tensor<32xi32> -> tensor<1x32xi32> loc(#loc)
    %column_2 = tt.broadcast %column_1 : tensor<1x32xi32> -> tensor<16x32xi32> loc(#loc)
    %limit = tt.splat %c4_i32 : i32 -> tensor<16xi32> loc(#loc)
    %exists = arith.cmpi slt, %row, %limit : tensor<16xi32> loc(#loc)
    %exists_1 = tt.expand_dims %exists {axis = 1 : i32} : tensor<16xi1> -> tensor<16x1xi1> loc(#loc)
    %exists_2 = tt.broadcast %exists_1 : tensor<16x1xi1> -> tensor<16x32xi1> loc(#loc)
    %w = tt.splat %weight_at : !tt.ptr<bf16> -> tensor<32x!tt.ptr<bf16>> loc(#loc)
    %w_1 = tt.addptr %w, %column : tensor<32x!tt.ptr<bf16>>, tensor<32xi32> loc(#loc)
    %total:2 = scf.for %step = %c0_i32 to %c16_i32 step %c4_i32 iter_args(%sum = %cst, %at = %x_at) -> (tensor<16x32xf32>, !tt.ptr<bf16>)  : i32 {
      %at_1 = tt.splat %at : !tt.ptr<bf16> -> tensor<16x32x!tt.ptr<bf16>> loc(#loc)
      %at_2 = tt.addptr %at_1, %column_2 : tensor<16x32x!tt.ptr<bf16>>, tensor<16x32xi32> loc(#loc)
      %x = tt.load %at_2, %exists_2 : tensor<16x32x!tt.ptr<bf16>> loc(#loc)
      %weight = tt.load %w_1 : tensor<32x!tt.ptr<bf16>> loc(#loc)
      %sum_1 = tt.dot %x, %weight, %sum : tensor<16x32xbf16> * tensor<32x32xbf16> -> tensor<16x32xf32> loc(#loc)
      %at_3 = tt.addptr %at, %c16_i32 : !tt.ptr<bf16>, i32 loc(#loc)
      scf.yield %sum_1, %at_3 : tensor<16x32xf32>, !tt.ptr<bf16> loc(#loc)
    } loc(#loc)
    %square = math.exp2 %total#0 : tensor<16x32xf32> loc(#loc)
    %mean = "tt.reduce"(%square) <{axis = 1 : i32}> ({
    ^bb0(%a: f32 loc(#loc), %b: f32 loc(#loc)):
      %c = arith.addf %a, %b : f32 loc(#loc)
      tt.reduce.return %c : f32 loc(#loc)
    }) : (tensor<16x32xf32>) -> tensor<16xf32> loc(#loc)
    %out = arith.muli %first, %out.1 : i32 loc(#loc)
    %out_1 = tt.addptr %out.0, %out : !tt.ptr<f32>, i32 loc(#loc)
    %out_2 = tt.splat %out_1 : !tt.ptr<f32> -> tensor<16x!tt.ptr<f32>> loc(#loc)
    %out_3 = tt.addptr %out_2, %row : tensor<16x!tt.ptr<f32>>, tensor<16xi32> loc(#loc)
    tt.store %out_3, %mean : tensor<16x!tt.ptr<f32>> loc(#loc)
    tt.return loc(#loc)
  } loc(#loc)
} loc(#loc)
"""  # noqa: E501 (as Triton prints it)


def launch(programs: int, rows: int) -> Launch:
    kernel = CompiledKernel(name="example", ttir=TEXT, cubin=b"", warps=4, shared_memory=0)
    x = torch.empty(1000, dtype=torch.bfloat16, device="meta")
    # Every row of the result is written by another program, and read by none.
    out = torch.empty(programs, 16, device="meta")
    # Parts of tuples that are one, and absent ones, are constants of the compiled kernel.
    arguments = {"x_at": x, "weight_at": x[:32], "out": (out, 16, 1, None), "rows": rows, "block": 16}
    return Launch(kernel, (programs,), arguments)


def of_text(text: str) -> Launch:
    """One program of a kernel with another text."""
    kernel = CompiledKernel(name="example", ttir=text, cubin=b"", warps=4, shared_memory=0)
    return Launch(kernel, (1,), launch(1, 1).arguments)


def test_bytes_and_products_are_those_of_all_programs() -> None:
    work = launch_work(launch(4, rows=4))
    # Four rows of the tile of x exist, and the loop takes four steps. Rows have the same addresses.
    assert work.loaded == {"x_at": 4 * 4 * (4 * 32 * 2), "weight_at": 4 * 4 * 32 * 2}
    assert work.stored == {"out.0": 4 * 16 * 4}
    assert work.sectors == 4 * (4 * 64 + 4 * 64 + 64)
    assert work.flop == 4 * 4 * 2 * 16 * 32 * 32
    accesses = 4 * (16 * 32 + 32) + 16
    elements = 16 * 32 * (INSTRUCTIONS["math.exp2"] + INSTRUCTIONS["tt.reduce"])
    assert work.instructions == 4 * (accesses * INSTRUCTIONS["tt.load"] + elements)


def test_programs_that_return_at_once_move_nothing() -> None:
    assert launch_work(launch(4, rows=0)).loaded.total() == 0
    half = launch_work(launch(8, rows=4))
    assert half.stored["out.0"] == 4 * 16 * 4


def test_memory_counts_once_however_often_it_is_asked_for() -> None:
    given = launch(400, rows=400)
    # All of `x` is asked for often; of `out` everything once. The weight is a part of `x` that is given separately.
    assert moved_bytes(given, launch_work(given)) == 2000 + 64 + 400 * 16 * 4


def test_memory_that_is_given_twice_or_expanded_counts_once() -> None:
    given = launch(400, rows=400)
    x = given.arguments["x_at"][:32]
    twice = Launch(given.kernel, given.grid, {**given.arguments, "x_at": x, "weight_at": x})
    assert moved_bytes(twice, launch_work(twice)) == 64 + 400 * 16 * 4
    expanded = Launch(given.kernel, given.grid, {**given.arguments, "x_at": x[:1].expand(1000)})
    assert moved_bytes(expanded, launch_work(expanded)) == 2 + 64 + 400 * 16 * 4
    # A launch that asks for little of a large tensor moves no more than that: of a tile of x and a weight of each
    # program, four times.
    one = launch(1, rows=1)
    twice = Launch(one.kernel, one.grid, {**one.arguments, "x_at": (big := x.new_empty(10**6)), "weight_at": big})
    assert moved_bytes(twice, launch_work(twice)) == 4 * (4 * 32 * 2 + 32 * 2) + 16 * 4


def test_an_operation_may_have_two_results() -> None:
    before = "    %out = arith.muli"
    split = "    %low, %high = tt.split %mean : tensor<16x2xf32> -> tensor<16xf32> loc(#loc)\n"
    text = TEXT.replace(before, split + before).replace("tt.store %out_3, %mean", "tt.store %out_3, %high")
    assert launch_work(of_text(text)).stored == {"out.0": 16 * 4}


def test_regions_beside_each_other_may_use_the_same_names() -> None:
    loop = """    scf.for %step_1 = %c0_i32 to %c16_i32 step %c4_i32  : i32 {
      %again = arith.constant 0 : i32 loc(#loc)
    } loc(#loc)
"""
    numbers = """    %again = math.exp2 %mean : tensor<16xf32> loc(#loc)
    %wide = tt.expand_dims %again {axis = 0 : i32} : tensor<16xf32> -> tensor<1x16xf32> loc(#loc)
"""
    before = "    %out = arith.muli"
    found = launch_work(of_text(TEXT.replace(before, loop + numbers + before)))
    assert found.stored == {"out.0": 16 * 4}


def test_a_loop_that_depends_on_numbers_in_memory_is_refused() -> None:
    given = of_text(TEXT.replace("%c0_i32 to %c16_i32", "%c0_i32 to %unknown"))
    with pytest.raises(NotFollowedError, match="number of steps does not follow from the arguments"):
        launch_work(given)


def test_a_kernel_that_cannot_be_followed_counts_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    code = MachineCode(registers=32, spilled=0, spills=0, instructions=100, matrix={})
    monkeypatch.setattr(table, "_code", lambda _: code)
    text = TEXT.replace("%c0_i32 to %c16_i32", "%c0_i32 to %unknown")
    unknown = CompiledKernel(name="unknown", ttir=text, cubin=b"", warps=4, shared_memory=0)
    given = launch(8, rows=8)
    for kernel, moved, asks in ((given.kernel, 2000 + 64 + 8 * 64, True), (unknown, 2000 + 8 * 64, False)):
        launches = [Launch(kernel, given.grid, given.arguments)]
        found = Pass(name="some", backward=False, launches=launches, operators=[], floor=1, kept=0)
        (row,) = table.pass_row(found, GPUS["sm_90"]).kernels
        assert (row.cost.moved, row.cost.asked > 0) == (moved, asks)
        assert ("not followed, so each argument counts once: a loop's number" in row.line()) is not asks
