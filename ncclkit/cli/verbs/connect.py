"""`ncclkit connect`: the network paths between hosts, each tested."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING, Any

from ncclkit.cli.arguments import PORT, add_case, add_json
from ncclkit.cli.judging import facts_read_now, judge_now, open_case
from ncclkit.cli.runner import Verb, VerbAnswer, Verdict
from ncclkit.cli.terminal import Activity
from ncclkit.live.options import add_options

if TYPE_CHECKING:
    from ncclkit.causes.diagnosis import Diagnosis
    from ncclkit.live.connect import Connectivity


class ConnectVerb(Verb):
    """Test the network paths between hosts."""

    name = "connect"
    group = "This cluster"
    what = "names, ports, packet sizes, speed and clocks between hosts"
    example = "connect node-1 node-2"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the hosts, and how they are reached."""
        parser.add_argument(
            "hosts", nargs="*", metavar="HOST", help="default: the nodes of the Slurm allocation"
        )
        parser.add_argument(
            "--remote-command",
            default="",
            metavar="COMMAND",
            help=(
                "ssh, srun, or the words before a command, with {host} in them (default: srun in an"
                " allocation, else ssh)"
            ),
        )
        parser.add_argument(
            "--port", type=PORT, help="the rendezvous port (default: MASTER_PORT, else 29500)"
        )
        add_options(parser, "python")
        add_case(parser)
        add_json(parser)

    def answer(self, options: argparse.Namespace) -> VerbAnswer:
        """Test every host and every path; then what is wrong with them."""
        from ncclkit.core.case import Case
        from ncclkit.live.connect import DEADLINE, connectivity

        case = open_case(options.case)
        before = list(case.facts)
        with Activity("Connections", limit=DEADLINE) as activity:

            def narrate(record: dict[str, Any]) -> None:
                if record["kind"] == "connect.step":
                    activity.step(str(record.get("say")))

            testing = connectivity(
                case,
                options.hosts,
                narrate,
                remote_command=options.remote_command,
                port=options.port,
                python=options.python or None,
            )
            found = asyncio.run(testing)
        rows = [host.event for host in found.hosts.values()]
        rows += [link.event for link in found.links]
        this_run = Case()
        this_run.events = rows
        this_run.facts = facts_read_now(case, before)
        diagnosis = judge_now(case, this_run)
        return VerbAnswer(
            _exit_status(found, diagnosis),
            parts=[f"{found.text()}\n\n{found.summary}.\n", Verdict(diagnosis)],
            data=lambda: rows,
        )


def _exit_status(found: Connectivity, diagnosis: Diagnosis) -> int:
    """1 where a cause was found; 2 where none was, but a host could not be reached."""
    if diagnosis.findings:
        return 1
    if any(host.problem for host in found.hosts.values()):
        return 2
    return 0
