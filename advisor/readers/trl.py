"""TRL (SFT, DPO, GRPO …): the Hugging Face Trainer's dictionaries with rewards, log-probabilities or token accuracies.

The loss is that of the method: DPO begins at ln 2 = 0.693, GRPO near 0; neither is a cross entropy.
"""

from __future__ import annotations

from advisor.readers.hugging_face import FACTS, NOTES, ROWS, SIGNS, row_with
from advisor.readers.line_format import LineFormat, Sign

FORMAT = LineFormat(
    name="trl",
    framework="TRL",
    rows=(
        row_with(rb"'rewards/chosen'|'logps/", {"loss_unit": "preference"}),
        row_with(rb"'completions/|'reward'|'objective/", {"loss_unit": "policy gradient"}),
        row_with(rb"'mean_token_accuracy'"),
        *ROWS,
    ),
    facts=FACTS,
    signs=(Sign(pattern=rb"\btrl/trainer/|\b(?:SFT|DPO|GRPO|KTO|ORPO|PPO)(?:Trainer|Config)\b", weight=0.6), *SIGNS),
    notes=NOTES,
    steps_by_bar=True,
)
