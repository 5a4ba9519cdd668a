"""Texts that are no logs and quote errors: documentation, source code, changelogs, configuration, letters."""

from __future__ import annotations

from collections.abc import Iterator

QUOTES = {
    "full": "RuntimeError: CUDA error: no kernel image is available for execution on the device",
    "memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of "
    "79.15 GiB of which 1.06 GiB is free.",
    "same-gpu": "node-1:7001:7041 [0] init.cc:943 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA "
    "device 1b000",
    "shm": "node-1:7001:7041 [1] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device",
    "disk": "OSError: [Errno 28] No space left on device: '/scratch/ckpt/step-1000.pt'",
    "xid": "[  100.500000] NVRM: Xid (PCI:0000:3b:00): 79, pid=7002, name=python, GPU has fallen off the bus.",
    "fabric": "RuntimeError: CUDA error: system not yet initialized",
    "port": "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
    "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
    "files": "OSError: [Errno 24] Too many open files: '/data/shard-0001.bin'",
    "link": "node-a:4121:6250 [4] transport/net_ib.cc:1698 NCCL WARN NET/IB: Got completion from peer "
    "10.9.1.4<41210> with status=12 opcode=0 len=0 vendor err 129 (Send) hca mlx5_2",
    "version": "node-2:7001:7041 [0] init.cc:1090 NCCL WARN Mismatched NCCL version detected : rank 0 version 22105 "
    "rank 1 version 22707",
    "limit": "slurmstepd: error: *** JOB 4711 ON node-1 CANCELLED AT 2026-11-21T01:02:03 DUE TO TIME LIMIT ***",
    "oom": "slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0. Some step tasks have been OOM Killed.",
    "mismatch": "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: "
    "CollectiveFingerPrint(SequenceNumber=9, OpType=BROADCAST, TensorShape=[20], TensorDtypes=Float), but Rank 1 is "
    "running collective: CollectiveFingerPrint(SequenceNumber=9, OpType=ALLREDUCE, TensorShape=[20], "
    "TensorDtypes=Float).",
}
"""Lines that would prove a cause, were they of a job."""

