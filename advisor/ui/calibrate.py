"""Page Calibrate: shows this machine, what is known about it, a running calibration, and two calibrations compared."""

from __future__ import annotations

from datetime import UTC, datetime

import streamlit as st

from advisor import units
from advisor.calibration.detect import CPU_DEFAULTS, CUDA_DEFAULTS
from advisor.calibration.fit import FitEvidence
from advisor.calibration.measure import describe
from advisor.calibration.quality import burst_lines, configurations, with_quality
from advisor.hardware.here import first_card
from advisor.laws.held_out import HeldOut
from advisor.options import FAMILIES
from advisor.report import charts
from advisor.report.calibration import consequence, settings_table, verdict
from advisor.report.table import capital
from advisor.store.calibration import COMPLETE, Calibration, Verdict
from advisor.store.store import CalibrationEntry
from advisor.ui import loaders
from advisor.ui.controls import escaped, go, grid, side_by_side, table, time_progress, typed
from advisor.units import HOUR
from advisor.workflows.calibrate import calibrated_since, calibrating, start_calibrating
from advisor.workflows.preflight import training_here

LOOK_SECONDS = 1.0


def page() -> None:
    """Draw the machine, its calibrations, and a form to start another one."""
    st.title("Calibrate", anchor=False)
    card = first_card()
    here = f"an {card}" if card else "no NVIDIA GPU: its CPU can be calibrated"
    st.markdown(
        f"This machine has **{here}**. A calibration trains here in short bursts and learns the speed from them."
    )
    entries = [with_quality(entry) for entry in loaders.store().list_calibrations()]
    now = calibrating(loaders.store()).look()
    if now is not None and now.running:
        st.fragment(_live, run_every=LOOK_SECONDS)()
    else:
        busy = ", ".join(training_here(loaders.store()))
        own = [entry for entry in entries if not entry.shipped]
        held_out = _held_out(own[0]) if own else None
        left, right = side_by_side("calibrate", (3, 2)) if held_out is not None else (st.container(), st.container())
        with left:
            if own:
                same = [entry for entry in own if entry.device_key == own[0].device_key]
                used = [entry for entry in same if entry.quality and entry.quality.verdict != Verdict.REJECTED]
                _newest(own[0], used[0] if used else None, busy)
            _form(card is not None, busy)
        if held_out is not None:
            right.markdown("**Each configuration, predicted from the others**")
            right.altair_chart(charts.held_out(held_out, describe), width="stretch")
            right.caption("On the dashed line the prediction was exact; bars are 80 % intervals.")
        if now is not None and (last := calibrated_since(loaders.store(), now.unix_seconds)) is None:
            printed = escaped(" / ".join(calibrating(loaders.store()).last_lines()))
            st.warning(f"The last calibration measured nothing. It printed: {printed}", icon=":material/warning:")
        elif now is not None and last is not None:
            if last.status != COMPLETE:
                st.info("The last calibration was interrupted. Start it again with the same settings to resume it.")
            with st.expander(f"Bursts of {last.id}", expanded=True):
                _bursts(last)
    _known(entries)


def _newest(entry: CalibrationEntry, used: CalibrationEntry | None, busy: str) -> None:
    """Say whether plans should use the newest measurement, and offer to plan or to measure once more.

    `used` is what plans use: the newest calibration of the device that was not rejected.
    """
    quality = entry.quality
    assert quality is not None  # judged already, in `page`
    good, judged = quality.verdict == Verdict.GOOD, capital(consequence(quality))
    if used is not None and used is not entry and used.quality is not None:
        judged += f". Plans keep using {used.id} ({used.quality.verdict})"
    kind, icon = (st.success, ":material/check_circle:") if good else (st.warning, ":material/warning:")
    kind(f"**{escaped(entry.device_name or entry.device_key)}** ({escaped(entry.id)})  \n{escaped(judged)}.", icon=icon)
    with st.container(horizontal=True):
        if used is not None and st.button(
            "Plan with it", icon=":material/arrow_forward:", type="primary" if good else "secondary"
        ):
            go("plan", {"gpu": entry.device_key})
        if not good and st.button("Repeat it", icon=":material/replay:", type="primary", disabled=bool(busy)):
            seconds = (CPU_DEFAULTS if entry.device_key == "cpu" else CUDA_DEFAULTS).budget_seconds
            options = ["--gpu", entry.device_key, "--family", entry.family or "nanochat", "--fresh"]
            start_calibrating(loaders.store(), options, float(seconds))
            st.rerun()


@st.cache_resource(max_entries=16, show_spinner=False, hash_funcs=loaders.BY_FILE)
def _held_out(entry: CalibrationEntry) -> HeldOut | None:
    """Return predictions of each configuration from the others. Returns None if too few were measured."""
    return FitEvidence(loaders.calibration(entry)).held_out()


