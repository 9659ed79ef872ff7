"""What a calibration elsewhere is asked for, before any engine is."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from advisor.engines.engines import backend_of, parse_place
from advisor.options import CalibrationOptions
from advisor.store.store import Store
from advisor.workflows.arrive import asked_text
from advisor.workflows.calibrate_elsewhere import _asked, several
from tests.advisor.test_security import SECRETS


def test_partitions_that_are_named_together_are_places_of_their_own():
    """Slurm would start one job in whichever is free first."""
    places = [
        parse_place("slurm:h100,l40s", account="me"),
        parse_place("ssh:there"),
        parse_place("slurm:h100", account="me"),
    ]
    found = several(places, CalibrationOptions())
    assert [(place.engine, place.name, place.account) for place in found] == [
        ("slurm", "h100", "me"), ("slurm", "l40s", "me"), ("ssh", "there", None)]  # fmt: skip
    assert [place.name for place in several([parse_place("slurm")], CalibrationOptions())] == [None]


def test_the_other_side_is_asked_for_the_same():
    options = CalibrationOptions(gpu="cpu", depths=(1, 2), seq_len=64, price=0.5, fresh=True)
    there = CalibrationOptions(**json.loads(asked_text(options)))
    assert there == CalibrationOptions(gpu="cpu", depths=[1, 2], seq_len=64, price=0.5)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--on", "slurm:a", "--on", "skypilot"], "not calibrated from here"),
        (["--on", "local"], "not calibrated from here"),
        (["--on", "ssh:there", "--data", "."], "synthetic tokens"),
        (["--on", "ssh:-oProxyCommand=x"], "no place"),
        (["--detach"], "--detach is for a calibration on another machine"),
        (["--qos", "high"], "--qos is for a calibration on another machine"),
    ],
)
def test_what_nobody_elsewhere_can_be_asked_is_refused_before_anything_is_handed_over(call, advisor_home, words, said):
    code, out, err = call("calibrate", *words)
    assert (code, out) == (2, "") and said in err, err
    assert not Path(advisor_home, "measuring").exists()


def test_what_is_handed_over_has_nothing_of_the_environment(tmp_path, monkeypatch):
    for name, secret in SECRETS.items():
        monkeypatch.setenv(name, secret)
    asked = _asked(CalibrationOptions(gpu="cpu"), parse_place("ssh:there"), tmp_path, datetime.now(UTC))
    assert asked.seconds == 90  # and with --settings up to twice that besides
    more = CalibrationOptions(gpu="cpu", settings=True)
    assert _asked(more, parse_place("ssh:there"), tmp_path, datetime.now(UTC)).seconds == 270
    request = backend_of("ssh", Store(tmp_path / "home")).measuring(asked)
    assert "job/calibrate.json" in request.files and "workflows.arrive calibrate.json" in request.files["job/run.sh"]
    handed_over = "\n".join([*request.files.values(), request.script, str(request.record)])
    assert not any(secret in handed_over for secret in SECRETS.values())
