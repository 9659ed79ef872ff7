"""Cases of claims that need parameters, tokens and a card alone, each with the arithmetic that decides it."""

from __future__ import annotations

from typing import Any

from advisor.auditing.verdict import Ruling

H, W, D, U = Ruling.HOLDS, Ruling.WRONG, Ruling.DOES_NOT_FOLLOW, Ruling.CANNOT_BE_JUDGED
_SEVEN = {"parameters": "7 billion", "tokens": "100 billion", "gpu": "a100", "gpus": 4}

_STEPS = {"seconds": "28 s", "tokens": "786,432", "than_seconds": "17 s", "than_tokens": "327,680"}
_LIMITS = {"gpu": "h100", "than": "13 billion", "than_gpu": "a100", "memory": "80 GB"}

COMPUTE_CASES: list[tuple[str, dict[str, Any], Ruling]] = [
    ("expression", {"value": "393,216", "readings": ["[24] * [2048] * [8]"]}, H),
    ("expression", {"value": "64", "readings": ["[512] / [2]"]}, W),
    (
        "expression",
        {"value": "~10 h", "readings": ["[17.1 s] * [2000]"]},
        H,
    ),  # 9.5 h, within the rounding of "about 10"
    ("expression", {"value": "44 M", "readings": ["[1.36 billion] * [32 k]"]}, W),  # 4.4e13
    ("expression", {"value": "12", "readings": ["[1] /"]}, U),
    ("training_time", {"value": "80 days", **_SEVEN}, H),  # 4.2e21 ÷ (80 days · 4 · 312e12) = 49 %
    ("training_time", {"value": "3 days", **_SEVEN}, W),
    ("training_time", {"value": "80 days", **_SEVEN, "mfu": "20 %"}, W),
    ("training_time", {"value": "30 years", **_SEVEN}, D),  # 0.5 %
    ("training_time", {"value": "9,000 GPU-h", **_SEVEN, "mfu": "40 %"}, H),  # 42 %
    # 4.2e21 FLOP ÷ (0.8 · 989e12 · 3600) = 1,475 H100-hours, at 30 % of $1.86: $823 in bf16, half of it in fp8
    ("training_cost", {"value": "$50", "parameters": "7 billion", "tokens": "100 billion"}, W),
    ("training_cost", {"value": "$300", "parameters": "7 billion", "tokens": "100 billion", "gpu": "h100"}, W),
    ("training_cost", {"value": "$5,000", "parameters": "7 billion", "tokens": "100 billion"}, H),
    ("training_cost", {"value": "$5,000", "parameters": "7 billion", "tokens": "100 billion", "gpu": "h200"}, H),
    ("training_rate", {"value": "700,000 tok/s", "parameters": "~1 billion", "gpu": "h100", "gpus": 1}, W),
    ("training_rate", {"value": "10,000 tok/s", "parameters": "7 billion", "gpu": "h100", "gpus": 1, "mfu": "42 %"}, H),
    ("training_rate", {"value": "10,000 tok/s", "parameters": "7 billion", "gpu": "h100", "gpus": 1, "mfu": "21 %"}, W),
    ("training_rate", {"value": "90,000 tok/s", "parameters": "7 billion", "gpu": "h100", "gpus": 1}, W),
    ("training_memory", {"parameters": "3 billion", "value": "80 GB"}, H),  # 48 GB
    ("training_memory", {"parameters": "7 billion", "value": "80 GB"}, U),  # 112 GB with AdamW, 56 GB all in bf16
    ("training_memory", {"parameters": "13 billion", "value": "80 GB"}, W),
    ("training_memory", {"parameters": "70 billion"}, W),  # 560 GB on the largest card there is
    ("sustained_rate", {"value": "400 TFLOP/s", "gpu": "h100"}, H),
    ("sustained_rate", {"value": "~1,000 TFLOP/s", "gpu": "h100"}, W),
    ("peak_ratio", {"value": "3.2 x", "gpu": "h100", "than": "a100"}, H),
    ("peak_ratio", {"value": "20 x", "gpu": "h100", "than": "a100"}, W),
    ("card_price", {"value": "$2.50/h", "gpu": "h100"}, H),
    ("card_price", {"value": "$25/h", "gpu": "a100"}, W),
    ("card_memory", {"value": "48 GB", "gpu": "l40s"}, H),
    ("card_memory", {"value": "64 GB", "gpu": "a100"}, W),
    ("card_peak", {"value": "7.9 PFLOP/s", "gpu": "h100", "count": 8, "precision": "bf16"}, H),
    ("card_peak", {"value": "1,979 TFLOP/s", "gpu": "h100", "precision": "bf16"}, W),
    ("card_peak", {"value": "1,979 TFLOP/s", "gpu": "h100", "precision": "bf16", "sparse": True}, H),
    # 124 % of a peak is more than all of it
    ("utilisation", {"value": "124 %"}, W),
    ("utilisation", {"value": "38-43 %"}, H),
    # 8 × 24 = 192 card-hours: $3.50, 6 cents and $70 an hour
    ("rent", {"value": "$672", "gpu": "h100", "time": "24 h", "gpus": "8"}, H),
    ("rent", {"value": "$12", "gpu": "h100", "time": "24 h", "gpus": "8"}, W),
    ("rent", {"value": "$13,440", "gpu": "h100", "time": "192 GPU-h"}, W),
    ("rent", {"value": "$100", "gpu": "h100", "time": "20 %"}, U),
    # 70e9 × 4 bits = 35 GB
    ("weights_fit", {"value": "24 GB", "parameters": "70 billion", "bits": "4"}, W),
    ("weights_fit", {"value": "48 GB", "parameters": "70 billion", "bits": "4"}, H),
    ("tokens_per_parameter", {"value": "20", "parameters": "1 billion", "tokens": "20 billion"}, H),
    ("tokens_per_parameter", {"value": "20", "parameters": "1 billion", "tokens": "60 billion"}, W),
    ("training_work", {"value": "4.2e22 FLOP", "parameters": "7 billion", "tokens": "1 T"}, H),
    ("training_work", {"value": "4.2e21 FLOP", "parameters": "7 billion", "tokens": "1 T"}, W),
    ("optimal_tokens", {"value": "140 billion", "parameters": "7 billion"}, H),
    ("optimal_tokens", {"value": "1 T", "parameters": "7 billion"}, W),
    ("shape_size", {"value": "350 M", "layers": 24, "width": 1024}, H),  # 302 M in blocks
    ("shape_size", {"value": "6.7 billion", "layers": 24, "width": 1024}, W),
    ("cards_speed", {"value": "3 x", "gpu": "h100", "than": "a100"}, H),
    ("cards_speed", {"value": "20 x", "gpu": "h100", "than": "a100"}, W),
    ("equal_memory", {**_LIMITS, "value": "30 billion"}, D),  # 13 billion on the other 80 GB
    ("equal_memory", {**_LIMITS, "value": "13 billion"}, H),
    ("card_figure", {"value": "3.35 TB/s", "gpu": "h100", "fact": "bandwidth"}, H),
    ("card_figure", {"value": "900 W", "gpu": "h100", "fact": "power"}, W),
    ("weights_memory", {"value": "14 GB", "parameters": "7 billion", "bytes_each": 2}, H),
    ("weights_memory", {"value": "7 GB", "parameters": "7 billion", "bytes_each": 2}, W),
    ("fits_card", {"value": "8 GB", "needs": "~12 GB"}, W),
    ("fits_card", {"value": "12 GB", "needs": "~12 GB"}, H),
    ("adapter_memory", {"value": "16 GB", "parameters": "8 billion", "bytes_each": 2}, W),  # 16 GB of weights
    ("adapter_memory", {"value": "20 GB", "parameters": "8 billion", "bytes_each": 2}, H),
    ("expression", {"value": "6.075 h", "readings": ["[486 TFLOP/s] / [80 TFLOP/s]"]}, W),  # seconds
    ("expression", {"value": "~6.1 s", "readings": ["[486 TFLOP/s] / [80 TFLOP/s]"]}, H),
    ("optimizer_state", {"value": 8}, H),
    ("optimizer_state", {"value": 2}, W),
    ("generality", {"that": "ddp_shards"}, W),
    ("generality", {"that": "two_changes"}, D),
    # √((0.65·0.35 + 0.62·0.38)/n): 6.8 points with 100 questions, 0.68 with 10,000
    ("score_gap", {"value": "65 %", "other": "62 %", "items": "100"}, D),
    ("score_gap", {"value": "65 %", "other": "62 %", "items": "10,000"}, H),
    ("state_total", {"value": "4 x", "parts": ["1 x", "1 x", "2 x"]}, H),
    ("state_total", {"value": "4 x", "parts": ["0.5 x", "0.5 x", "0.5 x"]}, D),
    # 28 s ÷ 786,432 = 36 µs a token, 17 s ÷ 327,680 = 52 µs
    ("unequal_work", {**_STEPS, "way": "faster"}, H),
    ("unequal_work", {**_STEPS, "way": "slower"}, D),
    ("range_of", {"value": "5-50 x", "members": ["6.9 x", "20 x"]}, H),
    ("range_of", {"value": "5-50 x", "members": ["0.007 x", "20 x"]}, W),
    # Muennighoff: 8 M · (1 + 15.4 · (1 - e^(-4/15.4))) = 36 M
    ("repetition_worth", {"value": "~36 M", "tokens": "8 M", "epochs": 5}, H),
    ("repetition_worth", {"value": "~20 M", "tokens": "8 M", "epochs": 5}, W),
    ("repetition_limit", {"epochs": 20}, H),
    ("repetition_limit", {"epochs": 4}, D),
    ("perfect_score", {"value": "100 %", "benchmark": "IMDB"}, D),
    ("perfect_score", {"value": "96 %", "benchmark": "IMDB"}, H),
    ("optimizer_work", {"value": "2 x"}, W),
    ("optimizer_work", {"value": "1 %"}, H),
    ("card_figure", {"value": "900 GB/s", "gpu": "H100", "fact": "link"}, H),
    ("card_figure", {"value": "3 TB/s", "gpu": "H100", "fact": "link"}, W),
    ("swiglu_cost", {"value": "50 %", "expansion": 4}, H),
    ("swiglu_cost", {"value": "25 %", "expansion": 2.667}, W),
    ("compared_losses", {"vocabularies": ["32 k", "32 k"]}, H),
    ("compared_losses", {"vocabularies": ["32 k", "152 k"]}, D),
    ("loss_prediction", {"value": 2.0, "reached": 2.4}, H),
    ("loss_prediction", {"value": 2.4, "reached": 2.0}, D),
    # 7 B with bf16 weights and gradients and fp32 moments: 84 GB
    ("training_memory", {"parameters": "7 billion", "value": "80 GB", "state": 12}, W),
    # 1.3e9 · 8 bytes ÷ 2.0 TB/s = 5.1 ms at least
    ("optimizer_time", {"value": "0.1 ms", "parameters": "1.3 billion", "gpu": "a100"}, W),
    ("optimizer_time", {"value": "12 ms", "parameters": "1.3 billion", "gpu": "a100"}, H),
    ("largest_model", {"parameters": "300 M", "value": "40 GB"}, W),  # 4.8 GB of state
    ("largest_model", {"parameters": "2 billion", "value": "40 GB"}, H),
    ("share_of_quality", {"value": "97 %", "of": "loss"}, D),
    # (27 - 25) ÷ (29.5 - 25) = 44 %
    (
        "share_of_quality",
        {"value": "92 %", "of": "accuracy", "reached": "27 %", "target": "29.5 %", "chance": "25 %"},
        D,
    ),
    ("share_of_quality", {"value": "92 %", "of": "accuracy", "reached": "46 %", "target": "50 %", "chance": "0 %"}, H),
    ("one_cause", {}, D),
    ("compute_of_size", {"value": "4 x", "size": "2 x"}, H),
    ("compute_of_size", {"value": "2 x", "size": "2 x"}, W),
    ("uniform_loss", {"value": 10.8, "vocabulary": "50,257"}, H),  # ln 50,257 = 10.825
    ("uniform_loss", {"value": 9.2, "vocabulary": "50,257"}, W),
    ("linear_speedup", {"value": "12 days", "gpus": 8, "than": "23 days", "than_gpus": 4}, H),
    ("linear_speedup", {"value": "6 days", "gpus": 8, "than": "23 days", "than_gpus": 4}, W),
    ("training_time", {"value": "900,000 GPU-h", "work": "3.00e24 FLOP", "gpu": "h100"}, W),  # 94 % of the peak
    ("training_time", {"value": "2,100,000 GPU-h", "work": "3.00e24 FLOP", "gpu": "h100"}, H),  # 40 %
    ("training_time", {"value": "2,100,000 GPU-h", "gpu": "h100"}, U),
    ("scaling", {"value": "7,900 tok/s", "gpus": 4, "than": "2,000 tok/s", "than_gpus": 1}, H),
    ("scaling", {"value": "28,000 tok/s", "gpus": 4, "than": "2,000 tok/s", "than_gpus": 1}, D),
    ("scaling", {"value": "3,000 tok/s", "gpus": 4, "than": "0", "than_gpus": 1}, U),
    ("cheaper", {"value": "$2.00/h", "than": "$3.00/h"}, H),
    ("cheaper", {"value": "$3.00/h", "than": "$2.00/h"}, W),
    ("machine", {"name": "g5.48xlarge", "gpu": "a10g", "count": 8}, H),
    ("machine", {"name": "g5.48xlarge", "gpu": "l40s", "count": 8}, W),
    ("machine", {"name": "g5.48xlarge", "gpu": "a10g", "count": 4}, W),
    ("machine", {"name": "nobodys.large", "gpu": "a10g", "count": 4}, U),
    ("trend", {"of": [40, 41, 46, 52], "over": [1, 3, 7, 13]}, H),
    ("trend", {"of": [40, 41, 46, 52], "over": [4096, 2048, 1024, 512]}, D),
    # places 3, 1, 2, 4 against 1, 2, 3, 4: 1 - 6 · (4 + 1 + 1 + 0) ÷ (4 · 15) = 0.4
    ("trend", {"of": [7, 5, 6, 8], "over": [1, 2, 3, 4]}, D),
    ("trend", {"of": [5, 7, 6, 8], "over": [1, 2, 3, 4]}, H),  # 0.8
    ("trend", {"of": [5, 7, 6], "over": [1, 2, 3]}, U),
    ("negligible", {"value": 8.3, "than": 8.0, "of": "perplexity"}, H),
    ("negligible", {"value": 11.9, "than": 8.0, "of": "perplexity"}, D),
    ("negligible", {"value": 3.4, "than": 3.0, "of": "loss"}, D),
    ("tokens_support", {"value": "5 billion", "tokens": "500 M"}, W),
    ("tokens_support", {"value": "5 billion", "tokens": "50 billion"}, H),
    ("tokens_support", {"value": "5 billion", "tokens": "500 M", "ratio": "10-100"}, W),
    (
        "larger_in_less",
        {"value": "100,000 GPU-h", "parameters": "10 billion", "than": "180,000 GPU-h", "than_parameters": "7 billion"},
        D,
    ),
    (
        "larger_in_less",
        {"value": "1.7 M GPU-h", "parameters": "70 billion", "than": "180,000 GPU-h", "than_parameters": "7 billion"},
        H,
    ),
    ("no_loss", {"words": "inf"}, W),
    # Brown et al. 2020: V100; Touvron et al. 2023: 2.0 T tokens, 1,720,320 hours of A100
    ("published_training", {"name": "GPT-3 175B", "fact": "card", "words": "A100"}, W),
    ("published_training", {"name": "GPT-3 175B", "fact": "card", "words": "V100"}, H),
    ("published_training", {"name": "Llama 2 70B", "fact": "tokens", "value": "1.4 T"}, W),
    ("published_training", {"name": "Llama 2 70B", "fact": "tokens", "value": "2 T"}, H),
    ("published_training", {"name": "LLaMA-2-70B", "fact": "card_hours", "value": "1.7 M GPU-h"}, H),
    ("published_training", {"name": "LLaMA-2-70B", "fact": "card_hours", "value": "170,000 GPU-h"}, W),
    ("published_training", {"name": "Qwen2.5 7B", "fact": "card_hours", "value": "170,000 GPU-h"}, U),
    ("published_training", {"name": "Nobody-1 7B", "fact": "tokens", "value": "2 T"}, U),
    ("card_hours_of_more", {"value": "100 GPU-h", "gpus": 2, "than": "200 GPU-h"}, W),
    ("card_hours_of_more", {"value": "210 GPU-h", "gpus": 2, "than": "200 GPU-h"}, H),
    ("stacked_gains", {"value": "45 %", "parts": 3}, D),
    ("untrained_loss", {"value": "0.549"}, W),
    ("untrained_loss", {"value": "4.2"}, H),  # e^4.2 = 67 characters
    # 6 · 125e6 · 15,570 = 11.7 TFLOP/s of 989
    ("praised", {"what": "rate", "value": "15,570 tok/s", "gpu": "h100-80gb-sxm", "parameters": "125 M"}, D),
    ("praised", {"what": "rate", "value": "350,000 tok/s", "gpu": "h100-80gb-sxm", "parameters": "125 M"}, H),
    ("praised", {"what": "rate", "value": "15,570 tok/s", "gpu": "h100-80gb-sxm"}, U),
    ("praised", {"what": "memory", "value": "2.5 GB", "gpu": "h100-80gb-sxm"}, D),
    ("praised", {"what": "memory", "value": "62 GB", "gpu": "h100-80gb-sxm"}, H),
    ("praised", {"what": "memory", "value": "3-9 %", "gpu": "h100-80gb-sxm"}, D),
    ("memory_overhead", {"value": "50-60 GB"}, D),
    ("memory_overhead", {"value": "2-4 GB"}, H),
    ("exceeds_card", {"value": "86.4 GB", "than": "93.6 GB"}, W),
    ("exceeds_card", {"value": "86.4 GB", "than": "80 GB"}, H),
]
