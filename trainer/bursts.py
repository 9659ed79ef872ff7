"""`python -m trainer.bursts` runs `trainer.worker` in an environment that is set before torch loads."""

from __future__ import annotations

from trainer.threads import share_cores


def main() -> None:
    """Answer burst requests until standard input ends."""
    share_cores()
    from trainer.worker import main as answer_requests  # torch reads the environment when it loads

    answer_requests()


if __name__ == "__main__":
    main()
