"""The code location loads, and has the expected definitions."""

import dagster as dg

from shop.definitions import defs
from shop.pipeline import TABLES


def test_the_definitions_can_be_loaded():
    dg.Definitions.validate_loadable(defs)
    assert "shop_savepoint" in {job.name for job in defs.resolve_all_job_defs()}
    keys = {key.path[-1] for key in defs.resolve_all_asset_keys()}
    assert {"orders", "payments", "clicks", "paid_orders", "sessions", "top_products"} <= keys
    assert {f"{table}_table" for table in TABLES} <= keys
