"""Finds which official PyTorch wheels have kernels for a GPU, and what its architecture supports.

The table is profiles/pytorch_support.yaml, where every line has its source (format in profiles/README.md). A GPU of
unknown capability and architecture is never judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from advisor.hardware.catalog import GpuSpec, peak_flops
from advisor.store.disk import read_yaml
from advisor.store.folders import profiles_folder

PRECISIONS = ("bf16", "fp16", "fp32")  # the trainer's precisions, the preferred one first

UNTRIED = "the trainer was never run on"


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """One official build of one release."""

    torch: str  # the release, such as "2.14"
    variant: str  # the build, as in the wheel's name: "cu126", "rocm7.2"
    capabilities: tuple[str, ...]  # the compute capabilities for which it has kernels
    ptx: bool  # kernels of the newest capability can be compiled at run time for newer GPUs
    is_default: bool  # the one that `pip install torch` installs

    @property
    def is_cuda(self) -> bool:
        """Tell whether the wheel is built for NVIDIA GPUs."""
        return self.variant.startswith("cu")

    @property
    def words(self) -> str:
        """Describe the wheel, as in "PyTorch 2.14 with CUDA 12.6"."""
        if self.is_cuda:
            return f"PyTorch {self.torch} with CUDA {self.variant[2:-1]}.{self.variant[-1]}"
        return f"PyTorch {self.torch} with {self.variant.replace('rocm', 'ROCm ')}"

    @property
    def install(self) -> str:
        """Return the command that installs the wheel."""
        index = f"https://download.pytorch.org/whl/{self.variant}"
        return f"pip install 'torch=={self.torch}.*' --index-url {index}"

    def runs(self, spec: GpuSpec) -> bool:
        """Tell whether the wheel has kernels for a GPU."""
        wanted = spec.compute_capability
        if not spec.is_cuda:
            return wanted in self.capabilities
        held = [_number(capability) for capability in self.capabilities if capability[0].isdigit()]
        major, minor = _number(wanted)
        return any(h[0] == major and h[1] <= minor for h in held) or (self.ptx and (major, minor) > max(held))


@cache
def wheels() -> tuple[Wheel, ...]:
    """Return every known official wheel, newest release first, and each release's default before its other builds."""
    return tuple(
        Wheel(
            torch=release["torch"],
            variant=wheel["variant"],
            capabilities=tuple(wheel["capabilities"]),
            ptx=wheel.get("ptx", False),
            is_default=number == 0,
        )
        for release in _document()["releases"]
        for number, wheel in enumerate(release["wheels"])
    )


def trainer_release() -> str:
    """Return the oldest release with which the trainer was tested. Older wheels are not offered."""
    return _document()["trainer"]


@cache
def wheels_for(spec: GpuSpec) -> tuple[Wheel, ...] | None:
    """Return the official wheels that run on a GPU, newest first. Returns None if too little is known about the GPU."""
    if spec.compute_capability:
        return tuple(wheel for wheel in wheels() if wheel.runs(spec))
    return () if spec.architecture in _document()["other_builds"] else None


def runs_trainer(spec: GpuSpec) -> bool:
    """Tell whether a wheel for the trainer runs on a GPU. True if nothing is known about the GPU."""
    oldest, found = _number(trainer_release()), wheels_for(spec)
    return found is None or any(_number(wheel.torch) >= oldest for wheel in found)


def support_in_words(spec: GpuSpec) -> str:
    """Name the newest PyTorch that runs on a GPU, and the oldest one if that is newer than the table's oldest."""
    found = wheels_for(spec)
    if not found:
        return _document()["other_builds"].get(spec.architecture, "unknown")
    newest, oldest = found[0], found[-1]
    first = next(w for w in wheels() if w.torch == wheels()[-1].torch and w.is_cuda == oldest.is_cuda)
    return newest.words + ("" if first.runs(spec) else f"; at the earliest {oldest.words}")


def short_words(spec: GpuSpec) -> str:
    """Return `support_in_words` for a column, such as "2.15", with the variant if it is not pip's default."""
    found = wheels_for(spec)
    if not found:
        return "-"
    return found[0].torch if found[0].is_default else f"{found[0].torch} {found[0].variant}"


def pytorch_it_needs(spec: GpuSpec) -> str | None:
    """Say which PyTorch a GPU needs, with the command. Returns None if pip's default suffices or nothing is known."""
    found, default = wheels_for(spec), wheels()[0]
    if found is None:
        return None
    if not found:
        build = _document()["other_builds"].get(spec.architecture)
        return f"{spec.key}: no official PyTorch wheel runs it" + (f"; {build} does" if build else "")
    if found[0] == default:
        return None
    why = f"{default.words}, pip's default, has no kernels for its {spec.compute_capability}"
    return f"{spec.key} needs {found[0].words}: {found[0].install} ({why})"


def untried(spec: GpuSpec) -> str:
    """Say what a prediction for a GPU without CUDA assumes."""
    return (
        f"{UNTRIED} {spec.key}, nor on any other GPU without CUDA: the prediction assumes software as fast as on "
        "CUDA GPUs"
    )


def installed_problem(spec: GpuSpec, version: str) -> str | None:
    """Say that an installed PyTorch ("2.13.0+cu130") has no kernels for a GPU. Returns None if it has, or if unknown.

    Wheels from PyPI have no variant in their version; they are the release's default.
    """
    number, _, variant = version.partition("+")
    release = ".".join(number.split(".")[:2])
    installed = [w for w in wheels() if w.torch == release and (w.variant == variant if variant else w.is_default)]
    found = wheels_for(spec)
    if not found or not installed or installed[0].runs(spec):
        return None
    return f"{installed[0].words}, installed here, has no kernels for {spec.key}; {found[0].install}"


def can(spec: GpuSpec, feature: str) -> bool | None:
    """Tell whether an NVIDIA GPU has what the table lists as `feature`. Returns None if that is unknown."""
    if not spec.is_cuda:
        return None
    entry, capability = _document()["features"][feature], spec.compute_capability
    return _number(capability) >= _number(entry["from"]) or capability in entry.get("also", ())


def lacks(spec: GpuSpec) -> tuple[str, ...]:
    """Name what the GPU cannot do."""
    return tuple(entry["name"] for key, entry in _document()["features"].items() if can(spec, key) is False)


def can_train_in(spec: GpuSpec, precision: str) -> bool:
    """Tell whether a GPU multiplies in a precision at a rate that its data sheet states."""
    return peak_flops(spec, precision) is not None and (precision == "fp32" or can(spec, precision) is not False)


def usual_precision(spec: GpuSpec) -> str:
    """Return what `auto` means on a GPU: bf16 if it has units for that, else fp16, else fp32."""
    return next((precision for precision in PRECISIONS if can_train_in(spec, precision)), "fp32")


@cache
def _number(capability: str) -> tuple[int, int]:
    major, _, minor = capability.partition(".")
    return int(major), int(minor or 0)


@cache
def _document() -> dict:
    return read_yaml(profiles_folder() / "pytorch_support.yaml", "table of PyTorch releases")
