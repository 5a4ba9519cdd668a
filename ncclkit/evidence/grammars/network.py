"""The grammar of what people look up about the path between two hosts.

It is ``ping`` and ``ss -ti``, pasted into a log.
"""

from __future__ import annotations

import re

from ncclkit.evidence.grammars.grammar import Data, Line, Rule, parse_float, parse_int, rule

SUMMARY = re.compile(
    r"(\d{1,9}) packets transmitted, (\d{1,9}) (?:packets )?received(, \+\d+ errors)?"
)
OWN = re.compile(
    r"^$|^PING |bytes from |icmp_|^---|packets transmitted|^(?:rtt|round-trip) |^From |^\.\.\."
)
"""What ping prints; any other line ends its output."""
OPTION = re.compile(r"-[bdDfnqrRUvVaAhLO46]*?([cMsiIWwtQlpmS])(\S*)$")
"""An option of ping that has a value."""
DEFAULT = 56
"""Bytes of data that ping sends where nobody asks for more."""


def _command(match: re.Match[str], data: Data, line: Line) -> Data | None:
    """The size that was asked for.

    Where ping's own first line follows, that tells it.
    """
    said = next(line.own(1), None)
    words = iter(match["args"].split())
    size = DEFAULT
    address = ""
    for word in words:
        option = OPTION.match(word)
        if option:
            value = option[2] or next(words, "")
            if option[1] == "s":
                size = parse_int(value) or 0
        elif not word.startswith("-"):
            address = address or word
    asked = {"address": address, "bytes": size}
    if said and said.body.startswith("PING "):
        return None
    return _answered(match, asked, line)


def _answered(match: re.Match[str], data: Data, line: Line) -> Data | None:
    """With how many answers came.

    It is None where the output is torn off before any, or ping itself refused to send.
    """
    replies = 0
    for later in line.own(200):
        if not OWN.search(later.body):
            break
        replies += "bytes from " in later.body
        summary = SUMMARY.search(later.body)
        if summary:
            sent = parse_int(summary[1])
            received = parse_int(summary[2])
            if summary[3]:
                return None
            return data | {"sent": sent, "received": received, "_line": later}
    if replies:
        return data | {"sent": None, "received": replies}
    return None


def _summary(match: re.Match[str], data: Data, line: Line) -> Data | None:
    """A ping of which some answers came, not all and not none.

    Its size stands elsewhere.
    """
    said = next(line.own(1), None)
    found = None
    if said:
        found = SUMMARY.search(said.body)
    if found:
        sent, received = parse_int(found[1]) or 0, parse_int(found[2]) or 0
    else:
        sent, received = 0, 0
    if 0 < received < sent:
        return data | {"sent": sent, "received": received, "_line": said}
    return None


def _socket(match: re.Match[str], data: Data, line: Line) -> Data | None:
    """A connection with what the kernel knows of it.

    That stands in the next line.
    """
    text = " ".join([line.body, *(later.body for later in line.own(1))])

    def pick(pattern: str) -> int:
        found = re.search(pattern, text)
        if found:
            return parse_int(found[1]) or 0
        return 0

    rto = re.search(r"\brto:(\d{1,9}(?:\.\d{1,9})?)", text)
    if rto is None:
        return None
    known = {
        "backoff": pick(r"\bbackoff:(\d+)"),
        "lost": pick(r"\blost:(\d+)"),
        "rto_ms": parse_float(rto[1]),
    }
    return (
        data
        | known
        | {
            "retrans": pick(r"\bretrans:(\d+)/"),
            "resent": pick(r"\bretrans:\d+/(\d+)"),
        }
    )


RULES: tuple[Rule, ...] = (
    # [istio-proxy] 2026-11-21T00:27:00Z info Envoy proxy is ready       istio-init: done
    # linkerd2-proxy is ready
    # envoy_proxy: ready        linkerd-proxy: ready      (a sidecar of the pod)
    *(
        rule("net.mesh", anchor, rf"(?P<name>{anchor})\b")
        for anchor in (
            "istio-proxy",
            "istio-init",
            "Envoy proxy",
            "envoy_proxy",
            "linkerd2",
            "linkerd-proxy",
        )
    ),
    # root@node-1:~# ping -c 3 -M do -s 1440 10.0.0.2
    rule(
        "net.ping", "ping ", r"(?:^|[$#>] )(?:sudo )?ping6? (?P<args>[^|;&]{1,300})", make=_command
    ),
    # PING node-2 (10.0.0.2) 1440(1468) bytes of data.
    # PING 10.0.0.2 (10.0.0.2): 1440 data bytes
    rule(
        "net.ping",
        "PING ",
        r"^PING \S+ \((?P<address>[\da-fA-F.:]{2,40})\).{0,60}?[ :](?P<bytes>\d{1,6})(?:\(\d+\)"
        r" bytes of| data bytes)",
        make=_answered,
    ),
    # --- 10.0.0.2 ping statistics ---
    # 100 packets transmitted, 93 received, 7% packet loss, time 99112ms
    rule(
        "net.ping", "ping statistics", r"^--- (?P<address>\S{1,260}) ping statistics", make=_summary
    ),
    # ESTAB  0      46080      10.0.0.1:52214    10.0.0.2:41873
    #      cubic wscale:7,7 rto:54272 backoff:8 rtt:8.1/0.2 mss:1448 unacked:1 retrans:1/11 lost:1
    rule(
        "net.tcp",
        "ESTAB",
        r"\bESTAB\s+\d+\s+(?P<queued>\d+)\s+\S{3,120}:\d+\s+(?P<peer>\S{3,120}):\d+",
        make=_socket,
    ),
)
