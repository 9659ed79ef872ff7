"""Reads GPU specifications: exact rows with their sources. A value is None if it is unknown.

Rows come from profiles/gpus.csv (format in profiles/README.md) and the user's own gpus.csv under ADVISOR_HOME. If a
driver's name could mean two GPUs, `find_gpu` returns neither. `read_gpus` reads what a person typed: if a name has
several variants it takes the usual one, and says so in a sentence.
"""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path

from advisor.errors import AdvisorError, close_matches
from advisor.store.folders import advisor_home, profiles_folder

GPU_COLUMNS = (
    *("key", "nvml_names", "arch", "compute_capability", "memory_gb", "memory_mib_reported", "mem_bw_gbs"),
    *("fp32_tflops", "tf32_dense_tflops", "fp16_dense_tflops", "bf16_dense_tflops", "fp8_dense_tflops", "tdp_w"),
    *("interconnect", "sm_count", "l2_mb", "mamf_bf16_tflops", "source", "notes"),
)
REQUIRED_GPU_COLUMNS = ("key", "memory_gb", "mem_bw_gbs", "source")
TERA, GIGA, MIB = 1e12, 1e9, 2**20
_IN_USE: ContextVar[Mapping[str, GpuSpec] | None] = ContextVar("the catalog in use", default=None)
GPUS_PER_NODE = 8
MOST_GPUS = 100_000  # a larger number is taken for a typing error
NO_SINGLE_GPU = ("auto", "any", "cpu")  # values of --gpu that name no single GPU in the catalog
_MAKERS = {"nvidia", "geforce", "tesla", "amd", "instinct"}
_SPELT = {"blackwell": "bw", "mobile": "laptop"}  # how keys spell these words
_ALWAYS_NAMED = {"laptop", "super"}  # parts of a product's name that must be typed
_RAN_SHORT = 0.92  # a GPU has at least this share of its marketed GB (ECC and firmware take some)
_RAN_OVER = 1.08  # and at most this share: GPUs with "80 GB" have 80 GiB

_NOT_IN_PRODUCTS = re.compile(
    r"\b(NVIDIA|GeForce|Tesla|AMD|Instinct|Generation|Edition|GPU)\b|[ -]?\b\d+ ?GB?\b( HBM\w+)?", re.IGNORECASE
)
_SERVER_FORM = re.compile(r"-(sxm\d?|pcie|nvl)$")
_OTHER_MAKERS = {
    "Apple": re.compile(r"\b(apple|mac(book)?|mps|m[1-9])\b"),
    "AMD": re.compile(r"\b(amd|radeon|rx|rx\d{4}\w*|vega|mi\d\d)\b"),
    "Intel": re.compile(r"\b(intel|arc|iris|xe|gaudi)\b"),
}
_DRIVERS = {"Apple": "Apple", "AMD": "AMD", "Intel": "HL-"}  # how the names reported by their drivers begin

# Rate of dense fp16 products with fp32 sums, relative to fp32 outside the tensor units, at full rate (data sheets).
_FULL_RATE = {"Turing": 8, "Ampere": 4, "Ada": 4, "Blackwell": 4}


