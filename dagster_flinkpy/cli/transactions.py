"""``flinkpy transactions``: lists and aborts the transactions of plain assets."""

from __future__ import annotations

import json

import click
from rich.markup import escape

from dagster_flinkpy.cli.common import endpoint_url_option, json_option
from dagster_flinkpy.cli.terminal import console_of_width, plain_table, time_of
from dagster_flinkpy.common.clock import datetime_of_millis
from dagster_flinkpy.connectors.commit.output_ledger import OutputLedger, TransactionRecord
from dagster_flinkpy.orchestration.outputs.output_transaction import abort_transactions
from dagster_flinkpy.storage import StorageLocation

__all__ = ["transactions"]


@click.group()
def transactions() -> None:
    """List or abort the open transactions of assets.

    DIR is the url of the TwoPhaseCommitSinkResource.
    """


@transactions.command("list")
@click.argument("directory", metavar="DIR")
@json_option("the transactions")
@endpoint_url_option
def list_transactions(directory: str, endpoint_url: str | None, as_json: bool) -> None:
    """List the transactions under DIR that have begun and have not ended."""
    location = StorageLocation(directory, endpoint_url)
    if not location.open().root_exists():
        raise click.ClickException(f"there is no folder {directory}; give the url of the TwoPhaseCommitSinkResource")
    found = _found(location)
    if as_json:
        click.echo(json.dumps([_facts(*each) for each in found], indent=2))
        return
    if not found:
        click.echo(f"no open transactions in {directory}")
        return
    table = plain_table("table", "asset", "#transaction", "partitions", "run", "began", "state")
    for ledger, record in found:
        partitions = "all" if record.partitions is None else ", ".join(record.partitions)
        began = time_of(datetime_of_millis(record.began_ms))
        row = [ledger.table, ledger.asset, str(record.token), partitions, record.run_id, began, _state(record)]
        table.add_row(*(escape(each) for each in row))
    console_of_width().print(table)
    if any(record.is_committing for _, record in found):
        click.echo(
            "committing: if its run has ended, the next run over these partitions finishes it, or the job of "
            "build_transactions_job()"
        )


@transactions.command("abort")
@click.argument("directory", metavar="DIR")
@click.option("--asset", required=True, metavar="KEY", help="The asset, such as shop/orders.")
@click.option("--table", required=True, metavar="NAME", help="The table.")
@click.option("--transaction", "token", type=int, metavar="N", help="The transaction. Default: all of them.")
@json_option("the transactions that were aborted")
@endpoint_url_option
def abort(directory: str, asset: str, table: str, token: int | None, endpoint_url: str | None, as_json: bool) -> None:
    """Abort open transactions of an asset under DIR, and delete what they have staged.

    If its run is alive, it fails when it commits. A transaction that has begun to commit is not aborted: the next one
    commits it.
    """
    location = StorageLocation(directory, endpoint_url)
    ledger = OutputLedger(location.open(), asset, table)
    chosen = {each.token: each for each in ledger.read().transactions if token in (None, each.token)}
    if not chosen:
        raise click.ClickException(f"asset {asset!r} has no such transaction into table {table!r} in {directory}")
    aborted = abort_transactions(ledger, location.child(table).open(), set(chosen))
    if as_json:
        click.echo(json.dumps([_facts(ledger, chosen[each]) for each in sorted(aborted)], indent=2))
    else:
        click.echo(f"aborted: {', '.join(map(str, sorted(aborted))) or 'none'}")
    if left := sorted(set(chosen) - aborted):
        raise click.ClickException(
            f"being committed, so not aborted: {', '.join(map(str, left))}. The next transaction over its partitions "
            "commits it, or the job of build_transactions_job()"
        )


def _found(location: StorageLocation) -> list[tuple[OutputLedger, TransactionRecord]]:
    return [(ledger, each) for ledger in OutputLedger.all(location.open()) for each in ledger.read().transactions]


def _facts(ledger: OutputLedger, record: TransactionRecord) -> dict[str, object]:
    return {
        "table": ledger.table,
        "asset": ledger.asset,
        "transaction": record.token,
        "partitions": record.partitions,
        "run": record.run_id,
        "began": datetime_of_millis(record.began_ms).isoformat(timespec="seconds"),
        "state": _state(record),
    }


def _state(record: TransactionRecord) -> str:
    return "committing" if record.is_committing else "open"
