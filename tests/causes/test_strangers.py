"""Connections that NCCL discards: said where a start hangs, left alone where a job runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclkit import evidence
from ncclkit.analysis.strangers import strangers_in_words
from ncclkit.causes.engine import diagnose
from ncclkit.causes.summary import summarize
from ncclkit.core.case import Case
from ncclkit.evidence.logs import fill

START = "node-1:100:200 [0] NCCL INFO ncclCommInitRank comm 0x55d0 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId d000 commId 0x9a - Init START\n"
DONE = START.replace("START", "COMPLETE")
OTHER_JOB = "0x1b5f9c0012d4e8b7"
HTTP = "0x5448202f20544547"


def knock_2_32(number: int, magic: str = OTHER_JOB) -> str:
    return (
        "[2026-11-26 19:22:09] node-1:100:150 [0] misc/socket.cc:100 (socketFinalizeAccept) NCCL ATTN Socket magic mismatch "
        f"from 10.0.0.9<{4711 + number}> (peer {magic} != expected 0x9a), discarding peer connection\n"
    )


def knock_2_31(number: int, magic: str = OTHER_JOB) -> str:
    return (
        f"node-1:100:150 [0] NCCL INFO socketFinalizeAccept from 10.0.0.9<{4711 + number}>: socket magic mismatch "
        f"(peer {magic} != expected 0x9a), discarding peer connection\n"
    )


def case_of(tmp_path: Path, text: str) -> Case:
    (tmp_path / "job.log").write_text(text)
    case = Case()
    fill(case, evidence.read([tmp_path]))
    return case


@pytest.mark.parametrize("knock", [knock_2_31, knock_2_32])
def test_many_strangers_at_a_start_that_hangs_are_told(tmp_path, knock):
    case = case_of(tmp_path, START + "".join(map(knock, range(12))))
    told = strangers_in_words(case)
    assert "12 connections from 10.0.0.9" in told and "another job" in told and "`ss -tnp`" in told
    assert told in summarize(case, diagnose(case)).missing
    assert not [found for found in diagnose(case).findings if found.strength != "possible"]


def test_a_program_of_another_protocol_is_told_by_its_first_bytes(tmp_path):
    case = case_of(tmp_path, START + "".join(knock_2_32(number, HTTP) for number in range(6)))
    assert 'is not NCCL (it began with "GET / HT")' in strangers_in_words(case)


@pytest.mark.parametrize(
    "text",
    [
        START + knock_2_32(0) + knock_2_32(1),  # a scanner
        START + "".join(map(knock_2_32, range(12))) + DONE,  # the job got over it
        START,
    ],
)
def test_a_few_knocks_and_those_at_a_job_that_runs_are_left_alone(tmp_path, text):
    assert strangers_in_words(case_of(tmp_path, text)) == ""
