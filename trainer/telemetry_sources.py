"""Reads what telemetry samples: GPUs through NVML, the host and the process through psutil. Needs no torch.

A source has devices (one per GPU, or the host), a fast quantity (power) and slow quantities. What a machine does not
have is None, never a substitute.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
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
    """Devices that are sampled together. `columns` names the slow quantities."""

    columns: tuple[str, ...]

    def describe(self) -> list[dict[str, Any]]:
        """Return one entry per device for the file's metadata. `gpu` is the device's number, or None for the host."""

    def read_power(self) -> Sequence[int | None]:
        """Return the present power of each device in tenths of a watt."""

    def read_slow(self) -> Sequence[Values]:
        """Return the values of `columns` for each device."""


class NvmlSource:
    """The GPUs that the run can see, in its own numbering. Raises pynvml.NVMLError without the NVIDIA driver."""

    columns: tuple[str, ...] = GPU_COLUMNS

    def __init__(self, gpus: int | None = None, *, everything: bool = False):
        """Open NVML for the first `gpus` visible GPUs (None means all of them), or with `everything` for all GPUs."""
        pynvml.nvmlInit()
        handles = all_handles() if everything else visible_handles(os.environ.get("CUDA_VISIBLE_DEVICES"))[:gpus]
        self._cards = [_Card(number, handle) for number, handle in enumerate(handles)]

    def describe(self) -> list[dict[str, Any]]:
        return [card.description for card in self._cards]

    def read_power(self) -> list[int | None]:
        power: list[int | None] = []
        for card in self._cards:  # at every tick: NVML is called from here, because calls in between take time
            try:
                way = card.deciwatts.ways[0]
                if failed := way.ask(*way.arguments) or way.status.value:
                    raise pynvml.NVMLError(failed)
                power.append((way.milliwatts.value + 50) // 100)
            except (pynvml.NVMLError, IndexError) as error:
                power.append(card.deciwatts.otherwise(error))
        return power

    def read_slow(self) -> list[Values]:
        return [tuple(query() for query in card.slow) for card in self._cards]


class HostSource:
    """The host's processors and memory, and the process `pid`. Percentages are since the last reading."""

    columns: tuple[str, ...] = HOST_COLUMNS

    def __init__(self, pid: int, *, rapl_root: Path = Path("/sys/class/powercap")):
        """Start the intervals. Raises psutil.NoSuchProcess."""
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
        """Return the busy and stolen share of all processors' time."""
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
        """Return percent of one processor, and resident bytes. Returns None once the process is gone."""
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
    """The processors' own energy counters (Linux powercap), if they may be read, which often only root may."""

    def __init__(self, root: Path):
        self._packages = [p for p in sorted(root.glob("intel-rapl:*")) if p.name.count(":") == 1]
        self._ranges = _read_all(p / "max_energy_range_uj" for p in self._packages)
        self._last = _read_all(p / "energy_uj" for p in self._packages)
        self._microjoules = 0

    @property
    def available(self) -> bool:
        return bool(self._last and self._ranges)

    def read_millijoules(self) -> int | None:
        """Return the energy of all packages since the counter was opened, corrected for the counters' wrap-around."""
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
    """The energy of the first device of a source, measured by its own counter."""

    def __init__(self, source: Source | None):
        """Start counting. Without a source nothing is known."""
        self._source = source
        self._last = self._read()

    def watts(self) -> float | None:
        """Return the mean power since the last call. Returns None if there is no counter or if no time has passed."""
        before, self._last = self._last, self._read()
        if before is None or self._last is None or self._last[1] <= before[1]:
            return None
        return (self._last[0] - before[0]) / 1000 / (self._last[1] - before[1])

    def _read(self) -> tuple[float, float] | None:
        """Return the millijoules counted so far, and the time."""
        if self._source is None:
            return None
        readings = self._source.read_slow()
        if not readings:  # the source sees no GPU
            return None
        values = dict(zip(self._source.columns, readings[0], strict=True))
        millijoules = values["energy_millijoules"]
        return None if millijoules is None else (millijoules, time.monotonic())


# errors that do not go away
_FOR_GOOD = (
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    25,  # NVML_ERROR_ARGUMENT_VERSION_MISMATCH and
    26,  # NVML_ERROR_DEPRECATED (a removed function) have no names in older bindings
)


class Query:
    """Reads a value of a GPU in the first of several ways that works. None if none works.

    A way that failed for good is not tried again. No query of a `group` asks a lost GPU again, because its driver may
    take long to answer each time, and the other GPUs would wait.
    """

    def __init__(self, *ways: Any, group: list[Query] | None = None):
        self.ways, self._group = list(ways), group if group is not None else []  # each returns a number when called
        self._group.append(self)

    def __call__(self) -> int | None:
        try:
            return self.ways[0]()
        except (pynvml.NVMLError, IndexError) as error:
            return self.otherwise(error)

    def otherwise(self, error: pynvml.NVMLError | IndexError) -> int | None:
        """Try the next way after an error of the first. Returns None if there is none, or none is needed."""
        if isinstance(error, IndexError):
            return None
        if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
            for query in self._group:
                query.ways.clear()
        elif error.value in _FOR_GOOD:
            del self.ways[0]
        else:
            return None  # busy at the moment: unknown this time
        return self()


class _PowerWay:
    """Reads a GPU's power through a function of NVML, into cells that are reused. The bindings would make new ones."""

    def __init__(self, function: str, *arguments: Any, milliwatts: ctypes.c_uint, status: ctypes.c_uint):
        self.ask, self.arguments = pynvml.nvmlLib[function], arguments
        self.milliwatts, self.status = milliwatts, status

    def __call__(self) -> int:
        if failed := self.ask(*self.arguments) or self.status.value:
            raise pynvml.NVMLError(failed)
        return (self.milliwatts.value + 50) // 100


