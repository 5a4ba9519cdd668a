"""The form's values: filled in, checked in one sentence."""

import pytest

from ncclkit.core.model import NcclkitError
from ncclkit.views import _form


def test_defaults_are_valid_and_complete():
    assert _form.check({}) == _form.DEFAULTS
    assert set(_form.LABELS) == set(_form.DEFAULTS)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ranks": "2"}, "Ranks (0: auto) must be a whole number, but it is '2' (str)"),
        ({"ranks": True}, "must be a whole number"),
        ({"ranks": -1}, "must lie between 0 and 4,096, but it is -1"),
        ({"largest": 2**40}, "Largest size must lie between"),
        ({"deadline": 0}, "Deadline (s) must lie between"),
        ({"deadline": None}, "Deadline (s) must be a number"),
        ({"deadline": float("nan")}, "Deadline (s) must lie between"),
        ({"backend": "mpi"}, "must be one of auto, nccl, gloo, but it is 'mpi'"),
        ({"python": 3}, "must be a path in quotes"),
        ({"env": 7}, "must be text of NAME=VALUE"),
        ({"env": "NCCL_DEBUG"}, "'NCCL_DEBUG' is not NAME=VALUE"),
        ({"env": "1A=2"}, "'1A=2' is not NAME=VALUE"),
        ({"env": "A='x"}, "cannot be read"),
        ({"rank": 2}, "has no value 'rank'; it takes python, ranks"),
    ],
)
def test_bad_values_are_named_in_one_sentence(given, words):
    with pytest.raises(NcclkitError) as error:
        _form.check(given)
    assert words in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "env"),
    [
        ("", {}),
        ("A=1 B=2\n# comment\nC=a=b", {"A": "1", "B": "2", "C": "a=b"}),
        ("A='x y' B=", {"A": "x y", "B": ""}),
        ({"A": "x y"}, {"A": "x y"}),
    ],
)
def test_variables_are_read_as_a_shell_reads_them_and_come_back(text, env):
    assert _form.variables(text) == env == _form.variables(_form.lines(env))


def test_a_size_of_its_own_is_among_the_choices():
    assert ("12 KiB", 12288) in _form.choices(12288) and ("auto", 0) in _form.choices(0)
