"""A check and a job that find and end the transactions that dead runs have left."""

from collections.abc import Iterator, Sequence

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    AssetCheckSpec,
    AssetKey,
    JobDefinition,
    MetadataValue,
    OpExecutionContext,
    TableMetadataValue,
    job,
    multi_asset_check,
    op,
)

from dagster_flinkpy.common.clock import datetime_of_millis
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.orchestration.dagster_internals import CoercibleToAssetKey
from dagster_flinkpy.orchestration.failure import flink_failures
from dagster_flinkpy.orchestration.sink_resources import LingeringTransaction, TwoPhaseCommitSinkResource, output_name
from dagster_flinkpy.orchestration.tables import table

__all__ = ["build_transaction_checks", "build_transactions_job"]

_CHECK = "lingering_transactions"


def build_transaction_checks(assets: Sequence[CoercibleToAssetKey], *, resource_key: str) -> AssetChecksDefinition:
    """Builds the check ``lingering_transactions`` of assets that write in transactions.

    It warns if a run has died and its transaction was neither committed nor aborted. The next run over the same
    partitions ends it, and so does the job of `build_transactions_job`.

    Args:
        assets: Keys of the assets.
        resource_key: The key of their `TwoPhaseCommitSinkResource`.

    Raises:
        ConfigurationError: There are no assets, or one has the name of another.
    """
    names = {key: output_name(key) for key in map(AssetKey.from_coercible, assets)}
    if not names:
        raise ConfigurationError("build_transaction_checks() needs the keys of the assets")
    description = "No transaction of a run that has ended is still open."
    specs = [AssetCheckSpec(_CHECK, asset=key, description=description) for key in names]

    @multi_asset_check(
        name=f"{_CHECK}_{resource_key}", specs=specs, required_resource_keys={resource_key}, can_subset=True
    )
    def lingering_transactions(context: AssetCheckExecutionContext) -> Iterator[AssetCheckResult]:
        with flink_failures(context.log):
            found = _resource(context, resource_key).lingering(context.instance)
        for check in sorted(context.selected_asset_check_keys):
            of_asset = [each for each in found if each.asset == names[check.asset_key]]
            yield AssetCheckResult(
                passed=not of_asset,
                asset_key=check.asset_key,
                check_name=check.name,
                severity=AssetCheckSeverity.WARN,
                metadata={"transactions": _table(of_asset)} if of_asset else {},
            )

    return lingering_transactions


def build_transactions_job(resource_keys: Sequence[str], *, name: str = "end_lingering_transactions") -> JobDefinition:
    """Builds a job that ends the transactions of runs that have ended.

    It commits those that had begun to commit, and aborts the others. It may run at any time, for example on a schedule.

    Args:
        resource_keys: The keys of the `TwoPhaseCommitSinkResource` of the deployment.
        name: The name of the job.
    """

    @op(name=f"{name}_op", required_resource_keys=set(resource_keys))
    def end(context: OpExecutionContext) -> None:
        ended = []
        for key in resource_keys:
            with flink_failures(context.log):
                ended += _resource(context, key).end_lingering(context.instance)
        for each in ended:
            context.log.info(
                f"{'committed' if each.is_committing else 'aborted'} transaction {each.token} of asset {each.asset!r} "
                f"into table {each.table!r}, of run {each.run_id}"
            )
        context.add_output_metadata({"transactions": _table(ended), "ended": MetadataValue.int(len(ended))})

    @job(name=name, description="Ends the transactions that dead runs have left.")
    def ending() -> None:
        end()

    return ending


def _resource(context: AssetCheckExecutionContext | OpExecutionContext, key: str) -> TwoPhaseCommitSinkResource:
    resource = getattr(context.resources, key)
    if not isinstance(resource, TwoPhaseCommitSinkResource):
        raise ConfigurationError(f"resource {key!r} is a {type(resource).__name__}, not a TwoPhaseCommitSinkResource")
    return resource


def _table(transactions: Sequence[LingeringTransaction]) -> TableMetadataValue:
    columns = ["asset", "table", "transaction", "partitions", "run", "began", "state"]
    rows = (
        (
            each.asset,
            each.table,
            str(each.token),
            "all" if each.partitions is None else ", ".join(each.partitions),
            each.run_id,
            datetime_of_millis(each.began_ms).isoformat(timespec="seconds"),
            "committing" if each.is_committing else "open",
        )
        for each in transactions
    )
    return table(dict.fromkeys(columns, "string"), rows)
