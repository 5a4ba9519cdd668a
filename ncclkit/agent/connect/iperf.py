"""Bandwidth by iperf3, where both hosts have it: it keeps up with networks that are too fast for Python."""

import json
import select
import shutil
import socket
import subprocess
import time

from ..run import processes

MSS = 1448
"""Bytes of data in a packet of Ethernet, where iperf3 does not say."""
START, MARGIN = 3.0, 8.0
"""Seconds for the server to listen, and beyond the stream's own time for all the rest."""


def serve(seconds, say):
    """One test of this many seconds; `say` gets the port as soon as it listens, 0 where there is no iperf3."""
    program = shutil.which("iperf3")
    if not program:
        return say(0)
    port = _free()
    server = subprocess.Popen(
        [program, "-s", "-1", "-p", str(port), "--forceflush"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=processes.die_with_parent,
    )
    with server:
        try:
            say(port if _listens(server) else 0)
            server.wait(seconds + MARGIN)
        except subprocess.TimeoutExpired:
            return None  # nobody came
        finally:
            server.kill()


def _free():
    with socket.create_server(("", 0)) as listener:
        return listener.getsockname()[1]


def _listens(server):
    said, until = b"", time.monotonic() + START
    while b"listening" not in said:
        if not select.select([server.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
            return False
        piece = server.stdout.read1(4096)
        if not piece:
            return False
        said += piece
    return True


def ask(address, port, seconds):
    """GB/s as the server received them, and the share of packets sent again; OSError or ValueError if it fails."""
    words = ["iperf3", "-c", address, "-p", str(port), "-t", str(whole(seconds)), "-J"]
    done = subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=whole(seconds) + MARGIN,
        preexec_fn=processes.die_with_parent,
    )
    said = json.loads(done.stdout)
    if "error" in said:
        raise OSError(said["error"])
    sent = said["end"]["sum_sent"]
    packets = sent["bytes"] / said["start"].get("tcp_mss_default", MSS)
    told = {"bandwidth": said["end"]["sum_received"]["bits_per_second"] / 8e9}
    return {**told, "resent": sent["retransmits"] / packets if packets and "retransmits" in sent else None}


def whole(seconds):
    """iperf3 takes whole seconds only."""
    return max(1, round(seconds))
