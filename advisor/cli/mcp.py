"""`advisor mcp`: offers planning, predicting and judging as tools of an assistant."""

from __future__ import annotations

from pathlib import Path

import click

from advisor.cli.verb import FOLDER


@click.command()
@click.option("--root", "roots", type=FOLDER, multiple=True, metavar="DIR",
              help="A folder whose logs may be read; repeat it for more. Default: the current folder.")  # fmt: skip
@click.option("--http", "port", type=click.IntRange(1, 65535), metavar="PORT",
              help="Answer over HTTP on this port of 127.0.0.1. Default: over stdin and stdout.")  # fmt: skip
def command(roots: tuple[Path, ...], port: int | None) -> None:
    """Serve an assistant by the Model Context Protocol: plan, predict, compare GPUs, explain, analyse, audit.

    The assistant starts this server itself: put `advisor mcp` into its settings. No tool starts runs or rents machines.
    """
    from advisor.mcp_server import serve

    serve(roots or (Path.cwd(),), port)
