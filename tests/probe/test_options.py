"""The options of a live test: filled in, checked in one sentence, the same for the command and for the form."""

import argparse
from dataclasses import fields

import pytest

from ncclkit.cli.parser import command_parser
from ncclkit.core.model import NcclkitError
from ncclkit.core.text import parse_size
from ncclkit.live.options import DEFAULTS, OPTIONS, ProbeOptions, parse_variables
from ncclkit.views import live


def test_every_option_of_the_user_is_shown():
    assert {each.name for each in fields(ProbeOptions)} - {"network", "oversubscribe", "here"} == set(OPTIONS)
    assert all(option.label and option.help for option in OPTIONS.values())


def test_the_command_has_each_option_once_with_its_default():
    (verbs,) = [a for a in command_parser()._actions if isinstance(a, argparse._SubParsersAction)]
    parsed = vars(verbs.choices["probe"].parse_args([]))
    assert ProbeOptions(**{name: parsed[name] for name in OPTIONS}) == DEFAULTS
    parsed = vars(verbs.choices["probe"].parse_args(["--max-bytes", "64MB", "--env", "A=x y", "--env", "B="]))
    given = ProbeOptions(**{name: parsed[name] for name in OPTIONS})
    assert given.max_bytes == 64_000_000 and given.env == {"A": "x y", "B": ""}


def test_the_form_holds_what_it_was_given():
    async def start(options, on_record):
        raise AssertionError

    given = ProbeOptions(ranks=3, max_bytes="12KiB", op="broadcast,reduce", stages=True, env="A='x y'", timeout=9.5)
    form = live.LiveTest(given, start, lambda m, options: (None, ""))
    assert form.options == given
    assert ("12 KiB", 12288) in form.controls["max_bytes"].options


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ranks": "2"}, "Ranks (0: auto) must be a whole number, but it is '2' (str)"),
        ({"ranks": True}, "must be a whole number"),
        ({"ranks": -1}, "must lie between 0 and 100,000, but it is -1"),
        ({"max_bytes": 2**40}, "Largest message must lie between"),
        ({"max_bytes": "64 cats"}, "Largest message must be a number of bytes such as 4096, 64MB or 1GiB"),
        ({"max_bytes": True}, "must be a number of bytes"),
        ({"timeout": 0}, "Timeout (s) must lie between"),
        ({"timeout": None}, "Timeout (s) must be a number"),
        ({"timeout": float("nan")}, "Timeout (s) must lie between"),
        ({"simulate_hosts": 0}, "Simulated nodes must lie between 1 and 64"),
        ({"simulate_hosts": 2, "network": {"hosts": 2}}, "leave --simulate-hosts out"),
        ({"stages": "yes"}, "must be True or False"),
        ({"backend": "mpi"}, "must be auto, nccl or gloo, but it is 'mpi'"),
        ({"python": 3}, "must be a path in quotes"),
        ({"env": 7}, "must be text of NAME=VALUE"),
        ({"env": "NCCL_DEBUG"}, "'NCCL_DEBUG' is not NAME=VALUE"),
        ({"env": "1A=2"}, "'1A=2' is not NAME=VALUE"),
        ({"env": "A='x"}, "close its quotes"),
    ],
)
def test_bad_values_are_named_in_one_sentence(given, words):
    with pytest.raises(NcclkitError) as error:
        ProbeOptions(**given)
    assert words in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "env"),
    [
        ("", {}),
        ("A=1 B=2\n# comment\nC=a=b", {"A": "1", "B": "2", "C": "a=b"}),
        ("A='x y' B=", {"A": "x y", "B": ""}),
        ({"A": "x y"}, {"A": "x y"}),
        (["A=x y", "B="], {"A": "x y", "B": ""}),
    ],
)
def test_variables_are_read_as_a_shell_reads_them_and_come_back(text, env):
    assert parse_variables(text) == env == parse_variables(live.lines(env))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (4096, 4096),
        ("4096", 4096),
        ("64B", 64),
        ("64MB", 64_000_000),
        ("1GiB", 1 << 30),
        ("1G", 1 << 30),
        ("1.5 kib", 1536),
    ],
)
def test_sizes_are_read_as_they_are_written(text, count):
    assert parse_size(text) == count
