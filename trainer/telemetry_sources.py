"""What telemetry reads: GPUs through NVML, the host and the process through psutil. No torch.

A source has devices (one per card, or the host), a fast quantity (power) and slow ones. What a machine does not
offer is None, never a stand-in.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import psutil
import pynvml

GPU_COLUMNS = (
    "utilization_percent",
    "memory_used_bytes",
    "temperature_celsius",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "throttle_reasons",
    "energy_millijoules",
)
HOST_COLUMNS = (
    "cpu_percent",
    "steal_percent",
    "process_cpu_percent",
    "process_resident_bytes",
    "available_memory_bytes",
    "cpu_frequency_mhz",
    "energy_millijoules",
)

Values = tuple[int | float | None, ...]


class Source(Protocol):
    """Devices that are sampled together; `columns` names the slow quantities."""

    columns: tuple[str, ...]

    def describe(self) -> list[dict[str, Any]]:
        """One entry per device, `gpu` its number or None for the host; kept in the file's metadata."""

    def read_power(self) -> Sequence[int | None]:
        """Power now of each device in tenths of a watt."""

    def read_slow(self) -> Sequence[Values]:
        """Values of `columns` for each device."""


class NvmlSource:
    """The cards the run can see, in its own numbering. Needs the NVIDIA driver: raises pynvml.NVMLError without."""

    columns: tuple[str, ...] = GPU_COLUMNS

    def __init__(self, gpus: int | None = None, *, everything: bool = False):
        """Open NVML for the first `gpus` visible cards (None: all of them), or for `everything` the machine has."""
        pynvml.nvmlInit()
        handles = visible_handles(None if everything else os.environ.get("CUDA_VISIBLE_DEVICES"))[:gpus]
        self._cards = [_Card(number, handle) for number, handle in enumerate(handles)]

    def describe(self) -> list[dict[str, Any]]:
        return [card.description for card in self._cards]

    def read_power(self) -> list[int | None]:
        return [card.read_power() for card in self._cards]

    def read_slow(self) -> list[Values]:
        return [tuple(query() for query in card.slow) for card in self._cards]


class HostSource:
    """The host's processors and memory, and the process `pid`; percentages are since the last reading."""

    columns: tuple[str, ...] = HOST_COLUMNS

    def __init__(self, pid: int, *, rapl_root: Path = Path("/sys/class/powercap")):
        """Start the intervals; raises psutil.NoSuchProcess."""
        self._process = psutil.Process(pid)
        self._rapl = RaplCounter(rapl_root)
        self._host_times = psutil.cpu_times()
        self._process_seconds = self._read_process_seconds()
        self._clock = time.monotonic()

    def describe(self) -> list[dict[str, Any]]:
        return [{"gpu": None, "cpus": psutil.cpu_count(), "energy_counter": self._rapl.available}]

    def read_power(self) -> list[int | None]:
        return [None]

    def read_slow(self) -> list[Values]:
        busy, steal = self._host_percentages()
        process_percent, resident = self._process_values()
        available = psutil.virtual_memory().available
        energy = self._rapl.read_millijoules()
        return [(busy, steal, process_percent, resident, available, cpu_frequency_mhz(), energy)]

    def _host_percentages(self) -> tuple[float | None, float | None]:
        """Busy and stolen share of all processors' time."""
        before, now = self._host_times, psutil.cpu_times()
        self._host_times = now
        # guest time is also counted under user time
        spent = {f: getattr(now, f) - getattr(before, f) for f in now._fields if not f.startswith("guest")}
        if (total := sum(spent.values())) <= 0:
            return None, None
        idle = spent["idle"] + spent.get("iowait", 0.0)
        steal = round(100 * spent["steal"] / total, 1) if "steal" in spent else None
        return round(100 * (1 - idle / total), 1), steal

    def _process_values(self) -> tuple[float | None, int | None]:
        """Percent of one processor, and resident bytes; None once the process is gone."""
        now, seconds = time.monotonic(), self._read_process_seconds()
        if seconds is None or self._process_seconds is None or now <= self._clock:
            return None, None
        percent = round(100 * (seconds - self._process_seconds) / (now - self._clock), 1)
        self._clock, self._process_seconds = now, seconds
        try:
            return percent, self._process.memory_info().rss
        except psutil.Error:
            return percent, None

    def _read_process_seconds(self) -> float | None:
        try:
            times = self._process.cpu_times()
        except psutil.Error:
            return None
        return times.user + times.system


class RaplCounter:
    """The processors' own energy counters (Linux powercap), where they may be read: often by root only."""

    def __init__(self, root: Path):
        self._packages = [p for p in sorted(root.glob("intel-rapl:*")) if p.name.count(":") == 1]
        self._ranges = _read_all(p / "max_energy_range_uj" for p in self._packages)
        self._last = _read_all(p / "energy_uj" for p in self._packages)
        self._microjoules = 0

    @property
    def available(self) -> bool:
        return bool(self._last and self._ranges)

    def read_millijoules(self) -> int | None:
        """Energy of all packages since the counter was opened; the counters' wrap-around is undone."""
        if not self._last or not self._ranges:
            return None
        now = _read_all(p / "energy_uj" for p in self._packages)
        if now is None:
            return None
        for new, old, limit in zip(now, self._last, self._ranges, strict=True):
            self._microjoules += (new - old) % (limit + 1)
        self._last = now
        return self._microjoules // 1000


