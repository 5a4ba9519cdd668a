"""A script: the GPUs as NVML describes them, through nvidia-ml-py.  Prints one JSON object."""

from __future__ import annotations

import importlib
import json
import sys

sys.path[:] = [entry for entry in sys.path if entry]  # a pynvml.py in the working folder is not NVML

SM, MEMORY, MIB = 1, 2, 1 << 20
REASONS = {  # bits of nvmlDeviceGetCurrentClocksEventReasons, nvml.h; 0x1 is an idle GPU
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clocks_setting",
}
ENABLED = ("Disabled", "Enabled")
MODES = ("Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process")
READS = {
    "model": lambda nvml, gpu: text(nvml.nvmlDeviceGetName(gpu)),
    "uuid": lambda nvml, gpu: text(nvml.nvmlDeviceGetUUID(gpu)),
    "bus": lambda nvml, gpu: text(nvml.nvmlDeviceGetPciInfo(gpu).busId).lower(),
    "memory.total": lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).total // MIB,
    "memory.free": lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).free // MIB,
    "memory.holders": lambda nvml, gpu: holders(nvml, gpu),
    "compute_mode": lambda nvml, gpu: MODES[nvml.nvmlDeviceGetComputeMode(gpu)],
    "persistence": lambda nvml, gpu: ENABLED[nvml.nvmlDeviceGetPersistenceMode(gpu)],
    "mig": lambda nvml, gpu: ENABLED[nvml.nvmlDeviceGetMigMode(gpu)[0]],
    "ecc.mode": lambda nvml, gpu: ENABLED[nvml.nvmlDeviceGetEccMode(gpu)[0]],
    "ecc.uncorrected": lambda nvml, gpu: nvml.nvmlDeviceGetTotalEccErrors(gpu, 1, 0),  # uncorrected, volatile
    "remapped_rows": lambda nvml, gpu: remapped(*nvml.nvmlDeviceGetRemappedRows(gpu)),
    "busy": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
    "temperature": lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, 0),
    "power": lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
    "power.limit": lambda nvml, gpu: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1e3,
    "clock.sm": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, SM),
    "clock.sm.max": lambda nvml, gpu: nvml.nvmlDeviceGetMaxClockInfo(gpu, SM),
    "clock.memory": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, MEMORY),
    "clock.memory.max": lambda nvml, gpu: nvml.nvmlDeviceGetMaxClockInfo(gpu, MEMORY),
    "throttle": lambda nvml, gpu: throttle(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)),
    "pcie.gen": lambda nvml, gpu: nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu),
    "pcie.gen.max": lambda nvml, gpu: nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu),
    "pcie.width": lambda nvml, gpu: nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu),
    "pcie.width.max": lambda nvml, gpu: nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu),
}


def text(said):
    """Old releases of nvidia-ml-py give bytes."""
    return said.decode() if isinstance(said, bytes) else said


def holders(nvml, gpu):
    """As nvidia-smi lists them; NVML knows no names without asking for each."""
    rows = nvml.nvmlDeviceGetComputeRunningProcesses(gpu)
    return [{"pid": row.pid, "name": "?", "memory": "%d MiB" % ((row.usedGpuMemory or 0) // MIB)} for row in rows]


def remapped(correctable, uncorrectable, pending, failure):
    """In the words of nvidia-smi."""
    counts = {"correctable": correctable, "uncorrectable": uncorrectable}
    return {**counts, "pending": bool(pending), "failure": bool(failure)}


def throttle(bits):
    """The names of the active reasons."""
    return [name for bit, name in REASONS.items() if bits & bit]


def ask(nvml, read, *args):
    """What one reading gives, or NVML's reason; another release may lack a function or have another form."""
    try:
        return read(nvml, *args)
    except (nvml.NVMLError, AttributeError, IndexError, TypeError, ValueError) as error:
        return {"error": str(error)}


def one(nvml, index):
    """All readings of one GPU; one that fell off the bus has no handle, and only that reason to give."""
    gpu = ask(nvml, lambda nvml: nvml.nvmlDeviceGetHandleByIndex(index))
    if isinstance(gpu, dict):
        return dict.fromkeys(READS, gpu)
    return {name: ask(nvml, read, gpu) for name, read in READS.items()}


def cuda(nvml):
    """13000 → 13.0"""
    number = nvml.nvmlSystemGetCudaDriverVersion()
    return "%d.%d" % (number // 1000, number % 1000 // 10)


def main() -> None:
    """Ask every GPU everything; one answer that fails costs only itself."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        sys.exit("this Python has no nvidia-ml-py")
    try:
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        sys.exit("NVML says: %s" % error)
    said = {
        "driver": ask(nvml, lambda nvml: text(nvml.nvmlSystemGetDriverVersion())),
        "cuda": ask(nvml, cuda),
        "gpus": [one(nvml, index) for index in range(count)],
    }
    print(json.dumps(said))


main()
