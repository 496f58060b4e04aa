"""Runs the code of the benchmark of sources on a few rows. The measured values mean nothing."""

from __future__ import annotations

from benchmarks import sources


def test_sources() -> None:
    lines = sources.run(rows=100)
    assert {each["metric"] for each in lines if each["unit"] == "rows/s"} == {
        "sources.csv_rows_per_s",
        "sources.json_rows_per_s",
    }
    assert all(each["value"] > 0 for each in lines)