GUIDE = """\
# Troubleshooting distributed training

This page lists errors that users of the cluster have met, and what helped them. If your error is not here, write to us.

## The job stops when it starts

Some jobs end with a message like `{quote}`. This means that something on the node is not set up as it should be.
Here is an example of what it looks like in the output of one rank:

```
{quote}
```

- Check the versions of the driver and of the libraries on all nodes.
- Ask the administrators of the cluster whether the node has been repaired.
- See also [the page on limits](limits.md) for settings of the scheduler.

## Other questions

You can find more examples in the documentation of PyTorch and in the user guide of NCCL.
"""
FAQ = """\
Frequently asked questions
==========================

.. contents::
   :local:

Why does my job fail at the start?
----------------------------------

Most of the time this is a problem of the node. The output then contains a line such as::

    {quote}

Try another node first, and tell us the name of the one that failed.

.. note::

   The same message can also appear when the container was built for another driver.

How do I ask for more memory?
-----------------------------

Use the option of your scheduler; the default is small on purpose.
"""
CHANGES = """\
# Changelog

All notable changes to this project are documented in this file.

## [2.4.0] - 2026-03-01

### Fixed

- Retry when a worker reports `{quote}` during start-up (#1812).
- The launcher no longer prints the same warning twice for each rank.
- Fix a race between the checkpoint writer and the data loader (#1798).

### Added

- A new option to keep the logs of workers that failed.
- {quote} is now shown with a link to the documentation.

## [2.3.1] - 2026-01-12

- Update the base image and the pinned versions of the libraries.
"""
NOTES = """\
Release notes for version 5.1

We are happy to announce version 5.1 of the toolkit. It improves the handling of errors in large jobs.

In earlier versions a job could end with the following message although nothing was wrong with the node:

    {quote}

This has been fixed, and the check is now done before the ranks are started. We would like to thank everybody who
reported the problem and who helped us to find its reason.

Known issues: the message can still be seen when an old image is used. In this case please update the image first.
"""
PYTHON = '''\
"""Explain errors of distributed jobs to users."""

import re

from .table import Entry, register

# Seen on the old cluster:
# {quote}
PATTERN = re.compile(r"error: (?P<what>.*)")

EXAMPLES = [
    "{quoted}",
    "everything is fine",
]


@register
class StartError(Entry):
    """Matches lines such as

    {quote}
    """

    def matches(self, line):
        return bool(PATTERN.search(line))

    def explain(self):
        if self.known:
            return "This node is not set up as it should be."
        raise ValueError("{quoted}")
'''
TEST = '''\
import pytest

from explainer import explain


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "job.log"
    path.write_text(
        """
{quote}
"""
    )
    return path


def test_the_error_is_explained(log):
    assert "node" in explain(log)


def test_nothing_is_said_of_a_good_job():
    assert explain("step 1") == ""


CASES = ["{quoted}", "ok"]
'''
CPP = """\
#include "explain.h"

#include <string>

namespace job {{

// The library prints this when it cannot go on:
//   {quote}
static const char* kMessage = "{quoted}";

/*
 * {quote}
 */
bool matches(const std::string& line) {{
  if (line.find(kMessage) != std::string::npos) {{
    return true;
  }}
  return false;
}}

}}  // namespace job
"""
ALERTS = """\
groups:
  - name: training
    rules:
      - alert: JobFailed
        expr: sum(rate(log_lines_total{{level="error"}}[5m])) > 0
        for: 5m
        labels:
          severity: critical
        annotations:
          summary: "A training job failed"
          description: |
            {quote}
          # example: {quote}
          runbook: https://wiki.example.org/runbooks/training
      - alert: NodeDown
        expr: up == 0
        for: 10m
"""
VALUES = """\
# Default values for the training chart.
replicaCount: 2
image:
  repository: registry.example.org/train
  tag: "2.4"
# Raise this if pods fail with
# {quote}
resources:
  limits:
    nvidia.com/gpu: 8
    memory: 64Gi
knownErrors:
  - "{quoted}"
  - other
env:
  NCCL_DEBUG: WARN
"""
SHELL = """\
#!/bin/bash
# Restarts a job that failed for a known reason.
set -euo pipefail

log="$1"
# {quote}
if grep -q "{quoted}" "$log"; then
    echo "known error, restarting"
    sbatch job.sh
    exit 0
fi
for name in a b c; do
    echo "$name"
done
echo "unknown error" >&2
exit 1
"""
PATCH = """\
From: A Developer <dev@example.org>
Subject: [PATCH] Explain one more error

Users saw this line and did not know what to do:

    {quote}

diff --git a/explain.py b/explain.py
--- a/explain.py
+++ b/explain.py
@@ -10,6 +10,8 @@ EXAMPLES = [
     "out of memory",
+    "{quoted}",
+    # {quote}
-    "unknown",
 ]
"""
PAGE = """\
<!doctype html>
<html>
<head><title>Troubleshooting</title></head>
<body>
<h1>Troubleshooting</h1>
<p>When a job ends with <code>{quote}</code>, look at the node first.</p>
<pre>
{quote}
</pre>
<ul>
<li>Check the versions of the driver.</li>
<li>Ask the administrators.</li>
</ul>
</body>
</html>
"""
LETTER = """\
Dear colleagues,

last week I told you that I would write down what we know about the failures of the large jobs on the new nodes.

As far as I understand it the message "{quote}" is what a rank prints when its node was not set up in the right way,
and it has nothing to do with the program that you run. It was never seen again after the nodes were restarted, so I
would not do anything about it for now, and only ask you to tell me when you see it.

In the talk on Tuesday I will show some examples of this and of other messages, and what can be done about them.

Best wishes, and thank you for your patience with all of this during the last weeks.
"""
SETTINGS = """\
[errors]
# what is shown to users
title = "Known errors"
first = "{quoted}"
second = '''
{quote}
'''

[errors.advice]
text = "Look at the node first."
retry = true
times = 3

[paths]
logs = "/var/log/jobs"
"""
RUNBOOK = """\
= Runbook: nodes with GPUs
:toc:

== A job prints an error at its start

Drain the node first. The line in question is:

----
{quote}
----

Then open a ticket with the vendor.
"""
MESSAGES = """\
msgid "{quoted}"
msgstr "{quoted}"

msgid "Training finished"
msgstr "Training beendet"

msgid "Connection refused"
msgstr "Verbindungsaufbau abgelehnt"
"""
RULES = """\
{{
  "rules": [
    {{"id": "N001", "match": "{quoted}", "severity": "error"}},
    {{"id": "N002", "match": "Connection refused", "severity": "warning"}}
  ]
}}
"""
ANSWER = """\
You probably run into the well known problem with the nodes of that rack. When that is so you get

{quote}

so just take another node and it should be fine. If it is not, please open an issue with the whole output of the job.
"""
FORMS = {
    "guide.md": GUIDE, "faq.rst": FAQ, "CHANGELOG.md": CHANGES, "release-notes.txt": NOTES, "explain.py": PYTHON,
    "test_explain.py": TEST, "explain.cc": CPP, "alerts.yaml": ALERTS, "values.yaml": VALUES, "restart.sh": SHELL,
    "explain.patch": PATCH, "page.html": PAGE, "letter.txt": LETTER, "settings.toml": SETTINGS,
    "runbook.adoc": RUNBOOK, "messages.po": MESSAGES, "rules.json": RULES, "answer.txt": ANSWER,
}  # fmt: skip
"""File name → text, with ``{quote}`` where the line stands, and ``{quoted}`` where it stands in a string."""