@dataclass(frozen=True, kw_only=True)
class GpuSpec:
    """One GPU as its data sheet describes it. Rates are dense (never 2:4 sparse) FLOP/s, None if not published."""

    key: str
    nvml_names: tuple[str, ...]  # the names that drivers report
    architecture: str
    compute_capability: str
    memory_gb: float  # as marketed
    reported_memory_bytes: int | None  # as the driver reports it
    memory_bytes_per_second: float
    fp32_flops: float | None
    tf32_flops: float | None
    fp16_flops: float | None
    bf16_flops: float | None
    fp8_flops: float | None
    tdp_watts: float | None
    interconnect: str
    sm_count: int | None
    l2_bytes: int | None
    mamf_bf16_flops: float | None  # highest measured matmul rate (max achievable matmul FLOP/s)
    source: str
    notes: str
    network_bytes_per_second: float | None = None  # of one machine, to others; None: as usual, see `prediction.comm`

    @property
    def product(self) -> str:
        """Return the common name with the memory, as in "RTX A6000 48 GB"."""
        name = self.nvml_names[0] if self.nvml_names else self.key.upper()
        name = _NOT_IN_PRODUCTS.sub("", name).replace("-", " ").strip()
        form = self.key.rpartition("-")[2].upper()
        form = f" {form}" if form in ("SXM", "PCIE", "NVL") and form not in name.upper() else ""
        return f"{name}{form} {self.memory_gb:g} GB"

    def with_network(self, bytes_per_second: float | None) -> GpuSpec:
        """Return the GPU in machines with this network rate. None changes nothing."""
        return self if bytes_per_second is None else replace(self, network_bytes_per_second=bytes_per_second)

    @property
    def memory_bytes(self) -> int:
        """Return the memory a program can count on: the driver's figure, else the marketed GB at 1000³ bytes."""
        return self.reported_memory_bytes or int(self.memory_gb * GIGA)

    @property
    def generation(self) -> str:
        """Return the architecture. GPUs whose tensor units sum in fp32 at half rate (as in GeForce) form their own
        generation, because that rate limits their products, while power and clocks limit those of other GPUs."""
        most, full = self.fp16_flops or self.bf16_flops, _FULL_RATE.get(self.architecture)
        if not full or not most or not self.fp32_flops or most / self.fp32_flops > 0.75 * full:
            return self.architecture
        return f"{self.architecture} half-rate"

    @property
    def is_cuda(self) -> bool:
        """Tell whether it is an NVIDIA GPU. Others have no compute capability, or an architecture's name for it."""
        return self.compute_capability[:1].isdigit()


def generation_in_words(generation: str | None) -> str:
    """Return a GPU's generation (`GpuSpec.generation`) as a reader calls it; empty for None."""
    return (generation or "").replace(" half-rate", " with tensor cores at half rate")


def peak_flops(spec: GpuSpec, precision: str, *, tf32: bool = True) -> float | None:
    """Return the dense peak FLOP/s of a type: "bf16", "fp16", "fp8" or "fp32" (at the TF32 rate if the GPU has one).

    Returns None if the data sheet states no such rate (as for bf16 before Ampere).
    """
    if precision == "fp32":
        return (spec.tf32_flops if tf32 else None) or spec.fp32_flops
    return {"bf16": spec.bf16_flops, "fp16": spec.fp16_flops, "fp8": spec.fp8_flops}[precision]


@contextmanager
def one_catalog() -> Iterator[None]:
    """Answer from one state of the catalog inside this context, whose files are looked at once. Raises as `load_gpus`.

    A page and its plan ask for a GPU hundreds of times.
    """
    before = _IN_USE.set(load_gpus())
    try:
        yield
    finally:
        _IN_USE.reset(before)


def load_gpus() -> Mapping[str, GpuSpec]:
    """Return all known GPUs by key: the shipped rows, overridden by the rows of ADVISOR_HOME/gpus.csv.

    A file is read again only if it has changed. Raises AdvisorError with file and line for a row that cannot be read.
    """
    if (in_use := _IN_USE.get()) is not None:
        return in_use
    # One plan asks a thousand times: plain strings, since a Path takes longer to make than its file to look at.
    shipped, own = f"{profiles_folder()}/gpus.csv", f"{advisor_home()}/gpus.csv"
    state = os.stat(shipped)
    gpus = _parsed_gpus(shipped, state.st_mtime_ns, state.st_size)
    if not os.path.isfile(own):
        return gpus
    state = os.stat(own)
    return {**gpus, **_parsed_gpus(own, state.st_mtime_ns, state.st_size)}


