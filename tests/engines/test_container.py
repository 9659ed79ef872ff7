"""The image of the Dockerfile, built by buildah where it is installed and the base image is there or can be pulled."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IMAGE = "localhost/training-advisor-test"
SETTINGS = {"STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}  # what needs neither a mount nor a daemon


def buildah(*words: object, seconds: float = 120) -> subprocess.CompletedProcess[str]:
    command, environment = ["buildah", *map(str, words)], {**os.environ, **SETTINGS}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds, cwd=ROOT)


@pytest.fixture
def container():
    """A container of the light image; the image and the container are removed afterwards."""
    if shutil.which("buildah") is None:
        pytest.skip("buildah is not installed: the image is not built")
    base = re.search(r"^FROM (\S+) AS light", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)[1]
    begun = buildah("from", base)  # pulled where it is not there
    if begun.returncode:
        pytest.skip(f"{base} cannot be pulled here: the image is not built")
    buildah("rm", begun.stdout.strip())
    options = ("--network", "host", "--pull=never", "--target", "light", "--tag", IMAGE)
    built = buildah("build", *options, ".", seconds=900)
    assert built.returncode == 0, built.stderr[-2000:]
    name = buildah("from", "--pull=never", IMAGE).stdout.strip()
    yield name
    buildah("rm", name)
    buildah("rmi", IMAGE)


def test_the_image_plans_as_its_own_user_and_keeps_what_it_stores_in_data(container):
    inspected = json.loads(buildah("inspect", "--type", "image", IMAGE).stdout)["OCIv1"]["config"]
    assert (inspected["Entrypoint"], inspected["User"]) == (["advisor"], "1000")
    assert list(inspected["Volumes"]) == ["/data"] and "ADVISOR_HOME=/data" in inspected["Env"]
    run = ("run", container, "--")
    planned = buildah(*run, "advisor", "plan", "--gpu", "any", "--budget", "20", "--synthetic", "--json")
    assert planned.returncode == 0, planned.stderr
    assert 0 < json.loads(planned.stdout)["chosen"]["bill"]["cost_usd"]["value"] <= 20
    assert buildah(*run, "python", "-c", "import torch").returncode == 1  # it is the other target's
    stored = buildah(*run, "sh", "-c", "id -u && touch /data/here")
    assert (stored.returncode, stored.stdout.strip()) == (0, "1000")
