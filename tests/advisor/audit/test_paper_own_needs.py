"""Cards and adapters against the memory that a text states itself: a wrong row of each kind beside right ones."""

from tests.advisor.audit.test_paper import accused

NEEDS = """
# Memory guide

## Standard configs (block size 256)

| Config | Training memory | Generation memory |
|---|---|---|
| 150M | ~8 GB | ~1 GB |
| 250M | ~12 GB | ~1.5 GB |

## High-context configs (block size 1024)

| Config | Training memory | Generation memory |
|---|---|---|
| 150M_1024 | ~10 GB | ~1.5 GB |
| 250M_1024 | ~14 GB | ~2.5 GB |

## Which card

| Goal | Minimum GPU | Recommended GPU |
|---|---|---|
"""


def rows(tmp_path, *lines):
    """Numbers of those rows that are accused."""
    first = NEEDS.count("\n") + 1
    return [line - first for line in accused(tmp_path, NEEDS + "\n".join(lines) + "\n")]


def test_a_card_smaller_than_what_the_text_says_is_needed(tmp_path):
    found = rows(
        tmp_path,
        "| 150M standard | RTX 3060 (12GB) | RTX 3090 (24GB) |",
        "| 250M standard | RTX 3070 Ti (8GB) | RTX 3090 (24GB) |",  # 12 GB by the first table
        "| 250M high-context | RTX 3090 (24GB) | RTX 4090 (24GB) |",
    )
    assert found == [1]


def test_a_recommended_card_below_the_minimum(tmp_path):
    found = rows(
        tmp_path,
        "| experiments | RTX 3060 (12GB) | RTX 3070 Ti (8GB) |",
        "| serious work | RTX 3060 (12GB) | RTX 4090 (24GB) |",
    )
    assert found == [0]


def test_a_row_that_several_needs_may_mean_is_not_judged(tmp_path):
    assert rows(tmp_path, "| 250M | RTX 3070 Ti (8GB) | RTX 3090 (24GB) |") == []


def test_adapters_beside_weights_in_16_bits(tmp_path):
    table = """
| Model | Parameters | Full FT | LoRA | LoRA + 4bit |
|---|---|---|---|---|
| Phi-3 Mini | 3.8B | 61GB | 9GB | 4GB |
| Llama-3-8B | 8B | 128GB | 16GB | 6GB |
"""
    assert accused(tmp_path, table) == [5]  # 8e9 weights of 2 bytes are 16 GB
    alone = table.replace(" LoRA + 4bit |", " Activations |")  # nothing says that LoRA's weights have 16 bits
    assert accused(tmp_path, alone) == []


def test_bits_of_parameters_are_bytes_by_eight(tmp_path):
    text = "With 7 billion parameters x 4 bits/parameter / 2 GPUs = ~{} GB of weights per GPU.\n"
    assert accused(tmp_path, text.format("1.75")) == []
    assert len(accused(tmp_path, text.format("17"))) == 1


def test_a_bullet_speaks_of_the_one_that_it_stands_under(tmp_path):
    text = "# Tips\n\n1. **Use mixed precision (FP16)**\n   - Reduces memory by ~50%\n   - Faster on new cards\n"
    assert len(accused(tmp_path, text)) == 1
    apart = "# Tips\n\n- Use mixed precision (FP16)\n- A smaller batch reduces memory by ~50%\n"
    assert accused(tmp_path, apart) == []
