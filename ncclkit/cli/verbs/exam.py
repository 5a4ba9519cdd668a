"""`ncclkit exam`: an examination is made, or an answer sheet gets its points."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from ncclkit.cli.runner import NameTable, Verb, VerbAnswer
from ncclkit.core.ranges import NumberRange
from ncclkit.live.options import add_options


class ExamVerb(Verb):
    """Make an examination, or give points to an answer sheet."""

    name = "exam"
    group = "Learn"
    what = (
        "an examination: a job broken by a fault that seed and secret draw, an answer sheet, and"
        " the key with points"
    )
    example = "exam --seed 7 --to exam7"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare what draws the fault, where the examination goes, and what is graded."""
        parser.add_argument(
            "--seed",
            type=NumberRange(0, 10**9),
            default=1,
            help="with your secret the same seed draws the same fault (default 1)",
        )
        parser.add_argument(
            "--secret",
            metavar="FILE",
            type=Path,
            help=(
                "a file of yours that students cannot read (default: one of this user, made at the"
                " first examination)"
            ),
        )
        parser.add_argument(
            "--to",
            metavar="DIR",
            type=Path,
            default=Path("exam"),
            help="a new folder (default: ./exam)",
        )
        parser.add_argument(
            "--recorded", action="store_true", help="hand out a bundled recording; nothing runs"
        )
        parser.add_argument(
            "--grade",
            metavar="PATH",
            type=Path,
            help="give points to this answer.json by the key in --to",
        )
        add_options(parser, "python")

    def answer(self, options: argparse.Namespace) -> VerbAnswer:
        """Grade where an answer sheet is named, else make a new examination."""
        from ncclkit.lab import exam

        if options.grade:
            return _grades_answer(options)
        file = options.secret or exam.default_secret_file()
        making = exam.make(
            options.seed,
            options.to,
            exam.teacher_secret(file),
            from_recording=options.recorded,
            python=options.python,
        )
        asyncio.run(making)
        hand_out = options.to / exam.STUDENT
        keep = options.to / exam.KEY
        return VerbAnswer(0, [f"Hand out: {hand_out}\nKeep:     {keep}, {file}"])


def _grades_answer(options: argparse.Namespace) -> VerbAnswer:
    from ncclkit.lab import exam

    points = exam.grade(options.grade, options.to / exam.KEY)
    rows = [(name, f"{given} of {exam.POINTS[name]}") for name, given in points.items()]
    # a machine cannot judge an experiment; its points are a person's to give
    rest = sum(exam.POINTS.values()) - sum(exam.POINTS[name] for name in points)
    rows.append(("experiment and fix", f"up to {rest}, by a person and the key"))
    return VerbAnswer(0, [NameTable("", rows)])
