"""Guards: of several limits the tightest, and losses to stop at."""

import pytest

from advisor.engines.guards import HANG_FACTOR, Limits, guarded, limit_seconds, make_guards, parse_loss_stop
from advisor.errors import AdvisorError
from tests.advisor.plans import small_run
from trainer.schema import LossStop, StopConfig


def test_the_tightest_limit_wins():
    config = small_run(stop=StopConfig(max_seconds=9000.0, loss=(LossStop(step=1, above=20.0),)))
    limits = Limits(max_usd=3.0, max_hours=2.0, loss=[LossStop(step=5, above=9.0)])
    guards = make_guards(config, limits, usd_per_hour=2.0)
    assert guards.max_seconds == 3.0 / 2.0 * 3600  # 5400 s of dollars, 7200 s of hours, 9000 s configured
    stop = guarded(config, guards, usd_per_hour=2.0, step_seconds=0.5).stop
    losses = (LossStop(step=1, above=20.0), LossStop(step=5, above=9.0))
    assert stop == StopConfig(  # dollars stay dollars: the next attempt may have another price
        max_seconds=7200.0, max_usd=3.0, usd_per_hour=2.0, hang_factor=HANG_FACTOR, step_seconds=0.5, loss=losses
    )
    assert limit_seconds(stop) == 5400.0
    free = guarded(small_run(), make_guards(small_run(), Limits(), usd_per_hour=None), usd_per_hour=None).stop
    assert free == StopConfig(hang_factor=HANG_FACTOR) and limit_seconds(free) is None


@pytest.mark.parametrize("text", ["", "500", "500:", ":4", "0:4", "-3:4", "5:nan", "five:4", "5:4:3"])
def test_a_malformed_loss_stop_shows_how_to_write_it(text):
    with pytest.raises(AdvisorError, match="is not STEP:LOSS") as caught:
        parse_loss_stop(text)
    assert "500:4.2" in caught.value.hint and caught.value.exit_code == 2
    assert parse_loss_stop("1_000:4.25") == LossStop(step=1000, above=4.25)
