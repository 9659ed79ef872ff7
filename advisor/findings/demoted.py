"""Findings that are notes whatever their detector says, until they are better: code → its score, the reason.

`make detectors` scores every finding on logs that nobody had seen; one that is wrong more than one time in five there
is listed here, and taken off again when its detector does better.
"""

DEMOTED: dict[str, str] = {
    "early_loss_jump": "wrong 2 of 3 times: a part of the loss, batches of unlike difficulty",
    "loss_noise": "wrong 1 of 4 times: the last row of one epoch",
    "plateau": "wrong 1 of 3 times: a part of the loss",
}
