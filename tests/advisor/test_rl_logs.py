"""Logs of programs for RL post-training, each in its program's own form: steps, parts of a step, findings."""

from __future__ import annotations

import json
import re

import pytest

from advisor.units import format_seconds
from tests.terminal import advisor, document

ROWS = 12  # of each log


def verl(at: int, more: str = "", kl: float = 0.001, cut: float = 0.0, gen: str = "np.float64(60.0)") -> list[str]:
    return [
        f"(TaskRunner pid=7) step:{at} - actor/entropy:{0.3 - at / 100} - actor/pg_loss:np.float64(0.001) - "
        f"actor/kl_loss:{kl} - actor/grad_norm:np.float64(0.1) - perf/max_memory_allocated_gb:np.float64(185.4) - "
        f"critic/score/mean:{at / 100} - critic/rewards/mean:-9.5 - response_length/mean:400.0 - "
        f"response_length/max:4096.0 - response_length/clip_ratio:{cut} - prompt_length/mean:150.5 - timing_s/gen:{gen}"
        f" - timing_s/old_log_prob:5.0 - timing_s/ref:3.0 - timing_s/update_actor:24.0 - timing_s/update_weights:2.0"
        f"{more} - timing_s/step:{100.0 + (50 if 'testing' in more else 0)} - perf/throughput:900.0"
    ]


def nemo(at: int) -> list[str]:
    parts = {"generation": 60.0, "policy_training": 24.0, "policy_and_reference_logprobs": 8.0,
             "prepare_for_generation/total": 2.0, "prepare_for_generation/transfer_weights": 1.5}  # fmt: skip
    return [
        f"========================= Step {at}/50 =========================",
        "▶ Generating responses for batch of size 512...",
        "📊 Training Results:",
        f"  • Loss: {at / 1000:.4f}",
        "  • Generation KL Error: 0.0006",
        f"  • Avg Reward: {at / 100:.4f}",
        "  • Mean Generation Length: 400.0000",
        "⏱️  Timing:",
        "  • Total step time: 100.00s",
        *(f"  • {name}: {seconds:.2f}s ({seconds:.1f}%)" for name, seconds in parts.items()),
    ]


def slime(at: int) -> list[str]:
    # the trainer waits while the engines on its GPUs generate
    return [
        f"(RolloutManager pid=3) rollout.py:12 - perf {at}: {{'rollout/response_len/mean': 400.0, "
        "'rollout/response_len/max': 4096, 'rollout/truncated_ratio': 0.0, 'perf/rollout_time': np.float64(60.0)}",
        f"(MegatronTrainRayActor pid=1) data.py:5 - rollout {at}: {{'rollout/raw_reward': {at / 100}}}",
        f"(MegatronTrainRayActor pid=1) model.py:847 - step {at}: {{'train/loss': 0.0021, 'train/grad_norm': 0.6}}",
        f"(MegatronTrainRayActor pid=1) utils.py:44 - perf {at}: {{'perf/update_weights_time': 2.0, "
        "'perf/train_wait_time': 64.0, 'perf/ref_log_probs_time': 3.0, 'perf/log_probs_time': 5.0, "
        "'perf/actor_train_time': 24.0, 'perf/train_time': 36.0, 'perf/step_time': 100.0}",
    ]


def skyrl(at: int) -> list[str]:
    head = "(skyrl_entrypoint pid=8) 2026-03-26 14:45:00.970 | INFO     | skyrl.train.trainer:train:261 - "
    spent = {
        "generate": 60.0,
        "fwd_logprobs_values_reward": 8.0,
        "policy_train": 24.0,
        "sync_weights": 2.0,
        "step": 100.0,
    }
    return [
        *(f"{head}Finished: '{name}', time cost: {seconds:.2f}s" for name, seconds in spent.items()),
        f"{head}{{'final_loss': -0.0001, 'policy_loss': -0.0002, 'policy_entropy': 0.3, 'policy_kl': 0.0004}}",
        f"{head}Step {at}: ",
        "(skyrl_entrypoint pid=8) {'generate/avg_num_tokens': '400.0000',",
        f"(skyrl_entrypoint pid=8)  'reward/avg_raw_reward': '{at / 100:.4f}'}}",
        f"Training Batches Processed:  14%|█▍        | {at}/12 [22:36<2:15:37, 1356.23s/it]",
    ]


def openrlhf(at: int) -> list[str]:
    return [
        f"2026-01-01 10:00:{at:02} INFO     ✨ Global step {at}: {{'policy_loss': 0.012, 'actor_lr': 1e-06, "
        f"'kl': 0.003, 'reward': {at / 100}, 'response_length': 400.0, 'timing/make_experience': 8.0, "
        "'timing/ppo_train': 24.0, 'timing/broadcast': 2.0, 'timing/generation': 60.0, 'timing/step_total': 100.0}"
    ]


def trl(at: int) -> list[str]:
    return [
        f"  4%|▍         | {at}/200 [03:00<1:04:17, 100.20s/it]{{'loss': '0.0{at}', 'grad_norm': '0.25', "
        "'learning_rate': '9e-07', 'completions/mean_length': '400', 'completions/max_length': '4096', "
        f"'completions/clipped_ratio': '0', 'reward': '{at / 100}', 'reward_std': '0.2', "
        f"'entropy': '0.3', 'clip_ratio/region_mean': '0', 'step_time': '100', 'epoch': '{at / 10}'}}"
    ]


