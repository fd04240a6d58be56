"""The table of deliberate mistakes fits the code; `python scripts/mutations.py` makes them, one after another."""

import pytest

from scripts.mutations import ROOT, Mutation, main, read_mutations

MUTATIONS = read_mutations()


def test_every_mistake_can_be_made_and_changes_something() -> None:
    for mutation in MUTATIONS:
        source = (ROOT / mutation.file).read_text()
        assert mutation.applied(source) != source, mutation.change


def test_every_mistake_has_tests_that_exist() -> None:
    for mutation in MUTATIONS:
        assert mutation.tests, mutation.change
        for test in mutation.tests:
            path, _, name = test.partition("::")
            assert f"def {name}" in (ROOT / path).read_text(), test


def test_mistakes_are_told_apart_and_reach_all_packages() -> None:
    assert len({(mutation.file, mutation.change) for mutation in MUTATIONS}) == len(MUTATIONS)
    kernels = [mutation for mutation in MUTATIONS if mutation.file.startswith("helixfold/ops/triton/")]
    assert len(kernels) >= 20
    assert len(MUTATIONS) - len(kernels) >= 100
    packages = {"/".join(mutation.file.split("/")[:2]) for mutation in MUTATIONS if mutation.file.count("/") > 1}
    assert packages >= {
        *(f"data_pipeline/{name}" for name in ("datasets", "features", "parse", "search", "templates", "transforms")),
        *(f"helixfold/{name}" for name in ("analysis", "execution", "geometry", "losses", "model", "ops", "optim")),
        *(f"helixfold/{name}" for name in ("parallel", "planning", "predict", "training", "write")),
    }


def test_a_mistake_whose_text_is_gone_is_named() -> None:
    mutation = Mutation(change="no change", file="a.py", old="x = 1", new="x = 2", tests=("tests/a.py",))
    assert mutation.applied("x = 1\ny = 1\n") == "x = 2\ny = 1\n"
    for source, count in (("y = 1\n", 0), ("x = 1\nx = 1\n", 2)):
        with pytest.raises(ValueError, match=f"a.py: 'x = 1' of 'no change' occurs {count} times"):
            mutation.applied(source)


def test_words_that_choose_no_mistake_are_refused() -> None:
    with pytest.raises(SystemExit, match="no mistake has one of the words"):
        main(["of no such file"])