def find_gpu(name: str, memory_bytes: float | None = None) -> GpuSpec | None:
    """Return the GPU that a catalog key, driver (NVML) name or short name means. Returns None if unclear or unknown.

    Drivers give some GPUs with different memory one name (RTX 4060 Ti). `memory_bytes`, as reported, tells them apart.
    """
    known = load_gpus()
    found = [known[name]] if name in known else gpus_named(name)
    if len(found) > 1 and memory_bytes is not None:
        found = [spec for spec in found if _RAN_SHORT <= memory_bytes / (spec.memory_gb * GIGA) <= _RAN_OVER]
    return found[0] if len(found) == 1 else None


def gpus_named(name: str) -> list[GpuSpec]:
    """Return every GPU that a name can mean: none, one or several."""
    gpus = load_gpus()
    return [gpus[key] for key in _matching_keys(name, gpus)]


@dataclass(frozen=True, kw_only=True)
class NamedGpus:
    """The GPU that a typed name means, and a sentence on how the name was read."""

    key: str  # a key of the catalog, or one of the words that name no single GPU: auto, any, cpu
    count: int | None  # None if no count was typed
    reading: str | None  # None if the name is the catalog's own


def read_gpus(text: str, *, counted: bool = True) -> NamedGpus:
    """Return the GPU that "h100", "4090", "8xh100" or "h100-80gb-sxm:8" names, and the count.

    Raises AdvisorError (exit 2) for an unknown name, for a name that could mean different GPUs, and for a count if
    `counted` is False.
    """
    parts = re.fullmatch(r"(?:(\d+)\s*[x×*]\s*)?(.*?)(?:\s*[:×*]\s*(\S*)|\s+x\s*(\d+))?", text.strip(), re.DOTALL)
    assert parts is not None  # every part may be absent, and the name may be any text
    before, name, after_colon, after_x = parts.groups()
    said = [number for number in (before, after_colon, after_x) if number is not None]
    if len(said) > 1 or not all(n.isdecimal() and 1 <= int(n) <= MOST_GPUS for n in said):
        hint = "write how many GPUs of which kind as h100:8 or 8xh100"
        message = f"{text!r}: how many GPUs is not a whole number from 1 on: {' and '.join(map(repr, said))}"
        raise AdvisorError(message, hint, exit_code=2)
    count = int(said[0]) if said else None
    if count is not None and not counted:
        raise AdvisorError(f"{text!r} includes a number of GPUs, not allowed here", "name it alone", exit_code=2)
    if name.lower() in NO_SINGLE_GPU:
        return NamedGpus(key=name.lower(), count=count, reading=None)
    key = require_gpu(name).key
    others = [spec.key for spec in gpus_named(name) if spec.key != key]
    reading = f"{text.strip()} read as {f'{count} x ' if count else ''}{key}"
    reading += f" (other forms: {', '.join(others)})" if others else ""
    return NamedGpus(key=key, count=count, reading=reading if _normal(name) != _normal(key) else None)


def require_gpu(name: str) -> GpuSpec:
    """Return the GPU that a typed name means. Raises AdvisorError (exit 2) if it is unknown or means different GPUs.

    The usual form of a server's GPU is the SXM one with the most memory; for other GPUs, the first in the catalog.
    """
    gpus = load_gpus()
    keys = _matching_keys(name, gpus)
    # the key without what distinguishes the variants of one GPU: memory, socket, edition
    if len({re.sub(r"-(\d+gb|sxm\d?|pcie|nvl|ws|maxq|server)\b", "", key) for key in keys}) == 1:
        return gpus[max(keys, key=lambda key: ("sxm" in key, gpus[key].memory_gb * bool(_SERVER_FORM.search(key))))]
    if keys:
        raise AdvisorError(f"{name!r} could be any of: {', '.join(keys)}", "name one of these", exit_code=2)
    maker = next((maker for maker, named in _OTHER_MAKERS.items() if named.search(name.lower())), None)
    if maker is not None:
        known = [key for key, spec in gpus.items() if any(n.startswith(_DRIVERS[maker]) for n in spec.nvml_names)]
        has = f"has {', '.join(known)}" if known else "has none: the trainer runs on CUDA and on CPUs"
        hint = "name another GPU, or measure the CPU of this machine: advisor calibrate --gpu cpu"
        raise AdvisorError(f"unknown GPU {name!r}: of {maker}'s GPUs the catalog {has}", hint, exit_code=2)
    short = {key.partition("-")[0] for key in gpus}  # h1000 resembles h100 more than it resembles any whole key
    near = [
        *close_matches(name.lower(), sorted(word for word in short if any(map(str.isdigit, word)))),
        *close_matches(name.lower(), gpus),
    ]
    close = list(dict.fromkeys(near))[:3]
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    raise AdvisorError(f"unknown GPU {name!r}", f"{hint}`advisor gpus` lists all {len(gpus)} known GPUs", exit_code=2)


