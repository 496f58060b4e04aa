"""Records in Dagster what the proof of an upgrade has found."""

from __future__ import annotations

import json
from collections.abc import Mapping

from dagster import (
    AssetCheckEvaluation,
    AssetCheckSeverity,
    AssetSpec,
    MetadataValue,
    OpExecutionContext,
    TableColumn,
    TableMetadataValue,
    TableRecord,
    TableSchema,
)

from dagster_flinkpy.orchestration.upgrade.row_difference import RowDifference
from dagster_flinkpy.orchestration.upgrade.upgrade import UpgradeReport

__all__ = ["SAME_ROWS", "record_findings"]

SAME_ROWS = "same_rows"
"""Name of the asset check of each table."""


def record_findings(context: OpExecutionContext, specs: Mapping[str, AssetSpec], report: UpgradeReport) -> None:
    """Records an evaluation of the check ``same_rows`` for each table, and the verdict as metadata of the step.

    Args:
        context: The step.
        specs: The assets of the job, by uid.
        report: What was found.
    """
    for table in report.tables:
        if (spec := specs.get(table.sink)) is not None:
            context.log_event(  # which takes more than its type says
                AssetCheckEvaluation(  # type: ignore[arg-type]
                    asset_key=spec.key,
                    check_name=SAME_ROWS,
                    passed=table.same and not report.problems,
                    severity=AssetCheckSeverity.WARN if report.problems else AssetCheckSeverity.ERROR,
                    description="; ".join(report.problems) or _description(table),
                    metadata={
                        "rows_before": table.before,
                        "rows_after": table.after,
                        "only_before": table.only_before,
                        "only_after": table.only_after,
                        "changed_keys": MetadataValue.null() if table.changed_keys is None else table.changed_keys,
                        "examples": _examples(table),
                    },
                )
            )
    context.add_output_metadata(
        {
            "verdict": report.verdict.value,
            "since_checkpoint": report.since,
            "epochs": report.epochs,
            "plan": MetadataValue.json(report.plan.to_json()),
            "tables": _tables(report),
        }
    )


def _description(table: RowDifference) -> str:
    if table.same:
        return f"both versions have written the same {table.after:,} rows"
    before = f"{table.only_before:,} of {table.before:,} rows only before"
    return "; ".join((f"{before}, {table.only_after:,} of {table.after:,} only after", *table.columns))


def _examples(table: RowDifference) -> TableMetadataValue:
    rows = [("before", row) for row in table.examples_before] + [("after", row) for row in table.examples_after]
    records = [TableRecord({"only": side, "row": json.dumps(row, default=str)}) for side, row in rows]
    return MetadataValue.table(records, TableSchema([TableColumn("only", "string"), TableColumn("row", "string")]))


def _tables(report: UpgradeReport) -> TableMetadataValue:
    counts = ("before", "after", "only_before", "only_after")
    records = [
        TableRecord({"sink": table.sink, **{name: getattr(table, name) for name in counts}}) for table in report.tables
    ]
    columns = [TableColumn("sink", "string"), *(TableColumn(name, "int") for name in counts)]
    return MetadataValue.table(records, TableSchema(columns))
