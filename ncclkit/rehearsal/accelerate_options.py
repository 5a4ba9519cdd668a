"""Options of ``accelerate launch`` and of its file: how many ranks, and what ranks are told."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from ncclkit.core.model import NcclkitError

FLAGS = (
    "cpu",
    "debug",
    "downcast-bf16",
    "dynamo-use-dynamic",
    "dynamo-use-fullgraph",
    "dynamo-use-regional-compilation",
    "enable-cpu-affinity",
    "fp8-use-autocast-during-eval",
    "m",
    "module",
    "multi-gpu",
    "no-python",
    "no-tpu-cluster",
    "q",
    "quiet",
    "same-network",
    "tpu",
    "tpu-cluster",
    "tpu-use-sudo",
    "use-deepspeed",
    "use-fsdp",
    "use-megatron-lm",
    "use-parallelism-config",
)
"""Those that take no value."""
OTHER_WAYS = {
    "tpu": "TPUs",
    "use-deepspeed": "DeepSpeed",
    "use-fsdp": "FSDP",
    "use-megatron-lm": "Megatron-LM",
    "use-parallelism-config": "a parallelism config",
}
"""Options by which the same script makes other calls → what they stand for."""
REHEARSED_TYPES = ("", "NO", "MULTI_CPU", "MULTI_GPU")
"""Kinds of a distributed job, as a file names them, under which a script runs as it is."""
TOLD = {
    "mixed-precision": "ACCELERATE_MIXED_PRECISION",
    "gradient-accumulation-steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
}
"""Option → the variable in which a rank finds it."""
SETTING = re.compile(r"(\w+):\s*['\"]?([\w.+-]*)['\"]?\s*(?:#.*)?")
"""A line of the file that is not of a part below another."""
LARGEST = 1 << 20
"""Bytes of the file that are read."""


def read_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Options of the command line, and those of the file that it does not name.

    Raises NcclkitError for a job of another kind than one process a GPU with DDP: what it calls
    would not be what is rehearsed.
    """
    for option, way in OTHER_WAYS.items():
        if option in options:
            _refuse(way)
    settings = {**_settings_of_file(options.get("config-file", "")), **options}
    kind = settings.get("distributed-type", "").upper()
    if kind not in REHEARSED_TYPES:
        _refuse(kind)
    return settings


def _refuse(way: str) -> None:
    raise NcclkitError(
        f"accelerate would set up {way} for this script, which a rehearsal does not; a script that"
        " sets it up itself can be rehearsed: ncclkit rehearse -- python train.py"
    )


def environment_of(settings: Mapping[str, str]) -> dict[str, str]:
    """Variables that accelerate would set for its ranks."""
    env = {}
    for option, variable in TOLD.items():
        if settings.get(option):
            env[variable] = settings[option]
    return env


def _settings_of_file(named: str) -> dict[str, str]:
    """Option → value, of the file that is named or else lies where accelerate looks for it."""
    path = _usual_file()
    if named:
        path = Path(named)
    elif not path.is_file():
        return {}
    try:
        with path.open("rb") as source:
            lines = source.read(LARGEST).decode(errors="replace").splitlines()
    except OSError as error:
        raise NcclkitError(f"accelerate's file {str(path)!r}: {error.strerror}.") from error
    settings = {}
    for line in lines:
        found = SETTING.fullmatch(line.rstrip())
        if found:
            settings[found[1].replace("_", "-")] = found[2]
    return settings


def _usual_file() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    home = os.environ.get("HF_HOME", str(Path(cache) / "huggingface"))
    return Path(home).expanduser() / "accelerate" / "default_config.yaml"
