"""What detectors find in a learning curve: each row is a run with one thing wrong, or with what only looks wrong."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from advisor.readers.run_table import Status
from tests.advisor.findings.build import case as known_case
from tests.advisor.findings.build import event, found, silent, unjudged, verify
from tests.advisor.findings.build_learning import (
    LN_V,
    STEPS,
    changed,
    every,
    healthy_loss,
    healthy_rate,
    learning_case,
    learning_run,
    noise,
    untold,
)

SEED = 9
LOSS = healthy_loss()
PLACE = np.arange(STEPS)
OVERFLOW = "OVERFLOW! Skipping step. Attempted loss scale: {}, reducing to 256"
NAN_LATE = np.where(PLACE < 1200, LOSS, np.nan)


def approx(value, rel=0.02):
    return pytest.approx(value, rel=rel)


def raised(values, place, by):
    """The column with `by` added between two places."""
    return np.asarray(values) + np.where((place[0] <= PLACE) & (place[1] > PLACE), by, 0.0)


START = {
    # sources §7.1: the first loss is ln V
    "no vocabulary": (changed(facts={"vocab_size": None}), unjudged("initial_loss", "worse_than_uniform")),
    "a sum over the micro-batch": (
        changed(loss=32 * LOSS, facts={"micro_batch": 32, "seq_len": 1024, "grad_accum": 16}),
        found("initial_loss_high", "error", says="micro-batch (32)"),
    ),
    "a loss in bits": (changed(loss=LOSS / math.log(2)), found("initial_loss_high", says="bits")),  # 15.6 for GPT-2
    "a declared unit of bits": (
        changed(loss=LOSS / math.log(2), facts={"loss_unit": "bits"}),
        silent("initial_loss", "initial_loss_high", "initial_loss_low"),
    ),
    # d = 768, σ = √768 = 27.7 gives a first loss of 105 to 118; what is read off is 2 % from the handbook's
    "normal embeddings tied to the head": (
        changed(loss=np.r_[112.0, LOSS[1:]], facts={"width": 768}),
        found("initial_loss_high", says=("N(0, 1)", "standard deviation of about 27.2")),
    ),
    # ln 32,000 = 10.373 where 128,256 tokens (11.762) were declared
    "another vocabulary": (
        changed(loss=healthy_loss(start=math.log(32_000), noise=0.0), facts={"vocab_size": 128_256}),
        found("initial_loss_low", says="LLaMA 1"),
    ),
    "a fine-tune starts low": (changed(loss=healthy_loss(start=1.7, end=0.6)), found("initial_loss_low", "note")),
    "a late first row": (
        changed(loss=healthy_loss(start=7.0), step=np.arange(50, 50 * STEPS + 1, 50)),
        unjudged("initial_loss"),
    ),
    # a report: 450 → 92.7 on a vocabulary of 4,000 (ln 4000 = 8.294), perplexity 10^40
    "falling and above uniform": (
        changed(loss=np.linspace(450.649, 92.71, STEPS), facts={"vocab_size": 4000}),
        found("worse_than_uniform", "error", "8.294", says="10^4", usd=approx(2000 / 3600 * 3.6)),
    ),
    "resting at ln V": (changed(loss=LN_V + noise(size=0.01)), found("random_tokens", "", "random")),
    "above any vocabulary": (
        lambda: learning_case(dataclasses.replace(
            learning_run(loss=healthy_loss(start=22.0, end=20.0), eval_loss=None), facts={"seq_len": 512})),
        found("initial_loss_high", "note", "any vocabulary"),
    ),
    "a sum over parts of a picture": (untold(loss=healthy_loss(start=22.0, end=20.0), eval_loss=None),
                                      unjudged("initial_loss")),
    "solved within the first epoch": (
        changed(375, loss=0.5 * np.exp(-np.arange(375) / 15), epoch=np.linspace(0, 3, 375), eval_loss=None,
            facts={"vocab_size": 32000}),
        found("too_good", "warning", says="leak", starts="Too good to be true"),
    ),
    "solved, epochs unknown": (  # nothing is left of it
        changed(375, loss=0.5 * np.exp(-np.arange(375) / 15), eval_loss=None, facts={"vocab_size": 32000}),
        found("too_good"),
    ),
    "memorised after many epochs": (
        changed(375, loss=0.5 * np.exp(-np.arange(375) / 15), epoch=np.linspace(0, 30, 375), eval_loss=None,
            facts={"vocab_size": 32000}),
        silent("too_good"),
    ),
    "a regression near 0": (
        changed(375, loss=0.5 * np.exp(-np.arange(375) / 15), epoch=np.linspace(0, 3, 375), eval_loss=None,
            also={"facts": {}, "format": "keras", "framework": None}),
        unjudged("too_good"),
    ),
    "held-out text known almost entirely": (
        changed(eval_loss=every(10.8, 0.02, 0.012, 0.011)), found("too_good", "warning", "validation loss 10.8")),
    "held-out text of today": (changed(eval_loss=every(10.8, 1.2, 1.0, 0.9)), silent("too_good")),
}  # fmt: skip

COURSE = {
    # sources §7.2
    "a lasting spike": (  # steps 1000 to 1019
        changed(loss=raised(LOSS, (999, 1019), 2.0)),
        found("loss_spikes", "warning", steps=(1000, 1019), hours=approx(20 / 3600, 0.3)),
    ),
    "a single bad batch": (changed(loss=raised(LOSS, (1500, 1501), 1.0)), found("loss_spikes", "note")),
    "few rows": (changed(40), unjudged("loss_spikes")),
    "a recovered spike": (changed(loss=raised(LOSS, (999, 1100), 3.0)), silent("loss_divergence")),
    "a ripple late in a curve": (  # 0.7 % of what was learnt
        changed(loss=raised(healthy_loss(noise=0.001), (1500, 1520), 0.05)), silent("loss_spikes")),
    # from the turn to the planned end: about 1,600 steps of one second
    "a loss that turns upwards": (
        changed(loss=np.r_[LOSS[:1400], LOSS[1400:] + np.linspace(0, 4, 600)], facts={"planned_steps": 3000},
            also={"status": Status.INCOMPLETE}),
        found("loss_divergence", "error", hours=approx(1600 / 3600, 0.1)),
    ),
    # Megatron with ZeRO, a known problem
    "three rows of explosion": (changed(3, loss=[12.52, 12.6, 40.75], eval_loss=None),
                                found("loss_divergence"), found("early_loss_jump", "note")),
    "a part on other data": (  # not a language model: 1.7 → 0.2, then other data at 0.9, below where it began
        untold(400, loss=np.r_[np.linspace(1.7, 0.2, 300), np.full(100, 0.9)] + noise(400, 0.01, 3), eval_loss=None),
        found("loss_divergence", "warning"),
    ),
    "a policy loss": (changed(loss=noise(size=0.3, seed=4) + 20 * (PLACE >= 1500)),
                      unjudged("loss_spikes", "loss_divergence")),
    # spaCy's first part is 0 until its component is trained
    "a loss that begins at nothing": (changed(15, loss=[0.0, *np.linspace(0.5, 4.5, 14)]), unjudged("loss_divergence")),
    "NaN to the end": (  # 799 s at $3.60 an hour
        changed(loss=NAN_LATE, loss_is_nan=np.isnan(NAN_LATE)),
        found("loss_not_finite", "error", "from step 1,201 on", usd=approx(0.8),
            says="restart from a checkpoint before step 1201"),
    ),
    "NaN of fp16": (changed(loss=NAN_LATE, loss_is_nan=np.isnan(NAN_LATE), facts={"precision": "fp16"}),
                    found("loss_not_finite", says="fp16")),
    "NaN from the first step": (  # nothing is resumed from before it
        changed(300, loss=np.full(300, np.nan), loss_is_nan=1.0, eval_loss=None),
        found("loss_not_finite", says=("first step", "broken from the start")),
    ),
    "NaN from the first row, which is not the first step": (  # by then the learning rate may have done it
        changed(300, loss=np.full(300, np.nan), loss_is_nan=1.0, eval_loss=None, step=np.arange(1, 301) * 10.0),
        found("loss_not_finite", says=("learning rate too high", "half the learning rate", "broken from the start")),
    ),
    "no number before learning begins": (  # as agents print while they fill their memory
        changed(loss=np.where(PLACE < 300, np.nan, LOSS), loss_is_nan=PLACE < 300), silent("loss_not_finite")),
    "single NaNs that recover": (
        changed(loss=np.where(PLACE == 700, np.nan, LOSS), loss_is_nan=PLACE == 700),
        found("loss_not_finite", "warning", hours="none"),
    ),
    "rows without a loss": (  # the reader leaves loss_is_nan at 0
        changed(loss=np.where(PLACE % 2, LOSS, np.nan), loss_is_nan=0.0), silent("loss_not_finite")),
    "gradient norms of 0": (changed(grad_norm=0.0), found("grad_norm_not_collected", "note", "not collected")),
    "placeholders that a reader dropped": (
        changed(49, grad_norm=None, also={"provenance": {"grad_norm": "as printed; 0.000 is read as not collected"}}),
        found("grad_norm_not_collected"),
    ),
    "no gradient norms": (changed(grad_norm=None), unjudged("grad_norm_not_collected", "grad_norm_large")),
    "48 times the clip at the start": (
        changed(4, grad_norm=[47.77, 2.16, 0.60, 0.48], eval_loss=None), found("grad_norm_large", "note", "47.77")),
    "fp16 skips at the start and now and then": (
        changed(skipped=(PLACE < 12) | (PLACE >= 500) & (PLACE % 500 == 0), facts={"precision": "fp16"}),
        silent("loss_scale_skips"),
    ),
    "frequent late skips": (  # 190 of the 1,950 steps after the first 50
        changed(skipped=(PLACE >= 100) & (PLACE % 10 == 0), facts={"precision": "fp16"}),
        found("loss_scale_skips", "warning", "9.74 %", hours=approx(190 / 3600, 0.03)),
    ),
    "all steps skipped": (
        changed(3, loss=np.full(3, np.nan), skipped=1.0, learning_rate=0.0, eval_loss=None),
        found("all_steps_skipped", "error"),
    ),
    "a scale that cannot go lower": (
        changed(10, events=[event("overflow", OVERFLOW.format(256), 0.0)]),
        found("loss_scale_at_minimum", "error"),
    ),
    "a scale that is halved": (
        changed(10, events=[event("overflow", OVERFLOW.format(512), 0.0)]),
        silent("loss_scale_at_minimum", "loss_scale_skips"),
    ),
    "fp16 without a word of its scale": (changed(facts={"precision": "fp16"}), unjudged("loss_scale_skips")),
    "a rate of 0": (
        changed(62, loss=22 + noise(62, 0.3, 0), learning_rate=0.0),
        found("learning_rate_zero", "error", usd=approx(62 / 3600 * 3.6, 0.05)),
    ),
    "a rate whose digits are cut off": (changed(learning_rate=0.0), found("learning_rate_zero", "note", hours="none")),
    "a jump that comes back": (  # Megatron with DeepSpeed: 12.4 → 31 within the first iterations, back at 7.7
        changed(49, loss=np.r_[12.44, 12.45, 20.0, 31.0, 25.0, 18.0, np.linspace(12.0, 7.75, 43)][:49], eval_loss=None),
        found("early_loss_jump", "note", "31"),
    ),
    "one noisy row": (
        changed(loss=np.where(PLACE == 4, 1.17 * healthy_loss(start=16.5, noise=0.2)[0],
                          healthy_loss(start=16.5, noise=0.2))),
        silent("early_loss_jump"),
    ),
    "a short jump": (  # healed at step 5 of 2,000
        changed(loss=np.where((PLACE > 0) & (PLACE < 4), 30.0, healthy_loss(start=16.5, noise=0.2))),
        found("early_loss_jump", "note"),
    ),
    "a benchmark of few steps": (
        changed(30, loss=np.r_[1.9, 2.0, 3.4, 3.0, np.linspace(1.8, 1.2, 26)], eval_loss=None),
        silent("early_loss_jump")),
    "a constant rate": (changed(learning_rate=3e-4), found("ends_at_high_learning_rate", "note", "100 %")),
    "shares of the peak that decay": (
        changed(learning_rate=None, learning_rate_share=healthy_rate(peak=1.0)), silent("ends_at_high_learning_rate")),
    "shares of the peak that stay": (
        changed(learning_rate=None, learning_rate_share=1.0), found("ends_at_high_learning_rate")),
    # by Step Law and DeepSeek; 124 M parameters on 1.05 B tokens: 2.3e-3 and 1.8e-3, and 6e-4 is in their band
    "a rate far above the laws": (lambda: known_case(learning_run(learning_rate=healthy_rate(peak=6e-2))),
                                  found("learning_rate_off_law", "", "above")),
    "a rate far below the laws": (lambda: known_case(learning_run(learning_rate=healthy_rate(peak=5e-6))),
                                  found("learning_rate_off_law", "", "below")),
    "a rate in the laws' band": (lambda: known_case(learning_run()), silent("learning_rate_off_law")),
    "a fine-tune's rate": (
        lambda: known_case(learning_run(loss=healthy_loss(start=1.7, end=0.6), learning_rate=healthy_rate(peak=5e-6))),
        silent("learning_rate_off_law"),
    ),
    "a rate of an unknown shape": (changed(), unjudged("learning_rate_off_law")),
}  # fmt: skip


@pytest.mark.parametrize("name", START | COURSE)
def test_what_is_found(name):
    made, *checks = (START | COURSE)[name]
    verify(made(), *checks)