def texts() -> Iterator[tuple[str, str, str]]:
    """(quote, file name, text) of every form with every quote."""
    for name, form in FORMS.items():
        for quote, line in QUOTES.items():
            escaped = line.replace("\\", "\\\\").replace('"', '\\"')
            yield quote, name, form.format(quote=line, quoted=escaped)


SHORT = {
    "sentence": "When the job starts I sometimes get `{quote}` and then it hangs before the others notice.\n",
    "report": 'We have seen "{quote}" on one of our nodes, which was repaired by rebooting it.\n',
    "answer": "> hi\nHave you tried it? The message {quote} usually goes away after a restart, at least for me.\n",
    "exception": '    if error:\n        raise RuntimeError("{quote}")\n    return value\n',
    "comment": "def check(path):\n    # {quote}\n    # means that the disk is full\n    return os.statvfs(path)\n",
    "table of python": "ERRORS = {{\n    'full': \"{quote}\",\n}}\n",
    "changes": "## 1.2.3\n\n- Fixed a crash: {quote}\n- Faster start\n",
    "release": "* {quote} is now reported with its host (#1234)\n* New option --fast\n",
    "settings": 'alerts:\n  - name: gpu\n    match: "{quote}"\n    severity: page\n',
    "list of settings": "# patterns\npatterns:\n- '{quote}'\n- 'other'\n",
    "grep": 'src/errors.py:120:    msg = "{quote}"\n',
    "patch": 'diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,3 @@\n+    "{quote}",\n     other\n',
    "script": "#!/bin/bash\ngrep -q '{quote}' \"$LOG\" && echo found\n",
    "json": '{{"patterns": ["{quote}"]}}\n',
    "source": '  WARN("{quote}", rank);\n  return ncclSystemError;\n',
    "talk of a data set": 'step 10 loss 2.3\n{{"role": "user", "content": "{quote}"}}\nstep 11 loss 2.2\n',
    "talks of a data set": 'step 10 loss 2.3\n{{"messages": [{{"role": "user", "content": "{quote}"}}]}}\nstep 11 loss 2.2\n',
    "answer of a data set": "step 10 loss 2.3\nsample: {{'instruction': '{quote}', 'output': 'Free some.'}}\nstep 11 loss 2.2\n",
    "two spans": "`{quote}`, which is what Python says, and NCCL says `NCCL WARN Call to socket failed`.\n",
    "table": "| Message | Meaning |\n|---|---|\n| {quote} | see below |\n",
    "hint of a job": "node-1:812:812 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n[rank0]: step 10 loss 2.3\n"
    'hint: if you see "{quote}", read the guide at https://example.org/guide\n[rank0]: step 11 loss 2.2\n',
}
"""The same in a few lines, which no share of lines tells from a log."""


def short(form: str) -> list[str]:
    """Every quotation in one of the short forms."""
    return [SHORT[form].format(quote=quote.replace('"', "'")) for quote in QUOTES.values()]
