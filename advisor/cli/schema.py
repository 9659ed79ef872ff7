"""`advisor schema`: prints the JSON Schema of a document under --json, or of a file."""

from __future__ import annotations

import json

import click

from advisor.cli.verb import answer, verb
from advisor.documents import schema_of, shipped
from advisor.report.render import table


@verb("schema")
@click.argument("name", required=False)
def command(name: str | None) -> None:
    """Print the JSON Schema of NAME: a document, named by its field `document`, or a file, e.g. plan.yaml.

    Without NAME all names are listed. A document's number (`document_schema`) changes whenever its schema does.
    """
    if name is not None:
        click.echo(json.dumps(schema_of(name), indent=2, ensure_ascii=False))
        return
    versions = {known: entry["version"] for known, entry in shipped()["documents"].items()}
    listed = [{"name": known, "version": number} for known, number in versions.items()]
    rows = [(known, str(number)) for known, number in versions.items()]
    answer("schemas", lambda: {"schemas": listed}, lambda: [table(("document", "schema"), rows, right=("schema",))])
