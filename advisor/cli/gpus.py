"""`advisor gpus`: the specifications of each GPU, and what renting it costs."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence

import click
from rich.console import RenderableType

from advisor.cli.params import GPU
from advisor.cli.verb import answer, options, verb
from advisor.hardware.catalog import MOST_GPUS, GpuSpec, load_gpus, read_gpus, require_gpu
from advisor.hardware.offers import (
    Offer,
    ProviderOffers,
    cheapest_offer,
    check_providers,
    offers_by_provider,
    rows_by_gpu,
    unpriced,
)
from advisor.report.cards import (
    OFFER_NUMBERS,
    card_facts,
    catalog_row,
    document,
    offer_notes,
    offer_rows,
    price_document,
    refreshed_words,
)
from advisor.report.render import table


@verb()
@click.argument("gpu", required=False, type=GPU)
@options("one_count", one_count={"most": MOST_GPUS, "help": "GPUs to rent. Default: 1, or as 8xh100 says."})
@click.option("--provider", help="Only this provider's prices.")
@click.option("--refresh", is_flag=True,
              help="Ask providers for today's prices first (10 s; needs the extra `prices`).")  # fmt: skip
def command(gpu: str | None, gpus: int | None, provider: str | None, refresh: bool) -> None:
    """List GPU specifications and their cheapest on-demand price; with GPU, everything known of that GPU.

    GPU is a key from the list, the driver's name, or a short name as h100 or 8xh100. Rates are dense, without the
    factor of 2 for sparsity. Add GPUs of your own to gpus.csv under ADVISOR_HOME.
    """
    today, providers = datetime.date.today(), () if provider is None else (provider,)
    if refresh:
        # Renew the user's price cache, and say on stderr what came of it.
        from advisor.hardware.live_prices import refresh_prices

        first, *more = refreshed_words(refresh_prices(today))
        click.echo("\n  ".join((first, *more)), err=True)
    check_providers(providers)
    if gpu is not None:
        named = read_gpus(gpu)
        _show_one(require_gpu(named.key), gpus or named.count or 1, providers, today)
        return
    count, rows, specs = gpus or 1, rows_by_gpu(), list(load_gpus().values())
    offers = [cheapest_offer(spec.key, count, providers=providers, rows=rows) for spec in specs]

    def shown() -> Iterator[RenderableType]:
        dollars = "$/h" if count == 1 else f"$/h for {count}"
        columns = ["gpu", "memory", "bandwidth", "bf16 dense", "PyTorch", dollars, "price from"]
        pairs = zip(specs, offers, strict=True)
        cells = [catalog_row(spec, offer or unpriced(spec.key, count, providers, rows), today) for spec, offer in pairs]
        yield table(columns, cells, right=columns[1:6])

    documents = (document(spec, offer, today) for spec, offer in zip(specs, offers, strict=True))
    answer("gpus", lambda: {"gpus": list(documents)}, shown)


def _show_one(spec: GpuSpec, count: int, providers: Sequence[str], today: datetime.date) -> None:
    entries = offers_by_provider(spec.key, count, providers)
    best, none = cheapest_offer(spec.key, count, providers=providers), unpriced(spec.key, count, providers)
    prices = [price for entry in entries if (price := price_document(entry, today))]
    answer(
        "gpu",
        lambda: document(spec, best, today) | {"prices": prices},
        lambda: [table(["", ""], card_facts(spec)), "", *offers_shown(entries, none, today)],
    )


def offers_shown(entries: Sequence[ProviderOffers], nobodys: Offer, today: datetime.date) -> Iterator[RenderableType]:
    """A table of offers, and what is to be known of them below it: long notes would squeeze the numbers."""
    count = nobodys.gpus
    if rows := offer_rows(entries, today):
        title = f"on demand, for {count} GPU{'s' if count > 1 else ''}"
        yield table(list(rows[0]), [list(row.values()) for row in rows], title=title, right=OFFER_NUMBERS)
    else:
        yield f"price: unknown, {nobodys.source}"
    if notes := offer_notes(entries, count):
        yield ""
        yield from notes
