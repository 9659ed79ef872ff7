"""Pages under test do not hide faults of the program behind a sentence."""

import pytest


@pytest.fixture(autouse=True)
def faults_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no AdvisorError reaches the test driver, whose `exception` every test looks at."""
    monkeypatch.setenv("ADVISOR_DEBUG", "1")
