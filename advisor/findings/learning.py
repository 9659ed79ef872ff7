"""The detectors of learning, in the order a curve is read: start, accidents, gradients, rates, data, end."""

from __future__ import annotations

from collections.abc import Callable

from advisor.findings.case import Case, Verdict
from advisor.findings.detectors.checkpoints import (
    detect_checkpoint_disk,
    detect_checkpoint_interval,
    detect_no_checkpoint,
)
from advisor.findings.detectors.comparison import detect_merged_runs, detect_steps_missing
from advisor.findings.detectors.data_budget import (
    detect_error_page,
    detect_loss_below_floor,
    detect_repeated_data,
    detect_token_budget,
)
from advisor.findings.detectors.dead import (
    detect_frozen,
    detect_hardly_learns,
    detect_leaps,
    detect_loss_zero,
    detect_stuck_accuracy,
)
from advisor.findings.detectors.evaluation import (
    detect_best_long_ago,
    detect_no_validation,
    detect_validation_is_training,
    detect_worse_than_start,
)
from advisor.findings.detectors.generalisation import (
    detect_accuracy_gap,
    detect_memorised,
    detect_overfitting,
    detect_scores_at_chance,
)
from advisor.findings.detectors.gradients import (
    detect_clipped_mostly,
    detect_clipping_rises,
    detect_grad_norm_large,
    detect_grad_norm_not_collected,
    detect_grad_spikes_before_loss_spikes,
    detect_post_clip_norm,
)
from advisor.findings.detectors.initial_loss import detect_initial_loss, detect_random_tokens, detect_worse_than_uniform
from advisor.findings.detectors.learning_rate import (
    detect_early_loss_jump,
    detect_learning_rate_off_law,
    detect_learning_rate_zero,
    detect_never_decays,
    detect_no_warm_up,
    detect_rate_stands_still,
)
from advisor.findings.detectors.loss import detect_loss_divergence, detect_loss_not_finite, detect_loss_spikes
from advisor.findings.detectors.loss_scaling import detect_loss_scale_skips
from advisor.findings.detectors.resumed import detect_resume_lost
from advisor.findings.detectors.rewards import detect_dead_signal, detect_reward_collapse, detect_reward_flat
from advisor.findings.detectors.several import (
    detect_failed_runs,
    detect_other_runs,
    detect_restarts,
    detect_same_results,
    detect_several_runs,
)
from advisor.findings.detectors.stagnation import (
    detect_no_learning,
    detect_noise_floor,
    detect_plateau,
    detect_preference_at_chance,
    detect_stuck_at_frequencies,
)
from advisor.findings.detectors.tasks import detect_failed_tasks, detect_short_tasks
from advisor.findings.detectors.too_good import detect_too_good

LEARNING_DETECTORS: tuple[Callable[[Case], Verdict], ...] = (
    detect_initial_loss,
    detect_worse_than_uniform,
    detect_random_tokens,
    detect_early_loss_jump,
    detect_loss_not_finite,
    detect_loss_divergence,
    detect_loss_spikes,
    detect_resume_lost,
    detect_grad_spikes_before_loss_spikes,
    detect_grad_norm_not_collected,
    detect_post_clip_norm,
    detect_grad_norm_large,
    detect_clipped_mostly,
    detect_clipping_rises,
    detect_loss_scale_skips,
    detect_learning_rate_zero,
    detect_learning_rate_off_law,
    detect_no_warm_up,
    detect_rate_stands_still,
    detect_never_decays,
    detect_no_learning,
    detect_hardly_learns,
    detect_stuck_at_frequencies,
    detect_frozen,
    detect_leaps,
    detect_stuck_accuracy,
    detect_dead_signal,
    detect_loss_zero,
    detect_reward_collapse,
    detect_reward_flat,
    detect_too_good,
    detect_preference_at_chance,
    detect_plateau,
    detect_noise_floor,
    detect_overfitting,
    detect_accuracy_gap,
    detect_memorised,
    detect_no_validation,
    detect_validation_is_training,
    detect_best_long_ago,
    detect_worse_than_start,
    detect_scores_at_chance,
    detect_repeated_data,
    detect_token_budget,
    detect_loss_below_floor,
    detect_error_page,
    detect_no_checkpoint,
    detect_checkpoint_interval,
    detect_checkpoint_disk,
    detect_merged_runs,
    detect_several_runs,
    detect_restarts,
    detect_failed_runs,
    detect_other_runs,
    detect_same_results,
    detect_failed_tasks,
    detect_short_tasks,
    detect_steps_missing,
)
