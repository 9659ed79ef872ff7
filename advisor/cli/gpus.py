"""`advisor gpus`: the specifications of each GPU and its rental prices."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence

import click
from rich.console import RenderableType

from advisor.cli.params import GPUS
from advisor.cli.verb import answer, options, verb
from advisor.hardware.catalog import MOST_GPUS
from advisor.hardware.offers import (
    Offer,
    PricedGpus,
    ProviderOffers,
    offers_by_provider,
    priced_gpus,
    read_providers,
    rows_by_gpu,
    unpriced,
)
from advisor.report.gpu_rows import (
    OFFER_NUMBERS,
    card_facts,
    catalog_row,
    gpus_document,
    likely_words,
    offer_notes,
    offer_rows,
    refreshed_words,
)
from advisor.report.render import table


@verb()
@click.argument("gpu", required=False, type=GPUS)
@options("one_count", one_count={"most": MOST_GPUS, "help": "GPUs to rent. Default: 1, or the number in GPU (8xh100)."})
@click.option("--provider", help="Only this provider's prices.")
@click.option("--refresh", is_flag=True,
              help="Ask providers for today's prices first (10 s; needs the extra `prices`).")  # fmt: skip
def command(gpu: str | None, gpus: int | None, provider: str | None, refresh: bool) -> None:
    """List all GPUs with specifications and lowest on-demand price. With GPU, show all that is known about it.

    GPU is a key from the list, the driver's name, a short name like h100 or 8xh100, or several names (l4,8xh100). Rates
    are dense, without the factor of 2 for sparsity. Add GPUs of your own to gpus.csv under ADVISOR_HOME.
    """
    today, providers = datetime.date.today(), () if provider is None else read_providers((provider,))
    if refresh:
        # Renew the user's price cache, and print the result on stderr.
        from advisor.hardware.live_prices import refresh_prices

        first, *more = refreshed_words(refresh_prices(today))
        click.echo("\n  ".join((first, *more)), err=True)
    priced = priced_gpus(gpu, gpus, providers=providers, today=today)
    name, found = gpus_document(priced, today, providers)
    answer(name, lambda: found, lambda: _one(priced[0], providers, today) if name == "gpu" else _all(priced, providers))


def _one(one: PricedGpus, providers: Sequence[str], today: datetime.date) -> Iterator[RenderableType]:
    yield from (table(["", ""], card_facts(one.spec)), "")
    entries = offers_by_provider(one.spec.key, one.gpus, providers)
    yield from offers_shown(entries, unpriced(one.spec.key, one.gpus, providers), today)


def _all(priced: Sequence[PricedGpus], providers: Sequence[str]) -> Iterator[RenderableType]:
    counts, rows, today = {one.gpus for one in priced}, rows_by_gpu(), datetime.date.today()
    dollars = "$/h for all" if len(counts) > 1 else "$/h" if counts == {1} else f"$/h for {counts.pop()}"
    columns = ["gpu", "memory", "bandwidth", "bf16 dense", "PyTorch", dollars, "price from"]
    cells = [
        catalog_row(one.spec, one.offer or unpriced(one.spec.key, one.gpus, providers, rows), today) for one in priced
    ]
    if len(counts) > 1:
        cells = [[f"{one.gpus} x {cell[0]}", *cell[1:]] for one, cell in zip(priced, cells, strict=True)]
    yield table(columns, cells, right=columns[1:6])


def offers_shown(entries: Sequence[ProviderOffers], nobodys: Offer, today: datetime.date) -> Iterator[RenderableType]:
    """Return a table of offers with notes below it, because long notes would squeeze the numbers."""
    count = nobodys.gpus
    if rows := offer_rows(entries, today):
        title = f"on demand, for {count} GPU{'s' if count > 1 else ''}"
        yield table(list(rows[0]), [list(row.values()) for row in rows], title=title, right=OFFER_NUMBERS)
    else:
        yield f"price: unknown, {nobodys.source}{likely_words(nobodys)}"
    if notes := offer_notes(entries, count):
        yield ""
        yield from notes