def _form(has_card: bool, busy: str) -> None:
    """Draw the form that starts one. It is disabled while a run trains here, because both would be measured wrong."""
    if busy:
        st.info(
            f"{escaped(busy)} is training on this machine. A calibration now would slow the run and measure "
            "slow steps. Wait for its end, or stop it on the page Launch and watch.",
            icon=":material/hourglass_empty:",
        )
    defaults = CUDA_DEFAULTS if has_card else CPU_DEFAULTS
    with st.form("calibrate", border=True, enter_to_submit=False):
        columns = st.container(key="pair-calibrate").columns(4)
        auto = "auto: the first GPU of this machine, else its CPU."
        device = columns[0].selectbox("Device", ["auto", "cpu"], help=auto)
        family = columns[1].selectbox("Model family", FAMILIES, help="The shape that is trained.")
        least, usual, narrow = 15, int(defaults.budget_seconds), "More bursts, narrower intervals."
        seconds = columns[2].number_input("Time limit (seconds)", min_value=least, value=usual, help=narrow)
        cost = "Shows the cost of the calibration. Empty: unknown."
        price = columns[3].number_input("Price ($ per hour)", min_value=0.0, value=None, help=cost)
        if price:
            st.caption(f"At most {units.format_usd(price * seconds / HOUR)} for the whole calibration.")
        if st.form_submit_button("Calibrate", icon=":material/speed:", disabled=bool(busy)):
            options = ["--gpu", device, "--family", family]
            if price is not None:
                options += ["--price", f"{price:g}"]
            start_calibrating(loaders.store(), options, float(seconds))
            st.rerun()


def _live() -> None:
    """Draw the calibration as it is now. This is drawn again every second while the calibration runs."""
    background = calibrating(loaders.store())
    now = background.look()
    if now is None or not now.running:
        st.rerun()
        return
    time_progress(now)
    if printed := background.last_lines():
        st.caption(printed[-1])
    if (calibration := calibrated_since(loaders.store(), now.unix_seconds)) is not None:
        _bursts(calibration)
    if st.button("Cancel", icon=":material/cancel:", help="The measurements are stored; a new start continues."):
        with st.spinner("stopping"):
            background.cancel()
        st.rerun()


def _bursts(calibration: Calibration) -> None:
    rows = [
        {
            "Configuration": line.configuration,
            "Bursts": str(line.bursts),
            "Tokens/s": units.format_rate(line.tokens_per_second) if line.tokens_per_second else "-",
            "Step": units.format_seconds(line.step_seconds) if line.step_seconds else line.outcome.replace("_", " "),
        }
        for line in burst_lines(calibration)
    ]
    table(rows, right=("Bursts", "Tokens/s", "Step"))


def _known(entries: list[CalibrationEntry]) -> None:
    st.header("Calibrations", anchor=False)
    if not entries:
        st.info(
            "Nothing is calibrated yet. GPUs that were never calibrated are predicted from their data sheets and "
            "published runs, with wide intervals marked *prior*.",
            icon=":material/lightbulb:",
        )
        return
    now, rows = datetime.now(UTC), []
    for entry in entries:
        held_out = _held_out(entry)
        rows.append({
            "Calibration": entry.id,
            "Device": entry.device_name or entry.device_key,
            "Age": units.format_seconds((now - datetime.fromisoformat(entry.created)).total_seconds()),
            "Configurations": str(configurations(loaders.calibration(entry))),
            "Typical error": units.format_percent(held_out.median) if held_out else "unknown",
            "Inside": units.format_percent(held_out.coverage) if held_out else "unknown",
            "Verdict": verdict(entry.quality) if entry.quality else "unknown",
            "From": "shipped" if entry.shipped else "here",
        })  # fmt: skip
    frame, config = typed(rows, ("Age", "Configurations", "Typical error", "Inside"))
    picked = st.dataframe(
        frame, hide_index=True, on_select="rerun", selection_mode="multi-row", column_config=config, key="calibrations"
    ).selection.rows
    st.caption(
        "Typical error: the median error when each configuration is predicted from the others. Inside: the share "
        "within their 80 % intervals. Tick one to remove it, or two of the same GPU to compare them."
    )
    if len(picked) == 1 and picked[0] < len(entries):
        _one(entries[picked[0]])
    if len(picked) == 2 and max(picked) < len(entries):
        _compare([entries[number] for number in picked])


def _one(entry: CalibrationEntry) -> None:
    """Draw what plans do with a calibration, and the button that removes it."""
    if entry.quality is not None:
        st.caption(escaped(f"{entry.id}: {consequence(entry.quality)}"))
    if (settings := settings_table(loaders.calibration(entry))) is not None:
        st.markdown(escaped(capital(settings.title)))
        grid(settings)
        st.caption(escaped("; ".join(settings.notes)))
    if entry.shipped:
        st.caption("It came with the program and cannot be removed; a calibration of your own replaces it.")
        return
    with st.popover("Remove it", icon=":material/delete:"):
        st.markdown("Plans no longer use it; runs that were planned with it do not change.")
        if st.button(f"Remove {entry.id}", key="remove-calibration"):
            loaders.store().delete_calibration(entry.id)
            st.rerun()


def _compare(entries: list[CalibrationEntry]) -> None:
    if len({entry.device_key for entry in entries}) > 1:
        st.warning("These are calibrations of different devices.", icon=":material/warning:")
        return
    columns = {}
    for entry in entries:
        profile = loaders.calibrated_profile(entry)
        rates = profile.posterior.rates
        columns[entry.id] = {
            "Matrix products": units.format_flops(rates.matmul_flops),
            "Memory bandwidth": units.format_bandwidth(rates.bandwidth),
            "Launch": units.format_seconds(rates.launch_seconds),
            "Speed drift": units.format_percent(profile.posterior.drift),
            "Start-up of a run": units.format_centre(profile.costs.startup_seconds, units.format_seconds),
        }
    names = list(next(iter(columns.values())))
    table([{"": name, **{key: column[name] for key, column in columns.items()}} for name in names], right=list(columns))
