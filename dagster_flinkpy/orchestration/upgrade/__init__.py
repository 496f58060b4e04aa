"""Changes of a program, proved on the state and the input of its job before they are made."""

from dagster_flinkpy.orchestration.upgrade.proof import UpgradeReport, UpgradeVerdict, prove_upgrade
from dagster_flinkpy.orchestration.upgrade.row_difference import RowDifference
from dagster_flinkpy.orchestration.upgrade.upgrade import roll_back, switch_program

__all__ = ["RowDifference", "UpgradeReport", "UpgradeVerdict", "prove_upgrade", "roll_back", "switch_program"]
