"""What an input error looks like on a terminal."""

import pickle
from typing import Never

import pytest

from data_pipeline.io.errors import (
    MAX_LISTED,
    BatchInputError,
    InputError,
    InputProblems,
    TooLargeError,
    choice_problem,
    did_you_mean,
    input_problems,
    printable,
)


def test_error_names_file_line_column_and_record() -> None:
    error = InputError.at("a.fasta", "'1' is no residue", line=3, column=7, record="T1")
    assert str(error) == "a.fasta, line 3, column 7, record 'T1': '1' is no residue"


def test_error_is_one_printable_line_whatever_the_file_holds() -> None:
    error = InputError.at("a\n\x1b[31m.fasta", "wrong", record="\x07\u202ename" + "x" * 1000)
    assert str(error).isprintable()
    assert len(str(error)) < 300


def test_printable_keeps_ordinary_text() -> None:
    assert printable("sp|P12345|Ünïcode name") == "sp|P12345|Ünïcode name"


def test_printable_reads_no_more_than_it_shows() -> None:
    class Endless(str):
        def __iter__(self) -> Never:
            raise AssertionError

    assert printable(Endless("a" * 1_000), 3) == "aaa..."
    assert printable("\x07\x07", 3) == "\\x0..."
    assert printable("abc", 3) == "abc"


def test_the_only_error_of_a_batch_is_raised_as_it_is() -> None:
    with pytest.raises(TooLargeError, match=r"^a\.a3m: too large$") as caught, input_problems() as problems:
        with problems.collected():
            raise TooLargeError("a.a3m: too large")
        with problems.collected():
            pass
    assert not isinstance(caught.value, BatchInputError)


def test_several_errors_of_a_batch_are_listed_and_the_rest_counted() -> None:
    with pytest.raises(BatchInputError) as caught, input_problems() as problems:
        for number in range(MAX_LISTED + 5):
            with problems.collected():
                raise InputError.at("a.fasta", "wrong", line=number)
        raise InputError("the file ends too early")
    lines = str(caught.value).split("\n")
    assert lines[:2] == ["a.fasta, line 0: wrong", "a.fasta, line 1: wrong"]
    assert len(lines) == MAX_LISTED + 1
    assert lines[-1] == "... and 6 more"
    assert len(caught.value.errors) == MAX_LISTED + 6
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_advice_ends_the_last_line_of_one_error_or_several() -> None:
    for texts in (["a: wrong"], ["a: wrong", "b: wrong"]):
        with pytest.raises(BatchInputError) as caught, input_problems() as problems:
            for text in texts:
                problems.add(InputError(text))
            problems.advice = "; leave it out"
        assert caught.value.lines == [*texts[:-1], f"{texts[-1]}; leave it out"]
        assert pickle.loads(pickle.dumps(caught.value)).lines == caught.value.lines


def test_listed_errors_are_printable_lines_and_no_line_is_repeated() -> None:
    error = BatchInputError([InputError("a\nb"), InputError("\x1b" * 5000), InputError("a\nb")])
    lines = str(error).split("\n")
    assert len(lines) == 2
    assert all(line.isprintable() and len(line) < 1100 for line in lines)


def test_errors_of_single_targets_stay_with_the_caller_who_gives_problems() -> None:
    problems = InputProblems()
    with input_problems(problems) as collection:
        with collection.collected("b.a3m"):
            raise InputError.at("b.a3m", "damaged")
        collection.add(BatchInputError([InputError.at("a.fasta", "wrong", line=1, record="x"), InputError("y: wrong")]))
    assert [*problems.named] == [
        ("b.a3m", "b.a3m: damaged"),
        ("x", "a.fasta, line 1, record 'x': wrong"),
        ("", "y: wrong"),
    ]
    with pytest.raises(InputError, match="concerns all"), input_problems(problems):
        raise InputError("concerns all")
    assert len(problems) == 3


def test_collected_errors_keep_no_file_in_memory() -> None:
    problems = InputProblems()
    with problems.collected():
        try:
            raise KeyError
        except KeyError as cause:
            raise InputError("wrong") from cause
    with pytest.raises(InputError) as caught:
        problems.raise_all()
    assert caught.value.__cause__ is caught.value.__context__ is None


@pytest.mark.parametrize(
    ("word", "choices", "nearest"),
    [
        ("model_1_pmt", ("model_1", "model_1_ptm", "model_2_ptm"), "model_1_ptm"),
        ("predit", ("predict", "report"), "predict"),
        ("COLABFLD", ("directory", "colabfold", "packed"), "colabfold"),
        ("a", ("A", "B"), "A"),
        ("--min-plddt", ("--min-length", "--least-plddt"), "--least-plddt"),
        ("--least-plddt", ("--min-length", "--min-plddt"), "--min-plddt"),
        ("--recycle", ("--recycle-tolerance", "--num-recycles"), "--num-recycles"),
        ("fold", ("features", "relax"), None),
        ("", ("a",), None),
        ("x" * 10**6, ("x",), None),
    ],
)
def test_the_nearest_choice_is_offered_if_one_is_near(word: str, choices: tuple[str, ...], nearest: str | None) -> None:
    assert did_you_mean(word, choices) == ("" if nearest is None else f"; did you mean {nearest}?")


def test_a_wrong_choice_is_one_sentence() -> None:
    assert choice_problem("al", ("all", "env")) == "must be one of all, env, got 'al'; did you mean all?"
    assert choice_problem(3, ("all", "env")) == "must be one of all, env, got 3"
    assert choice_problem("\n" * 999, ("all",)).isprintable()