def _words(name: str) -> list[str]:
    """Return a name's words in the spelling of keys, without the maker: "GeForce RTX 3090 Ti" is rtx, 3090ti."""
    joined = re.sub(r"(\d{4})[ -](ti|d)\b", r"\1\2", name.lower())
    words = re.findall(r"[a-z0-9]+", joined)
    return [_SPELT.get(word, word) for word in words if word not in _MAKERS]


@lru_cache(maxsize=4096)
def _normal(name: str) -> str:
    """Return a name as one word, so that "NVIDIA GeForce RTX 4090" and "rtx-4090" become equal."""
    return "".join(_words(name))


def _matching_keys(name: str, gpus: Mapping[str, GpuSpec]) -> list[str]:
    """Return the keys that a name can mean: one that equals it as key or driver name, else all that have its parts."""
    if name in gpus:
        return [name]
    wanted = _normal(name)
    exact = [key for key, spec in gpus.items() if any(wanted == _normal(n) for n in (key, *spec.nvml_names))]
    if exact or not wanted:
        return exact
    parts = set(_words(name))
    found = [key for key, spec in gpus.items() if parts <= _name_parts(key, spec.memory_gb) or wanted in _prefixes(key)]
    return [key for key in found if all(word in wanted for word in _ALWAYS_NAMED & set(key.split("-")))]


@lru_cache(maxsize=4096)
def _name_parts(key: str, memory_gb: float) -> frozenset[str]:
    """Return all words that may occur in the name of a GPU: those of its key, apart and joined, and its memory."""
    return frozenset((*key.split("-"), key.replace("-", ""), f"{memory_gb:g}gb"))


@lru_cache(maxsize=4096)
def _prefixes(key: str) -> frozenset[str]:
    """Return the beginnings of a key, joined: "a10080gb" is one of a100-80gb-sxm."""
    words = key.split("-")
    return frozenset("".join(words[:count]) for count in range(1, len(words)))


@lru_cache(maxsize=8)
def _parsed_gpus(path: str, _modified_ns: int, _bytes: int) -> Mapping[str, GpuSpec]:
    specs: dict[str, GpuSpec] = {}
    for line, row in read_table(Path(path), GPU_COLUMNS, REQUIRED_GPU_COLUMNS):
        spec = _gpu(row, f"{path}, line {line}")
        if spec.key in specs:
            raise AdvisorError(f"{path}, line {line}: the key {spec.key!r} occurs twice", "remove one of the rows")
        specs[spec.key] = spec
    return specs


# The columns with numbers, and their units.
_NUMBERS = {
    **dict.fromkeys(("memory_gb", "tdp_w", "sm_count"), 1.0),
    **dict.fromkeys(("memory_mib_reported", "l2_mb"), MIB),
    **dict.fromkeys(("fp32_tflops", "tf32_dense_tflops", "fp16_dense_tflops", "bf16_dense_tflops"), TERA),
    **dict.fromkeys(("fp8_dense_tflops", "mamf_bf16_tflops"), TERA),
    "mem_bw_gbs": GIGA,
}


