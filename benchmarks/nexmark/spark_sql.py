"""The Nexmark queries in Spark Structured Streaming, for streaming views ``person``, ``auction`` and ``bid``.

Spark cannot run the others on streams: q4 and q9 aggregate a join without windows, q15 and q16 count what is distinct,
and q19 ranks rows.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.nexmark import flink_sql
from benchmarks.nexmark.peer import Peer

__all__ = ["SPARK"]

_EUROS = "CAST(0.908 * price AS DECIMAL(23, 3))"
_WINDOW = "window(rt, '10 seconds')"

_SQL = {
    **{name: flink_sql.SQL[name] for name in ("q0", "q2", "q3", "q20")},
    "q1": f"SELECT auction, bidder, {_EUROS} AS price, date_time, extra FROM bid",
    "q5": """
        SELECT each.auction, each.num, unix_millis(window.end) AS window_end FROM (
            SELECT explode(filter(counts, c -> c.num = most)) AS each, window FROM (
                SELECT window, max(num) AS most, collect_list(struct(auction, num)) AS counts FROM (
                    SELECT auction, count(*) AS num, window(rt, '10 seconds', '2 seconds') AS window FROM bid
                    GROUP BY auction, window(rt, '10 seconds', '2 seconds')
                ) GROUP BY window
            )
        )
    """,
    "q7": f"""
        SELECT b.auction, b.bidder, b.price, b.date_time, b.extra FROM bid b JOIN (
            SELECT highest, window_time(window) AS last FROM (
                SELECT max(price) AS highest, {_WINDOW} AS window FROM bid GROUP BY {_WINDOW}
            )
        ) m ON b.price = m.highest AND b.rt BETWEEN m.last - INTERVAL 10 SECONDS AND m.last + INTERVAL 1 MILLISECOND
    """,
    "q8": f"""
        SELECT p.id, p.name, unix_millis(p.window.start) AS window_start
        FROM (SELECT id, name, {_WINDOW} AS window FROM person GROUP BY id, name, {_WINDOW}) p
        JOIN (SELECT seller, {_WINDOW} AS window FROM auction GROUP BY seller, {_WINDOW}) a
        ON p.id = a.seller AND p.window = a.window
    """,
    "q11": """
        SELECT bidder, unix_millis(session.start) AS window_start, unix_millis(session.end) AS window_end, `count`
        FROM (
            SELECT bidder, session_window(rt, '10 seconds') AS session, count(*) AS `count` FROM bid
            GROUP BY bidder, session_window(rt, '10 seconds')
        )
    """,
    "q12": """
        SELECT bidder, unix_millis(window.start) AS window_start, unix_millis(window.end) AS window_end, `count` FROM (
            SELECT bidder, window(now, '10 seconds') AS window, count(*) AS `count`
            FROM (SELECT bidder, current_timestamp() AS now FROM bid) GROUP BY bidder, window(now, '10 seconds')
        )
    """,
    "q14": f"""
        SELECT auction, bidder, price,
            CASE WHEN h >= 8 AND h <= 18 THEN 'dayTime' WHEN h <= 6 OR h >= 20 THEN 'nightTime' ELSE 'otherTime' END
                AS time_type,
            date_time, extra, length(extra) - length(replace(extra, 'c', '')) AS letters
        FROM (
            SELECT auction, bidder, {_EUROS} AS price, date_time, extra, hour(timestamp_millis(date_time)) AS h FROM bid
        ) WHERE price > 1000000 AND price < 50000000
    """,
    "q17": """
        SELECT auction, `day`, bids, rank1, rank2, rank3, least, greatest, total, total DIV bids AS mean FROM (
            SELECT auction, to_date(timestamp_millis(date_time)) AS `day`, count(*) AS bids,
                count_if(price < 10000) AS rank1, count_if(price >= 10000 AND price < 1000000) AS rank2,
                count_if(price >= 1000000) AS rank3, min(price) AS least, max(price) AS greatest, sum(price) AS total
            FROM bid GROUP BY auction, to_date(timestamp_millis(date_time))
        )
    """,
    "q18": """
        SELECT last.* FROM (
            SELECT max_by(struct(auction, bidder, price, channel, url, date_time, extra), date_time) AS last
            FROM bid GROUP BY bidder, auction
        )
    """,
    "q21": r"""
        SELECT * FROM (
            SELECT auction, bidder, price, channel,
                CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2'
                WHEN 'baidu' THEN '3' ELSE nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '') END
                AS channel_id
            FROM bid
        ) WHERE channel_id IS NOT NULL
    """,
    "q22": """
        SELECT auction, bidder, price, channel, parts[3] AS dir1, parts[4] AS dir2, parts[5] AS dir3
        FROM (SELECT *, split(url, '/') AS parts FROM bid)
    """,
}

SPARK = Peer(
    "spark",
    "Spark Structured Streaming",
    Path(__file__).with_name("spark_program.py"),
    lambda: Path(sys.executable),
    _SQL,
    {
        "spark.driver.memory": "4g",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        # A row is then written without a look at the one before it, which only the number of rows needs.
        "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    },
    in_batches=True,
    bar=5,
    closed_only={"q5": "window_end", "q7": "date_time", "q8": "window_start", "q11": "window_end"},
)
