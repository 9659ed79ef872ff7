"""The profile of one device: all that `prediction/batch` needs for predictions, calibrated or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from advisor.hardware.catalog import GpuSpec, peak_flops
from advisor.prediction.memory import MemoryModel
from advisor.prediction.power import PowerModel
from advisor.prediction.throughput import Posterior
from advisor.records import Basis, Estimate, Kernels
from advisor.settings import SHARDINGS

_UNLIKE_DEVIATION = 0.15  # for each switch that differs: half the typical gain by compiling (sources §3.2: up to 1.3x)
FORWARD_FRACTION = 1 / 3  # of a step, if not measured: backward has twice the FLOPs of forward (sources §1.2)
FIT_MARGIN = 0.97  # usable share of device memory: allocators fail a little before the last byte


@dataclass(frozen=True, kw_only=True)
class RunCosts:
    """The costs of a run other than its steps."""

    startup_seconds: Estimate  # from process start to loop start, without building the model
    build_seconds_per_parameter: float
    compile_seconds: Estimate  # 0 in eager mode
    checkpoint_bytes_per_second: Estimate
    forward_fraction: float  # share of a micro-step's time for forward pass and loss, as in an evaluation
    power: PowerModel | None = None  # of one device; None if not measured


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One device: the posterior of its step time, its memory model, its run costs, and their sources."""

    key: str  # catalog key, or "cpu"
    name: str
    device_type: str  # cpu | cuda
    spec: GpuSpec | None
    device_memory_bytes: int | None
    posterior: Posterior
    sharded: Mapping[str, Posterior] = field(default_factory=dict)  # of other software, by sharding
    memory: MemoryModel
    costs: RunCosts
    family: str | None = None  # model family of the calibration; None if there is none
    seq_len: int | None = None
    vocab_size: int | None = None
    precision: str = "bf16"
    compile: bool = False
    activation_checkpointing: str = "none"
    kernels: Kernels = Kernels()
    depths: tuple[int, ...] = ()
    calibration_id: str | None = None
    reference_seconds: float | None = None
    drift_exponent: float = 0.0
    widening: float = 1.0  # factor on the intervals of step times, above 1 for a doubtful calibration
    sources: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()  # doubts about the calibrations

    def peak_flops(self, precision: str, *, tf32: bool = True) -> float | None:
        """Return the reference of MFU: the dense datasheet peak of a GPU, or the best measured product of a CPU."""
        if self.spec is not None:
            return peak_flops(self.spec, precision, tf32=tf32)
        return self.posterior.rates.matmul_flops if precision == self.precision else None

    def with_network(self, bytes_per_second: float | None) -> Profile:
        """Return the profile on machines with this network rate. None means the usual network."""
        if self.spec is None or bytes_per_second is None:
            return self
        return replace(self, spec=self.spec.with_network(bytes_per_second))

    def posterior_of(self, sharding: str) -> Posterior:
        """Return the posterior of the speed with this sharding. Published runs with ZeRO-1 and ZeRO-2 count as one."""
        return self.sharded.get(SHARDINGS[sharding].published, self.posterior)

    @property
    def calibrated(self) -> bool:
        return self.calibration_id is not None


def unlikeness(posterior: Posterior, tag: str) -> float:
    """Return the extra log deviation for a workload whose family, precision or compilation was not calibrated.

    `tag` comes from `throughput.tag`.
    """
    if not posterior.tags or tag in posterior.tags:
        return 0.0
    nearest = max(sum(a == b for a, b in zip(tag.split("/"), t.split("/"), strict=True)) for t in posterior.tags)
    return _UNLIKE_DEVIATION * (len(tag.split("/")) - nearest) ** 0.5


# Wide priors of start-up, compilation and checkpoint speed, for a device without measurements. Published logs show 8-40
# s of start-up (imports, CUDA context, model build, first batch) and 15-90 s of cold block compilation (sources §3.2:
# 22-47 s cold, up to 168 s autotuned). Disks write between 0.2 GB/s (network) and 2 GB/s (local NVMe).
UNKNOWN_COSTS = RunCosts(
    startup_seconds=Estimate(value=15.0, low=6.0, high=40.0, basis=Basis.PRIOR),
    build_seconds_per_parameter=5e-9,
    compile_seconds=Estimate(value=35.0, low=12.0, high=100.0, basis=Basis.PRIOR),
    checkpoint_bytes_per_second=Estimate(value=6e8, low=2e8, high=2e9, basis=Basis.PRIOR),
    forward_fraction=FORWARD_FRACTION,
)