def _gpu(row: Mapping[str, str], where: str) -> GpuSpec:
    n = {column: read_number(row, column, factor, where) for column, factor in _NUMBERS.items()}
    memory_gb, bandwidth = n["memory_gb"], n["mem_bw_gbs"]
    reported, multiprocessors, l2 = (
        None if (size := n[name]) is None else round(size) for name in ("memory_mib_reported", "sm_count", "l2_mb")
    )
    assert memory_gb is not None and bandwidth is not None  # these columns are required, which read_table checks
    return GpuSpec(
        key=row["key"],
        nvml_names=tuple(name.strip() for name in row["nvml_names"].split(";") if name.strip()),
        architecture=row["arch"],
        compute_capability=row["compute_capability"],
        memory_gb=memory_gb,
        reported_memory_bytes=reported,
        memory_bytes_per_second=bandwidth,
        fp32_flops=n["fp32_tflops"],
        tf32_flops=n["tf32_dense_tflops"],
        fp16_flops=n["fp16_dense_tflops"],
        bf16_flops=n["bf16_dense_tflops"],
        fp8_flops=n["fp8_dense_tflops"],
        tdp_watts=n["tdp_w"],
        interconnect=row["interconnect"],
        sm_count=multiprocessors,
        l2_bytes=l2,
        mamf_bf16_flops=n["mamf_bf16_tflops"],
        source=row["source"],
        notes=row["notes"],
    )


def read_table(path: Path, columns: Iterable[str], required: Iterable[str]) -> Iterable[tuple[int, dict[str, str]]]:
    """Yield each line of a CSV file with its line number. Missing optional columns are empty."""
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if absent := [name for name in required if name not in (reader.fieldnames or ())]:
            raise AdvisorError(f"{path} lacks the column {', '.join(absent)}", "profiles/README.md gives the format")
        for row in reader:
            values = {name: (row.get(name) or "").strip() for name in columns}
            if empty := [name for name in required if not values[name]]:
                where = f"{path}, line {reader.line_num}"
                raise AdvisorError(f"{where}: {', '.join(empty)} is empty", "profiles/README.md gives the format")
            yield reader.line_num, values


def read_number(row: Mapping[str, str], column: str, factor: float, where: str) -> float | None:
    """Read a positive number, or None for an empty cell. A price or rate of 0 is an error, as lists use 0 for a gap."""
    text = row[column]
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise AdvisorError(f"{where}: {column} is {text!r}", "write a positive number, or nothing where it is unknown")
    return value * factor


@dataclass(frozen=True, kw_only=True)
class Link:
    """The connection between the GPUs of one node."""

    kind: str  # nvlink | xgmi | roce | pcie
    generation: str  # as in the catalog: nvlink4, pcie4x16
    bytes_per_second: float  # nominal rate in one direction, per GPU
    gpus: int = GPUS_PER_NODE  # number of GPUs that the link connects


@cache
def read_link(interconnect: str) -> Link | None:
    """Read the catalog's interconnect column ("nvlink4 900": both directions, GB/s). Returns None if it names no rate.

    Bridges between pairs of GPUs are ignored, because not every machine has them. Links to the host processor are
    ignored, because they connect no GPUs.
    """
    for part in interconnect.split(";"):
        match = re.match(r"\s*(nvlink|xgmi|roce|pcie)(\S*) (\d+(?:\.\d+)?)\b(.*)", part)
        if not match or "bridge" in match[2] or "c2c" in match[2]:
            continue
        domain = re.search(r"NVL(\d+)", match[4])
        return Link(
            kind=match[1],
            generation=match[1] + match[2],
            bytes_per_second=float(match[3]) * 1e9 / 2,
            gpus=int(domain[1]) if domain else GPUS_PER_NODE,
        )
    return None