def _power_ways(handle: Any) -> list[_PowerWay]:
    """Try NVML field 186, the present power, or else a function that gives a one-second mean on most newer GPUs."""
    field, mean = pynvml.c_nvmlFieldValue_t, ctypes.c_uint()
    buffer = field(fieldId=pynvml.NVML_FI_DEV_POWER_INSTANT)
    status = ctypes.c_uint.from_buffer(buffer, field.nvmlReturn.offset)
    instant = ctypes.c_uint.from_buffer(buffer, field.value.offset)
    fields = (handle, ctypes.c_int(1), ctypes.byref(buffer))
    return [
        _PowerWay("nvmlDeviceGetFieldValues", *fields, milliwatts=instant, status=status),
        _PowerWay("nvmlDeviceGetPowerUsage", handle, ctypes.byref(mean), milliwatts=mean, status=ctypes.c_uint(0)),
    ]


class _Card:
    """One GPU's queries. A GPU without a handle was lost before the start, and answers none of them."""

    def __init__(self, number: int, handle: Any):
        def query(*functions: str, of: str = "", about: tuple[int, ...] = ()) -> Query:
            """Return a reading by several functions of NVML, because drivers and bindings may lack some of them."""
            known = [getattr(pynvml, name) for name in functions if hasattr(pynvml, name) and handle is not None]
            return Query(*(_way(function, (handle, *about), of) for function in known), group=group)

        group: list[Query] = []
        self.deciwatts = Query(*(_power_ways(handle) if handle is not None else ()), group=group)
        self.deciwatts()  # finds out which way works
        self.slow = [
            query("nvmlDeviceGetUtilizationRates", of="gpu"),
            query("nvmlDeviceGetMemoryInfo", of="used"),
            query("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature", about=(pynvml.NVML_TEMPERATURE_GPU,)),
            query("nvmlDeviceGetClockInfo", about=(pynvml.NVML_CLOCK_SM,)),
            query("nvmlDeviceGetClockInfo", about=(pynvml.NVML_CLOCK_MEM,)),
            query("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
            query("nvmlDeviceGetTotalEnergyConsumption"),
        ]
        self.description = {
            "gpu": number,
            "name": query("nvmlDeviceGetName")(),
            "uuid": query("nvmlDeviceGetUUID")(),
            "memory_bytes": query("nvmlDeviceGetMemoryInfo", of="total")(),
            "power_limit_milliwatts": query("nvmlDeviceGetEnforcedPowerLimit")(),
            "power": (None, "average", "instant")[len(self.deciwatts.ways)],
        }


def visible_handles(visible: str | None) -> list[Any]:
    """Return NVML handles of the GPUs CUDA shows to a process, in CUDA's order; `visible` as in CUDA_VISIBLE_DEVICES.

    Numbers count as in NVML (by bus), which is CUDA's order if the GPUs are alike. CUDA stops at the first entry that
    names no GPU (CUDA programming guide), and so does this function.
    """
    everything = all_handles()
    if visible is None:
        return [handle for handle in everything if handle is not None]
    handles = []
    for entry in (part.strip() for part in visible.split(",")):
        handle = _find_handle(entry, everything)
        if handle is None:
            break
        handles.append(handle)
    return handles


def all_handles() -> list[Any]:
    """Return NVML handles of the machine's GPUs in NVML's order, with None for each GPU that is lost."""
    handles = []
    for number in range(pynvml.nvmlDeviceGetCount()):
        try:
            handles.append(pynvml.nvmlDeviceGetHandleByIndex(number))
        except pynvml.NVMLError:
            handles.append(None)
    return handles


def open_sources(device_type: str, pid: int, gpus: int | None = None) -> tuple[list[Source], list[str]]:
    """Return a run's sources on "cpu" or "cuda", with the host last, and remarks on those that could not be opened.

    Raises psutil.NoSuchProcess if the process is gone.
    """
    host = HostSource(pid)
    if device_type != "cuda":
        return [host], []
    try:
        return [NvmlSource(gpus), host], []
    except pynvml.NVMLError as error:
        return [host], [f"no GPU telemetry: NVML says {error}"]


def open_energy_meter(device_type: str, pid: int) -> EnergyMeter:
    """Open the counter of a process's "cpu" or "cuda" device. A host's counter never replaces a GPU's."""
    source = open_sources(device_type, pid, 1)[0][0]
    return EnergyMeter(source if device_type != "cuda" or isinstance(source, NvmlSource) else None)


def cpu_frequency_mhz() -> int | None:
    """Return the first processor's frequency. Reading all, as psutil does on Linux, takes milliseconds on big hosts."""
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


def _way(function: Callable[..., Any], arguments: tuple[Any, ...], of: str) -> Callable[[], int]:
    return lambda: getattr(function(*arguments), of) if of else function(*arguments)


def _find_handle(entry: str, everything: list[Any]) -> Any:
    if entry.isdigit():
        return everything[int(entry)] if int(entry) < len(everything) else None
    if entry.startswith("MIG-"):
        try:
            return pynvml.nvmlDeviceGetHandleByUUID(entry)
        except pynvml.NVMLError:
            return None
    known = [handle for handle in everything if handle is not None]
    matches = [h for h in known if entry and str(Query(partial(pynvml.nvmlDeviceGetUUID, h))()).startswith(entry)]
    return matches[0] if len(matches) == 1 else None


def _read_all(paths: Iterable[Path]) -> list[int] | None:
    """Return a number from each file. Returns None if a file has none."""
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
