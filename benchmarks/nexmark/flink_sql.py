"""The Nexmark queries in Flink SQL, for tables ``person``, ``auction`` and ``bid`` with event time ``rt``."""

from __future__ import annotations

from pathlib import Path

from benchmarks.nexmark.peer import Peer
from benchmarks.peers import flink

__all__ = ["FLINK_SQL", "SQL"]

_STATISTICS = """
    max(HOUR(CAST(rt AS TIMESTAMP(3))) * 60 + MINUTE(CAST(rt AS TIMESTAMP(3)))) AS `minute`,
    count(*) AS all_bids,
    count(*) FILTER (WHERE price < 10000) AS rank1_bids,
    count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
    count(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
    count(DISTINCT bidder) AS all_bidders,
    count(DISTINCT bidder) FILTER (WHERE price < 10000) AS rank1_bidders,
    count(DISTINCT bidder) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bidders,
    count(DISTINCT bidder) FILTER (WHERE price >= 1000000) AS rank3_bidders,
    count(DISTINCT auction) AS all_auctions,
    count(DISTINCT auction) FILTER (WHERE price < 10000) AS rank1_auctions,
    count(DISTINCT auction) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_auctions,
    count(DISTINCT auction) FILTER (WHERE price >= 1000000) AS rank3_auctions
"""
_DAY = "DATE_FORMAT(rt, 'yyyy-MM-dd')"
_BID = "auction, bidder, price, channel, url, date_time, extra"
_HOPS = """
    SELECT auction, count(*) AS num, window_start, window_end
    FROM TABLE(HOP(TABLE bid, DESCRIPTOR(rt), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
    GROUP BY auction, window_start, window_end
"""

SQL = {
    "q0": "SELECT auction, bidder, price, date_time, extra FROM bid",
    "q1": "SELECT auction, bidder, 0.908 * price AS price, date_time, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0",
    "q3": """
        SELECT p.name, p.city, p.state, a.id FROM auction a INNER JOIN person p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')
    """,
    "q4": """
        SELECT category, AVG(final) AS final FROM (
            SELECT MAX(b.price) AS final, a.category FROM auction a JOIN bid b ON a.id = b.auction
            WHERE b.date_time BETWEEN a.date_time AND a.expires GROUP BY a.id, a.category
        ) GROUP BY category
    """,
    "q5": f"""
        SELECT c.auction, c.num, c.window_end FROM ({_HOPS}) c JOIN (
            SELECT max(num) AS most, window_start, window_end FROM ({_HOPS}) GROUP BY window_start, window_end
        ) m ON c.window_start = m.window_start AND c.window_end = m.window_end AND c.num >= m.most
    """,
    "q7": """
        SELECT b.auction, b.bidder, b.price, b.date_time, b.extra FROM bid b JOIN (
            SELECT MAX(price) AS highest, window_end
            FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(rt), INTERVAL '10' SECOND)) GROUP BY window_start, window_end
        ) m ON b.price = m.highest
        WHERE CAST(b.rt AS TIMESTAMP(3)) BETWEEN m.window_end - INTERVAL '10' SECOND AND m.window_end
    """,
    "q8": """
        SELECT p.id, p.name, p.window_start FROM (
            SELECT id, name, window_start, window_end
            FROM TABLE(TUMBLE(TABLE person, DESCRIPTOR(rt), INTERVAL '10' SECOND))
            GROUP BY id, name, window_start, window_end
        ) p JOIN (
            SELECT seller, window_start, window_end
            FROM TABLE(TUMBLE(TABLE auction, DESCRIPTOR(rt), INTERVAL '10' SECOND))
            GROUP BY seller, window_start, window_end
        ) a ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end
    """,
    "q9": """
        SELECT id, item_name, description, initial_bid, reserve, date_time, expires, seller, category, extra,
            auction, bidder, price, bid_date_time, bid_extra
        FROM (
            SELECT a.*, b.auction, b.bidder, b.price, b.date_time AS bid_date_time, b.extra AS bid_extra,
                ROW_NUMBER() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.date_time ASC) AS place
            FROM auction a, bid b WHERE a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires
        ) WHERE place <= 1
    """,
    "q11": """
        SELECT bidder, window_start, window_end, count(*) AS `count`
        FROM TABLE(SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(rt), INTERVAL '10' SECOND))
        GROUP BY bidder, window_start, window_end
    """,
    "q12": """
        SELECT bidder, window_start, window_end, count(*) AS `count`
        FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(proc), INTERVAL '10' SECOND))
        GROUP BY bidder, window_start, window_end
    """,
    "q14": """
        SELECT auction, bidder, 0.908 * price AS price,
            CASE WHEN h >= 8 AND h <= 18 THEN 'dayTime' WHEN h <= 6 OR h >= 20 THEN 'nightTime' ELSE 'otherTime' END
                AS time_type,
            date_time, extra, CHAR_LENGTH(extra) - CHAR_LENGTH(REPLACE(extra, 'c', '')) AS letters
        FROM (SELECT *, HOUR(CAST(rt AS TIMESTAMP(3))) AS h FROM bid)
        WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000
    """,
    "q15": f"SELECT {_DAY} AS `day`, {_STATISTICS} FROM bid GROUP BY {_DAY}",
    "q16": f"SELECT channel, {_DAY} AS `day`, {_STATISTICS} FROM bid GROUP BY channel, {_DAY}",
    "q17": f"""
        SELECT auction, {_DAY} AS `day`, count(*) AS bids,
            count(*) FILTER (WHERE price < 10000) AS rank1,
            count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2,
            count(*) FILTER (WHERE price >= 1000000) AS rank3,
            min(price) AS least, max(price) AS greatest, sum(price) AS total, avg(price) AS mean
        FROM bid GROUP BY auction, {_DAY}
    """,
    "q18": f"""
        SELECT {_BID} FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY rt DESC) AS place FROM bid
        ) WHERE place <= 1
    """,
    "q19": f"""
        SELECT {_BID}, `rank` FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC) AS `rank` FROM bid
        ) WHERE `rank` <= 10
    """,
    "q20": """
        SELECT b.auction, bidder, price, channel, url, b.date_time AS bid_date_time, b.extra AS bid_extra,
            item_name, description, initial_bid, reserve, a.date_time AS auction_date_time, expires, seller, category,
            a.extra AS auction_extra
        FROM bid b INNER JOIN auction a ON b.auction = a.id WHERE a.category = 10
    """,
    "q21": r"""
        SELECT * FROM (
            SELECT auction, bidder, price, channel,
                CASE LOWER(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2'
                WHEN 'baidu' THEN '3' ELSE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2) END AS channel_id
            FROM bid
        ) WHERE channel_id IS NOT NULL
    """,
    "q22": """
        SELECT auction, bidder, price, channel, SPLIT_INDEX(url, '/', 3) AS dir1, SPLIT_INDEX(url, '/', 4) AS dir2,
            SPLIT_INDEX(url, '/', 5) AS dir3
        FROM bid
    """,
}


FLINK_SQL = Peer(
    "flink_sql",
    "Flink SQL, state on the heap",
    Path(__file__).with_name("flink_program.py"),
    flink.python,
    SQL,
    # What "Performance Tuning" in Flink's documentation advises.
    {
        **flink.sql_settings("hashmap"),
        "table.optimizer.distinct-agg.split.enabled": "true",
        "taskmanager.memory.task.heap.size": "4g",
        "JVM_ARGS": "-Xmx8g",
    },
    in_batches=False,
    bar=1,
    mean_bar=2,
)
