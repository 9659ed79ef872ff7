"""`advisor app`: the Streamlit app on this machine."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from pathlib import Path

import click

from advisor.errors import AdvisorError
from advisor.report import render

# Settings of .streamlit/config.toml in a checkout, for an installed package, which has no such file. 127.0.0.1 only:
# the app can start runs and read files with the rights of the person who started it.
_SERVER = {
    "server.address": "127.0.0.1",
    "server.headless": "true",
    "server.fileWatcherType": "none",
    "server.enableXsrfProtection": "true",
    "server.maxUploadSize": "200",
    "browser.gatherUsageStats": "false",
    "client.showErrorDetails": "none",
    "client.toolbarMode": "minimal",
    "theme.light.primaryColor": "#0072B2",
    "theme.dark.primaryColor": "#1B78BA",
}


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), default=8501, show_default=True, help="On 127.0.0.1.")
def command(port: int) -> None:
    """Open the app in the browser: plan, calibrate, launch, watch, compare, analyse. Only this machine can reach it."""
    if importlib.util.find_spec("streamlit") is None or importlib.util.find_spec("altair") is None:
        raise AdvisorError("the app's packages are not installed", "pip install 'training-advisor[app]'")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that a server has just left is free
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            hint = f"does the app run already, at http://127.0.0.1:{port}? Else: advisor app --port {port % 65535 + 1}"
            raise AdvisorError(f"port {port} of 127.0.0.1 cannot be used: {error.strerror}", hint) from error
    frame = Path(__file__).resolve().parents[1] / "ui" / "frame.py"
    options = [part for name, value in _SERVER.items() for part in (f"--{name}", value)]
    render.remark(f"the app is at http://127.0.0.1:{port} (Ctrl-C ends it; runs continue)")
    command = [sys.executable, "-m", "advisor.ui.serve", str(frame), "--server.port", str(port), *options]
    os.execv(sys.executable, command)
