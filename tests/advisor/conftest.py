"""The command line, called in this process."""

from __future__ import annotations

import pytest

from advisor.cli import main


@pytest.fixture
def call(capsys):
    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run
