"""Programs that stand for an nvidia-smi of a sick node, each wrong in another way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

XML = "<nvidia_smi_log><driver_version>1</driver_version>%s</nvidia_smi_log>"
DEAF = "trap '' TERM INT HUP QUIT"
WAIT = "while :; do sleep 1; done"

SILENT = {
    "silent": "exec sleep 600",
    "deaf": f"{DEAF}; {WAIT}",
    "stopped": f"{DEAF}; kill -STOP $$; {WAIT}",
    "closed": "exec >&- 2>&-; exec sleep 600",
    "dripping": "while :; do echo still waiting; sleep 0.1; done",
    "with deaf children": f"({DEAF}; {WAIT}) & ({DEAF}; {WAIT}) & wait",
    "with children elsewhere": f'setsid sh -c "{DEAF}; {WAIT}" & exec sleep 600',
}
"""What gives no answer in its time."""

ENDLESS = {
    "endless": "exec yes '<gpu>'",
    "endless and deaf": f"{DEAF}; while :; do yes; done",
    "endless in its errors": "exec yes >&2",
    "huge": "head -c 300000000 /dev/zero",
    "a child floods": "yes & exec sleep 600",
}
"""What writes more than any answer has."""

REFUSING = {
    "nothing": "exit 0",
    "killed": "kill -SEGV $$",
    "zeros": "head -c 3900000 /dev/zero",
    "noise": "head -c 3900000 /dev/urandom",
    "a line": "yes | head -c 3900000 | tr -d '\\n'",
    "markup": "yes '<!' | head -c 3900000 | tr -d '\\n'",
    "openings": "yes '<nvidia_smi_log' | head -c 3900000 | tr -d '\\n'",
}
"""What ends, and says nothing of any GPU."""

EXPENSIVE = {
    "depth": "echo '<nvidia_smi_log>'; yes '<a>' | head -c 3900000 | tr -d '\\n'; echo '</a>'"
}
"""What ends, and takes longer to read than there is time."""

ANSWERING = {
    "a child holds the output": f"({DEAF}; {WAIT}) & cat $0.xml",
    "a child writes on": "(while :; do echo; sleep 0.05; done) & cat $0.xml",
    "many GPUs": "cat $0.many",
}
"""What answers, and more than that."""


def drivers(folder: Path) -> Iterator[tuple[str, Path]]:
    """(kind, a folder with an nvidia-smi of that kind) of each."""
    for kind, script in (SILENT | ENDLESS | REFUSING | EXPENSIVE | ANSWERING).items():
        place = folder / kind.replace(" ", "-")
        place.mkdir()
        program = place / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        gpu = '<gpu id="0000:%02x:00.0"><product_name>NVIDIA</product_name></gpu>'
        (place / "nvidia-smi.xml").write_text(XML % (gpu % 1))
        (place / "nvidia-smi.many").write_text(
            XML % "".join(gpu % number for number in range(40_000))
        )
        yield kind, place
