"""Records in Dagster what the proof of an upgrade has found."""

from __future__ import annotations

import json
from collections.abc import Mapping

from dagster import (
    AssetCheckEvaluation,
    AssetCheckKey,
    AssetCheckResult,
    AssetCheckSeverity,
    AssetSpec,
    DagsterInstance,
    MetadataValue,
    OpExecutionContext,
)

from dagster_flinkpy.orchestration.dagster_internals import last_evaluation
from dagster_flinkpy.orchestration.tables import table
from dagster_flinkpy.orchestration.upgrade.proof import UpgradeReport
from dagster_flinkpy.orchestration.upgrade.row_difference import RowDifference

__all__ = ["SAME_ROWS", "found_last", "record_findings", "record_switch"]

SAME_ROWS = "same_rows"
"""Name of the asset check of each table."""


def found_last(instance: DagsterInstance, key: AssetCheckKey, job: str) -> AssetCheckResult:
    """Returns what the last proof of an upgrade has found, so that a run in between does not hide it.

    Args:
        instance: Where the evaluations are stored.
        key: The check ``same_rows`` of a table.
        job: Name of the job, for the text if no upgrade was proved.
    """
    found = last_evaluation(instance, key)
    return AssetCheckResult(
        passed=found is None or found.passed,
        asset_key=key.asset_key,
        check_name=key.name,
        severity=AssetCheckSeverity.ERROR if found is None else found.severity,
        description=f"no upgrade was proved yet: launch {job}_upgrade" if found is None else found.description,
        metadata={} if found is None else found.metadata,
    )


def record_switch(context: OpExecutionContext, specs: Mapping[str, AssetSpec], checkpoint_id: int) -> None:
    """Records that what the last proof has found is settled, for each table that has been looked at.

    Args:
        context: The step that has brought the job to another version.
        specs: The assets of the job, by uid.
        checkpoint_id: The checkpoint that the version continues from.
    """
    for spec in specs.values():
        if last_evaluation(context.instance, AssetCheckKey(spec.key, SAME_ROWS)) is not None:
            settled = f"the job has another version since checkpoint {checkpoint_id}"
            context.log_event(  # which takes more than its type says
                AssetCheckEvaluation(spec.key, SAME_ROWS, passed=True, metadata={}, description=settled)  # type: ignore[arg-type]
            )


def record_findings(context: OpExecutionContext, specs: Mapping[str, AssetSpec], report: UpgradeReport) -> None:
    """Records an evaluation of the check ``same_rows`` for each table, and the verdict as metadata of the step.

    Args:
        context: The step.
        specs: The assets of the job, by uid.
        report: What was found.
    """
    for found in report.tables:
        if (spec := specs.get(found.sink)) is not None:
            context.log_event(  # which takes more than its type says
                AssetCheckEvaluation(  # type: ignore[arg-type]
                    asset_key=spec.key,
                    check_name=SAME_ROWS,
                    passed=found.same and not report.problems,
                    severity=AssetCheckSeverity.WARN if report.problems else AssetCheckSeverity.ERROR,
                    description="; ".join(report.problems) or _description(found),
                    metadata={
                        "rows_before": found.before,
                        "rows_after": found.after,
                        "only_before": found.only_before,
                        "only_after": found.only_after,
                        "changed_keys": MetadataValue.null() if found.changed_keys is None else found.changed_keys,
                        "examples": table(
                            {"only": "string", "row": "string"},
                            (
                                (side, json.dumps(row, default=str))
                                for side, rows in (("before", found.examples_before), ("after", found.examples_after))
                                for row in rows
                            ),
                        ),
                    },
                )
            )
    counts = ("before", "after", "only_before", "only_after")
    context.add_output_metadata(
        {
            "verdict": report.verdict.value,
            "since_checkpoint": report.since,
            "epochs": report.epochs,
            "plan": MetadataValue.json(report.plan.to_json()),
            "tables": table(
                {"sink": "string", **dict.fromkeys(counts, "int")},
                ((found.sink, *(getattr(found, name) for name in counts)) for found in report.tables),
            ),
        }
    )


def _description(found: RowDifference) -> str:
    if found.same:
        return f"both versions have written the same {found.after:,} rows"
    before = f"{found.only_before:,} of {found.before:,} rows only before"
    return "; ".join((f"{before}, {found.only_after:,} of {found.after:,} only after", *found.columns))
