"""What an asset has besides what the program says: owners, tags and the like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dagster import AssetKey, AutomationCondition, FreshnessPolicy

__all__ = ["OperatorAttributes"]


@dataclass(frozen=True)
class OperatorAttributes:
    """What the asset of an operator has, besides what the program says. Its description is ``set_description()``."""

    group_name: str | None = None
    owners: Sequence[str] = ()
    """Mail addresses, or teams as ``team:name``."""
    tags: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Further metadata of the definition."""
    freshness_policy: FreshnessPolicy | None = None
    """How old its last materialization may be. Checkpoints that change no table do not materialize it."""
    automation_condition: AutomationCondition[AssetKey] | None = None
    """When it is materialized, and with it the whole job."""

    def over(self, others: OperatorAttributes) -> OperatorAttributes:
        """Returns these attributes, and others where there are none. Tags and metadata are added to the others'."""
        return OperatorAttributes(
            self.group_name or others.group_name,
            self.owners or others.owners,
            {**others.tags, **self.tags},
            {**others.metadata, **self.metadata},
            self.freshness_policy or others.freshness_policy,
            self.automation_condition or others.automation_condition,
        )