class EnergyMeter:
    """What the first device of a source used, by its own energy counter."""

    def __init__(self, source: Source | None):
        """Start counting; without a source nothing is known."""
        self._source = source
        self._last = self._read()

    def watts(self) -> float | None:
        """Mean power since the last call; None where there is no counter or no time has passed."""
        before, self._last = self._last, self._read()
        if before is None or self._last is None or self._last[1] <= before[1]:
            return None
        return (self._last[0] - before[0]) / 1000 / (self._last[1] - before[1])

    def _read(self) -> tuple[float, float] | None:
        """Millijoules counted so far, and when."""
        if self._source is None:
            return None
        readings = self._source.read_slow()
        if not readings:  # it sees no card
            return None
        values = dict(zip(self._source.columns, readings[0], strict=True))
        millijoules = values["energy_millijoules"]
        return None if millijoules is None else (millijoules, time.monotonic())


class Query:
    """A reading that a card may not offer: None then, and not asked again once it says that it never will."""

    def __init__(self, read: Callable[[], int]):
        self._read: Callable[[], int] | None = read

    def __call__(self) -> int | None:
        if self._read is None:
            return None
        try:
            return self._read()
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_NoPermission):
            self._read = None
        except pynvml.NVMLError:
            pass  # busy or lost for the moment: unknown this time
        return None


class _Card:
    """One card's queries."""

    def __init__(self, number: int, handle: Any):
        instant = Query(lambda: _instant_milliwatts(handle))
        has_instant = instant() is not None
        average = Query(lambda: pynvml.nvmlDeviceGetPowerUsage(handle))
        self._milliwatts = instant if has_instant else average
        clock = pynvml.nvmlDeviceGetClockInfo
        reasons = getattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", None)  # absent from older bindings
        self.slow = [
            Query(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            Query(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).used),
            Query(lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
            Query(lambda: clock(handle, pynvml.NVML_CLOCK_SM)),
            Query(lambda: clock(handle, pynvml.NVML_CLOCK_MEM)),
            Query(lambda: (reasons or pynvml.nvmlDeviceGetCurrentClocksThrottleReasons)(handle)),
            Query(lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)),
        ]
        self.description = {
            "gpu": number,
            "name": Query(lambda: pynvml.nvmlDeviceGetName(handle))(),
            "uuid": Query(lambda: pynvml.nvmlDeviceGetUUID(handle))(),
            "memory_bytes": Query(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).total)(),
            "power_limit_milliwatts": Query(lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle))(),
            "power": "instant" if has_instant else "average" if average() is not None else None,
        }

    def read_power(self) -> int | None:
        milliwatts = self._milliwatts()
        return None if milliwatts is None else (milliwatts + 50) // 100


def visible_handles(visible: str | None) -> list[Any]:
    """NVML handles of the cards CUDA shows to a process, in CUDA's order; `visible` as in CUDA_VISIBLE_DEVICES.

    Numbers count as NVML does (by bus), which is CUDA's order wherever the cards are alike. CUDA stops at the first
    entry that names no card (its programming guide), so does this.
    """
    everything = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    if visible is None:
        return everything
    handles = []
    for entry in (part.strip() for part in visible.split(",")):
        handle = _find_handle(entry, everything)
        if handle is None:
            break
        handles.append(handle)
    return handles


def open_sources(device_type: str, pid: int, gpus: int | None = None) -> tuple[list[Source], list[str]]:
    """The sources of a run on "cpu" or "cuda", the host always last, and remarks on what could not be opened.

    Raises psutil.NoSuchProcess when the process is gone.
    """
    host = HostSource(pid)
    if device_type != "cuda":
        return [host], []
    try:
        return [NvmlSource(gpus), host], []
    except pynvml.NVMLError as error:
        return [host], [f"no GPU telemetry: NVML says {error}"]


def open_energy_meter(device_type: str, pid: int) -> EnergyMeter:
    """The counter of a process's "cpu" or "cuda" device; a host's never stands in for a card's."""
    source = open_sources(device_type, pid, 1)[0][0]
    return EnergyMeter(source if device_type != "cuda" or isinstance(source, NvmlSource) else None)


def cpu_frequency_mhz() -> int | None:
    """Frequency of the first processor: reading all, as psutil does on Linux, costs milliseconds on big hosts."""
    if sys.platform != "linux":
        frequency = psutil.cpu_freq()
        return round(frequency.current) if frequency else None
    kilohertz = _read_int(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq"))
    if kilohertz is not None:
        return kilohertz // 1000
    try:
        with open("/proc/cpuinfo", "rb", buffering=0) as file:
            head = file.read(4096)
    except OSError:
        return None
    _, found, rest = head.partition(b"cpu MHz")
    return round(float(rest.split(b"\n")[0].split(b":")[1])) if found else None


def _instant_milliwatts(handle: Any) -> int:
    """NVML field 186, the power of this moment: nvmlDeviceGetPowerUsage is a one-second average on most newer cards."""
    value = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_POWER_INSTANT])[0]
    if value.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(value.nvmlReturn)
    return value.value.uiVal


def _find_handle(entry: str, everything: list[Any]) -> Any:
    if entry.isdigit():
        return everything[int(entry)] if int(entry) < len(everything) else None
    if entry.startswith("MIG-"):
        try:
            return pynvml.nvmlDeviceGetHandleByUUID(entry)
        except pynvml.NVMLError:
            return None
    matches = [h for h in everything if entry and pynvml.nvmlDeviceGetUUID(h).startswith(entry)]
    return matches[0] if len(matches) == 1 else None


def _read_all(paths: Iterable[Path]) -> list[int] | None:
    """A number from each file; None where one has none."""
    numbers = []
    for path in paths:
        number = _read_int(path)
        if number is None:
            return None
        numbers.append(number)
    return numbers


def _read_int(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
