"""Everything believed about one device, calibrated or not; `prediction/batch` turns it into predictions."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.hardware.catalog import GpuSpec, peak_flops
from advisor.prediction.memory import MemoryModel
from advisor.prediction.power import PowerModel
from advisor.prediction.throughput import Posterior
from advisor.records import Basis, Estimate, Kernels
from advisor.store.calibration import HeldOutSummary

_UNLIKE_DEVIATION = 0.15  # per switch that differs; half a typical eager-to-compiled gain (sources §3.2: up to 1.3x)
FIT_MARGIN = 0.97  # of device memory: allocators fail a little before the last byte


@dataclass(frozen=True, kw_only=True)
class RunCosts:
    """What a run costs besides its steps."""

    startup_seconds: Estimate  # process start to loop start, without building the model
    build_seconds_per_parameter: float
    compile_seconds: Estimate  # 0 in eager mode
    checkpoint_bytes_per_second: Estimate
    forward_fraction: float  # share of a micro-step's time that is the forward pass with loss: what evaluation costs
    power: PowerModel | None = None  # of one device; None: not measured


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One device: posterior of step time, memory model, run costs, and where they come from."""

    key: str  # catalog key, or "cpu"
    name: str
    device_type: str  # cpu | cuda
    spec: GpuSpec | None
    device_memory_bytes: int | None
    posterior: Posterior
    memory: MemoryModel
    costs: RunCosts
    family: str | None = None  # what it was calibrated on; None: prior
    seq_len: int | None = None
    vocab_size: int | None = None
    precision: str = "bf16"
    compile: bool = False
    optimizer: str = "adamw"
    activation_checkpointing: str = "none"
    kernels: Kernels = Kernels()
    depths: tuple[int, ...] = ()
    calibration_id: str | None = None
    created: str | None = None
    reference_seconds: float | None = None
    drift_exponent: float = 0.0
    held_out: HeldOutSummary | None = None
    widening: float = 1.0  # of the intervals of step times: those of a doubtful calibration did not hold
    sources: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()  # what of its calibrations is not believed as it is

    def peak_flops(self, precision: str, *, tf32: bool = True) -> float | None:
        """What MFU is measured against: a card's dense datasheet peak; of a CPU its best measured product."""
        if self.spec is not None:
            return peak_flops(self.spec, precision, tf32=tf32)
        return self.posterior.rates.matmul_flops if precision == self.precision else None

    @property
    def calibrated(self) -> bool:
        return self.calibration_id is not None


def unlikeness(posterior: Posterior, tag: str) -> float:
    """Extra log deviation for a workload of another family, precision, compilation… than the calibrated ones.

    `tag` is `throughput.tag` of the workload.
    """
    if not posterior.tags or tag in posterior.tags:
        return 0.0
    nearest = max(sum(a == b for a, b in zip(tag.split("/"), t.split("/"), strict=True)) for t in posterior.tags)
    return _UNLIKE_DEVIATION * (len(tag.split("/")) - nearest) ** 0.5


def forward_fraction_prior() -> float:
    """Forward is a third of forward plus backward (sources §1.2: backward costs twice the forward FLOPs)."""
    return 1 / 3


def unknown_costs() -> RunCosts:
    """Start-up, compilation and checkpoint speed where nothing was measured: wide, and marked as prior.

    Start-up of 8-40 s (imports, CUDA context, model build, first batch) and cold block compilation of 15-90 s are the
    range of published logs (sources §3.2: 22-47 s cold, up to 168 s autotuned); 0.2-2 GB/s is network disk to local
    NVMe.
    """
    return RunCosts(
        startup_seconds=Estimate(value=15.0, low=6.0, high=40.0, basis=Basis.PRIOR),
        build_seconds_per_parameter=5e-9,
        compile_seconds=Estimate(value=35.0, low=12.0, high=100.0, basis=Basis.PRIOR),
        checkpoint_bytes_per_second=Estimate(value=6e8, low=2e8, high=2e9, basis=Basis.PRIOR),
        forward_fraction=forward_fraction_prior(),
    )
