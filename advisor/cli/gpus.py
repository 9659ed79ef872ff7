"""`advisor gpus`: the specifications of each GPU and its rental prices."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence

import click
from rich.console import RenderableType

from advisor.cli.verb import GPUS, answer, options, verb
from advisor.hardware import offers
from advisor.hardware.catalog import MOST_GPUS
from advisor.hardware.offers import Offer, ProviderOffers, unpriced
from advisor.report import gpu_rows
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
    today, providers = datetime.date.today(), () if provider is None else offers.read_providers((provider,))
    if refresh:
        # Renew the user's price cache, and print the result on stderr.
        from advisor.hardware.live_prices import refresh_prices

        first, *more = gpu_rows.refreshed_words(refresh_prices(today))
        click.echo("\n  ".join((first, *more)), err=True)
    priced = offers.priced_gpus(gpu, gpus, providers=providers, today=today)
    name, document = gpu_rows.gpus_document(priced, today, providers)

    def shown() -> Iterator[RenderableType]:
        if len(priced) == 1:
            yield from (table(["", ""], gpu_rows.card_facts(priced[0].spec)), "")
            requested = priced[0].spec.key, priced[0].gpus, providers
            yield from offers_shown(offers.offers_by_provider(*requested), unpriced(*requested), today)
            return
        counts = {one.gpus for one in priced}
        dollars = "$/h for all" if len(counts) > 1 else "$/h" if counts == {1} else f"$/h for {min(counts)}"
        columns = ["gpu", "memory", "bandwidth", "bf16 dense", "PyTorch", dollars, "price from"]
        cells = []
        for one in priced:
            key, *rest = gpu_rows.catalog_row(one.spec, one.offer or unpriced(one.spec.key, one.gpus, providers), today)
            cells.append([f"{one.gpus} x {key}" if len(counts) > 1 else key, *rest])
        yield table(columns, cells, right=columns[1:6])

    answer(name, lambda: document, shown)


def offers_shown(entries: Sequence[ProviderOffers], nobodys: Offer, today: datetime.date) -> Iterator[RenderableType]:
    """Return a table of offers with notes below it, because long notes would squeeze the numbers."""
    count = nobodys.gpus
    if rows := gpu_rows.offer_rows(entries, today):
        title = f"on demand, for {count} GPU{'s' if count > 1 else ''}"
        yield table(list(rows[0]), [list(row.values()) for row in rows], title=title, right=gpu_rows.OFFER_NUMBERS)
    else:
        yield f"price: unknown, {nobodys.source}{gpu_rows.likely_words(nobodys)}"
    if notes := gpu_rows.offer_notes(entries, count):
        yield ""
        yield from notes
