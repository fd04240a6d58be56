"""Whatever bytes a file holds, its parser gives a value or one `InputError` that names the file.

    python -m pytest tests/data_pipeline/parse/test_anything.py --hypothesis-profile=thorough

tries 10,000 inputs with each parser; without the option it is a few hundred.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_pipeline.io.errors import MAX_LISTED, InputError
from tests.data_pipeline.parse.hostile_files import LONG, QUICK, SLOW
from tests.data_pipeline.parse.seeds import PARSERS, PATH

TOKENS = [
    *(
        b"\0",
        b"\n",
        b"\r\n",
        b"\r",
        b" ",
        b"\t",
        b">",
        b"#",
        b"//",
        b"\n//\n",
        b";",
        b"-",
        b".",
        b"~",
        b"*",
        b"a",
        b"W",
    ),
    *(b"999999999999999999999999", b"-1", b"0", b"nan", b"1e999", b"9" * 5000, b"?", b"'", b'"', b"_", b",", b"="),
    *(b"\xff", b"\xef\xbb\xbf", b"\xff\xfe", b"\x1f\x8b", "\u00e9\u2028\U0001f600".encode(), b"A" * 300, b"/1-9 "),
    *(b"\nNo 1\n", b"\nQ q 1 A 1 (1)\n", b"\nloop_\n", b"\ndata_x\n", b"\nATOM  ", b"\n#=GC RF ", b"\n#=GS "),
]


@st.composite
def spoilt(draw: st.DrawFn, seeds: tuple[bytes, ...]) -> bytes:
    """A valid file after some cuts, copies, insertions and changes of single bytes."""
    content = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(0, 5))):
        start = draw(st.integers(0, len(content)))
        stop = min(len(content), start + draw(st.sampled_from([0, 1, 2, 5, 20, 80, 1000])))
        change = draw(st.integers(0, 7))
        if change == 0:
            content = content[:start]
        elif change == 1:
            content = content[:start] + content[stop:]
        elif change == 2:
            content = content[:stop] + content[start:]
        elif change == 3:
            content = content[:start] + draw(st.sampled_from(TOKENS)) + content[start:]
        elif change == 4:
            content = content[:start] + draw(st.sampled_from(TOKENS)) + content[stop:]
        elif change == 5:
            content = content[:start] + draw(st.binary(max_size=4)) + content[stop:]
        elif change == 6:
            content = content.replace(b"\n", draw(st.sampled_from([b"\r\n", b"\r", b"\n\n", b""])))
        else:
            other = draw(st.sampled_from([seed for seeds, _ in PARSERS.values() for seed in seeds]))
            content = content[:start] + other[draw(st.integers(0, len(other))) :]
    return content


@pytest.mark.parametrize("parser", PARSERS)
@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_input_gives_a_value_or_an_input_error(parser: str, data: st.DataObject) -> None:
    seeds, parse = PARSERS[parser]
    content = data.draw(spoilt(seeds) | st.binary(max_size=200))
    try:
        parse(content)
    except InputError as error:
        lines = str(error).split("\n")  # one for each of the first errors
        assert all(line.startswith((PATH, "... and ")) and line.isprintable() and len(line) < 2000 for line in lines)
        assert len(lines) <= MAX_LISTED + 1


@pytest.mark.parametrize("parser", PARSERS)
def test_what_the_parser_is_made_for_is_read(parser: str) -> None:
    seeds, parse = PARSERS[parser]
    parse(seeds[0])


def read_within_limit(folder: Path, cases: list[str]) -> list[str]:
    command = [sys.executable, "-m", "tests.data_pipeline.parse.hostile_files", str(folder), *cases]
    root = Path(__file__).parents[3]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=900, check=False)
    assert result.returncode == 0, result.stderr[-1000:]
    return result.stdout.splitlines()


@pytest.mark.skipif(sys.platform != "linux", reason="limits on memory are Linux's")
def test_hostile_files_never_take_more_than_a_gigabyte(tmp_path: Path) -> None:
    assert len(read_within_limit(tmp_path, list(QUICK))) == 2 * len(QUICK)


@pytest.mark.integration
@pytest.mark.skipif(sys.platform != "linux", reason="limits on memory are Linux's")
@pytest.mark.parametrize("case", [pytest.param(case, marks=[pytest.mark.long] * (case in LONG)) for case in SLOW])
def test_large_hostile_files_never_take_more_than_a_gigabyte(case: str, tmp_path: Path) -> None:
    assert len(read_within_limit(tmp_path, [case])) == 2
