"""Every option of every verb that takes a number: what is none, and what is out of bounds, is one sentence."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest

from ncclkit.cli.parser import command_parser
from ncclkit.cli.verbs.completion import verb_parsers
from ncclkit.core.model import NcclkitError
from ncclkit.core.ranges import NumberRange
from ncclkit.live.attach import AttachOptions
from tests.cli.command import Typed

NONE = ("nan", "inf", "-inf", "-1e400", "1e999", "", " ", "²", "٣", "1_0", "0x10", "one", "9" * 5000, "1" * 30)
"""What is no number, or none of a size that anything here has."""


def numeric() -> Iterator[tuple[argparse.ArgumentParser, argparse.Action]]:
    for verb in verb_parsers(command_parser()):
        for action in verb._actions:
            if isinstance(action.type, NumberRange):
                yield verb, action


def words(verb: argparse.ArgumentParser, action: argparse.Action, value: object) -> list[str]:
    name = verb.prog.split()[-1]
    return [name, f"{action.option_strings[-1]}={value}"] if action.option_strings else [name, "--", str(value)]


CASES = [pytest.param(verb, action, id=f"{verb.prog} {action.dest}") for verb, action in numeric()]


def test_no_option_takes_just_any_number() -> None:
    bare = [
        (verb.prog, action.dest)
        for verb in verb_parsers(command_parser())
        for action in verb._actions
        if action.type in (int, float)
    ]
    assert bare == [] and len(CASES) > 30


@pytest.mark.parametrize(("verb", "action"), CASES)
def test_each_is_refused_before_anything_begins(
    typed: Typed, verb: argparse.ArgumentParser, action: argparse.Action
) -> None:
    takes = action.type
    assert isinstance(takes, NumberRange)
    for value in (*NONE, str(takes.low - 1), str(takes.high + 1)):
        done = typed(*words(verb, action, value))
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), (value, done)
        assert done.stderr.startswith("ncclkit: ") and len(done.stderr) < 400, done
        assert f" must be {takes}, but it is" in done.stderr, (value, done)


@pytest.mark.parametrize(("verb", "action"), CASES)
def test_bounds_are_taken(verb: argparse.ArgumentParser, action: argparse.Action) -> None:
    takes = action.type
    assert isinstance(takes, NumberRange)
    for value in (takes.low, takes.high):
        assert takes(str(value)) == value
    assert action.default in (None, "") or takes(str(action.default)) == action.default


def test_a_follow_that_cannot_be_is_named_as_such() -> None:
    """By a notebook, which has no argparse; the sentence was about --seconds."""
    with pytest.raises(NcclkitError, match="stalls for nan s"):
        AttachOptions(follow=float("nan"))