def prime(at: int) -> list[str]:
    return [
        "Generating rollouts (train): 100%|██████████| 512/512 [01:13<00:00,  6.97it/s]",
        f"02:33:26 SUCCESS Step {at} | Time: 100.00s | Reward: {at / 100:.4f} | Throughput: 2408.9 tokens/s | "
        "Seq. Length: 345.6 tokens/sample | Async Level: 1 | Max. Off-Policy Level: 0",
    ]


def analysed(folder, rows: list[list[str]]) -> dict:
    log = folder / "run.log"
    log.write_text("\n".join(line for row in rows for line in row) + "\n")
    return document("analyze", log)


TIMED = {"generation": 0.6, "update": 0.24, "sync": 0.02}


@pytest.mark.parametrize(
    ("program", "framework", "shares"),
    [
        (verl, "verl", {**TIMED, "log_prob": 0.05, "reference": 0.03}),
        (nemo, "NeMo RL", {**TIMED, "log_prob": 0.08}),
        (slime, "slime", {**TIMED, "log_prob": 0.05, "reference": 0.03, "waiting": 0.04}),
        (skyrl, "SkyRL", {**TIMED, "log_prob": 0.08}),
        (openrlhf, "OpenRLHF", {**TIMED, "log_prob": 0.08}),
        (trl, "TRL", {}),
        (prime, None, {}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_log_of_rl_tells_its_steps_and_where_their_time_goes(program, framework, shares, tmp_path):
    found = analysed(tmp_path, [program(at) for at in range(1, ROWS + 1)])
    assert found["framework"] == framework and found["last_step"] == ROWS
    assert found["measured"]["step_seconds"]["mean"] == pytest.approx(100)
    told = {part["name"]: part["share"] for part in found["parts_of_step"]}
    assert {name: told[name] for name in shares} == pytest.approx(shares)
    assert sum(told.values()) == pytest.approx(1 if shares else 0)
    assert {one["code"] for one in found["findings"] if one["severity"] != "note"} <= {"steps_missing"}
    assert "reward" in found["columns"] and "memory_bytes" not in found["columns"]


def codes(found: dict) -> dict[str, str]:
    return {one["code"]: one["title"] for one in found["findings"]}


def test_rewards_and_lengths_of_answers_are_among_the_measured_numbers(tmp_path):
    found = analysed(tmp_path, [verl(at, cut=0.1) for at in range(1, ROWS + 1)])
    shown = advisor("analyze", found["source"], expect=0, COLUMNS=200).stdout
    rows = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in shown.splitlines() if re.search(r"\S\s{2,}", line))
    assert rows["answers cut at the limit"].startswith("10 %") and rows["tokens of an answer"].startswith("400 ")
    assert rows["reward"].startswith("0.065 ")  # the mean of 0.01 to 0.12


def test_tests_and_checkpoints_are_no_part_of_a_step_of_verl(tmp_path):
    found = analysed(tmp_path, [verl(at, " - timing_s/testing:50.0" if at % 4 == 0 else "") for at in range(1, 25)])
    assert found["measured"]["step_seconds"]["high"] == pytest.approx(100)


def test_rows_of_an_unknown_number_of_steps_say_nothing_of_the_time_between_steps(tmp_path):
    rows = [[line.partition("]")[2] for line in trl(at)] for at in range(1, 41)]  # no bar: every fifth step, perhaps
    found = analysed(tmp_path, [*rows, ["{'train_runtime': 20000.0, 'train_loss': 0.01, 'epoch': 4.0}"]])
    assert found["status"] == "completed" and "goodput" not in codes(found)
    assert found["cost"]["hours"] == pytest.approx(20_000 / 3600)


def test_rows_of_grpo_that_are_printed_late_get_the_steps_of_the_bar_although_its_batch_counts_answers(tmp_path):
    banner = ["***** Running training *****", "  Num examples = 7,473", "  Num Epochs = 1",
              "  Total train batch size (w. parallel, distributed & accumulation) = 8",
              "  Total optimization steps = 200"]  # fmt: skip
    bars = [f"  2%|▏         | {at}/200 [00:13<14:03,  2.00s/it]" for at in range(1, 201)]
    # four answers to each prompt: 3,736.5 steps would be an epoch
    rows = [f"{{'loss': 0.01, 'num_tokens': {12_500 * at}.0, 'reward': 0.5, 'completions/mean_length': 160.7, "
            f"'step_time': 2.0, 'epoch': {round(5 * at / 3736.5, 2)}}}" for at in range(1, 41)]  # fmt: skip
    end = ["{'train_runtime': 420.0, 'train_samples_per_second': 3.81, 'train_steps_per_second': 0.476, 'epoch': 0.05}"]
    found = analysed(tmp_path, [banner, bars, rows, end])
    assert found["last_step"] == 200
    assert found["throughput"] == pytest.approx(12_500 / 5 / 2)


def test_generation_of_an_asynchronous_run_of_verl_is_waiting(tmp_path):
    rows = [verl(at, " - fully_async/count/stale:64", gen="45.0") for at in range(1, ROWS + 1)]
    found = analysed(tmp_path, rows)
    told = {part["name"]: part["share"] for part in found["parts_of_step"]}
    assert told["waiting"] == pytest.approx(0.45) and "generation" not in told
    assert codes(found)["trainer_waits"] == "The trainer waits 45 % of a step for the engines' answers"


def slow_passes(line: str) -> str:
    return line.replace("old_log_prob:5.0", "old_log_prob:40.0").replace("gen:np.float64(60.0)", "gen:25.0")


PREEMPTED = (
    "WARNING scheduler.py:1057] Sequence group {at} is preempted by PreemptionMode.RECOMPUTE mode because there is not "
    "enough KV cache space. total_num_cumulative_preemption={at}"
)
WAITING = "Engine 000: Running: 200 reqs, Waiting: 5{at} reqs, GPU KV cache usage: 99.1%, Prefix cache hit rate: 21.0%"


@pytest.mark.parametrize(
    ("rows", "code", "words"),
    [
        ([verl(at) for at in range(1, 13)], "generation_sets_step", "60 % of a step: the longest answer"),
        ([[slow_passes(verl(at)[0])] for at in range(1, 13)], "log_probs_slow", "1.8 times as long"),  # 43 to 24 s
        ([verl(at) + [PREEMPTED.format(at=at)] for at in range(1, 13)], "cache_full", "12 messages"),
        ([verl(at) + [WAITING.format(at=at)] for at in range(1, 13)], "cache_full", "12 messages"),
        ([verl(at, cut=at / 20) for at in range(1, 13)], "answers_cut", "50 % of the answers are cut"),
        ([verl(at, kl=at / 6) for at in range(1, 21)], "policy_drifts", "KL 0.5 at first, 3 at the end"),
        ([verl(at, " - actor/pg_clipfrac:0.6") for at in range(1, 13)], "policy_drifts", "60 % of the tokens"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_run_of_rl_is_named(rows, code, words, tmp_path):
    assert words in codes(analysed(tmp_path, rows))[code]


def test_a_policy_without_choice_and_a_reward_that_stays_at_its_lowest_are_named(tmp_path):
    rows = [verl(at) for at in range(1, 51)]
    for at, (line,) in enumerate(rows[5:], 6):
        lost = line.replace(f"score/mean:{at / 100}", "score/mean:-1.0")
        rows[at - 1] = [lost.replace(f"entropy:{0.3 - at / 100}", "entropy:0.0002")]
    found = codes(analysed(tmp_path, rows))
    assert found["dead_signal"] == "The reward is -1 in all later rows: these steps teach nothing"
    assert "from 0.27 to 0.0002" in found["policy_collapsed"]


CONFIG = (
    "+ python3 -m verl.trainer.main_ppo data.train_batch_size=1024 data.max_response_length=4096 "
    "actor_rollout_ref.model.path=/models/Qwen2.5-7B-Instruct actor_rollout_ref.rollout.n=5 "
    "actor_rollout_ref.rollout.enforce_eager={} trainer.n_gpus_per_node=8 trainer.nnodes=1"
)
ROW = "rl,model,software,gpu,gpus,placement,prompts-per-step,group,prompt-len,response-len,response-max\n"


def test_a_step_stands_beside_its_prediction_and_what_would_be_faster(tmp_path):
    table = tmp_path / "rows.csv"
    whole, halved = f"{ROW}grpo,qwen2.5-7b,verl,h100,8,colocated,1024,5,150.5,400,4096\n", "2048"
    table.write_text(whole + whole.splitlines()[1].replace("4096", halved) + "\n")
    usual, shorter = (
        json.loads(line)["step_seconds"]["value"] for line in advisor("predict", "--rows", table).stdout.splitlines()
    )
    log = tmp_path / "run.log"
    found = {}
    for eager in (True, False):
        log.write_text("\n".join([CONFIG.format(eager), *(verl(at)[0] for at in range(1, ROWS + 1))]) + "\n")
        answer = document("analyze", log, "--gpu", "h100")
        found[eager] = next(one for one in answer["findings"] if one["code"] == "rl_step_predicted")
    measured, _, said = found[False]["title"].partition("; the model of `plan --rl` says ")
    value, unit = said.split()[:2]
    assert measured == "A step takes 100 s"
    assert float(value) * {"s": 1, "min": 60}[unit] == pytest.approx(usual, rel=0.05)
    assert [one["text"] for one in found[False]["evidence"]][0].startswith("generation: 60 s, predicted ")
    limit = next(one for one in found[False]["actions"] if one.startswith("a limit of 2,048 tokens"))
    assert limit.endswith(f"about {format_seconds(100 * shorter / usual)} a step")
    assert any(one.startswith("engines with CUDA graphs") for one in found[True]["actions"])
    assert not any("CUDA graphs" in one for one in found[False]["actions"])
    assert "rl_step_predicted" not in codes(document("analyze", log))  # on an unknown GPU
