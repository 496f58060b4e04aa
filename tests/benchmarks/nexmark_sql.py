"""The Nexmark queries in DuckDB's SQL, over views ``person``, ``auction`` and ``bid``."""

from __future__ import annotations

_STATISTICS = """
    count(*) AS all_bids,
    count(*) FILTER (price < 10000) AS rank1_bids,
    count(*) FILTER (price >= 10000 AND price < 1000000) AS rank2_bids,
    count(*) FILTER (price >= 1000000) AS rank3_bids,
    count(DISTINCT bidder) AS all_bidders,
    count(DISTINCT bidder) FILTER (price < 10000) AS rank1_bidders,
    count(DISTINCT bidder) FILTER (price >= 10000 AND price < 1000000) AS rank2_bidders,
    count(DISTINCT bidder) FILTER (price >= 1000000) AS rank3_bidders,
    count(DISTINCT auction) AS all_auctions,
    count(DISTINCT auction) FILTER (price < 10000) AS rank1_auctions,
    count(DISTINCT auction) FILTER (price >= 10000 AND price < 1000000) AS rank2_auctions,
    count(DISTINCT auction) FILTER (price >= 1000000) AS rank3_auctions,
    max(date_time // 60000 % 1440) AS minute
"""
_DAY = "CAST(epoch_ms(date_time) AS DATE)"

SQL = {
    "q0": "SELECT auction, bidder, price, date_time, extra FROM bid",
    "q1": "SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)) AS price, date_time, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": """
        SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')
    """,
    "q4": """
        SELECT category, CAST(sum(final) AS BIGINT) // count(*) AS final FROM (
            SELECT max(b.price) AS final, a.category FROM auction a JOIN bid b ON a.id = b.auction
            WHERE b.date_time BETWEEN a.date_time AND a.expires GROUP BY a.id, a.category
        ) GROUP BY category
    """,
    "q5": """
        WITH counts AS (
            SELECT auction, count(*) AS num, w.end AS window_end
            FROM bid, (SELECT unnest(range(0, 5)) AS i) AS n,
                LATERAL (SELECT date_time // 2000 * 2000 + 2000 + 2000 * n.i AS end) AS w
            GROUP BY ALL
        )
        SELECT auction, num, window_end FROM counts
        QUALIFY num = max(num) OVER (PARTITION BY window_end)
    """,
    "q7": """
        WITH highest AS (SELECT max(price) AS price, date_time // 10000 * 10000 + 10000 AS end FROM bid GROUP BY ALL)
        SELECT b.auction, b.bidder, b.price, b.date_time, b.extra FROM bid b JOIN highest h ON b.price = h.price
        WHERE b.date_time BETWEEN h.end - 10000 AND h.end
    """,
    "q8": """
        SELECT DISTINCT p.id, p.name, p.date_time // 10000 * 10000 AS window_start FROM person p JOIN auction a
        ON p.id = a.seller AND p.date_time // 10000 = a.date_time // 10000
    """,
    "q9": """
        SELECT a.*, b.auction, b.bidder, b.price, b.date_time AS bid_date_time, b.extra AS bid_extra
        FROM auction a JOIN bid b ON a.id = b.auction WHERE b.date_time BETWEEN a.date_time AND a.expires
        QUALIFY row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.date_time) = 1
    """,
    "q11": """
        WITH gaps AS (
            SELECT bidder, date_time, date_time - lag(date_time) OVER (PARTITION BY bidder ORDER BY date_time) AS gap
            FROM bid
        ), sessions AS (
            SELECT *, sum(CASE WHEN gap <= 10000 THEN 0 ELSE 1 END) OVER (
                PARTITION BY bidder ORDER BY date_time ROWS UNBOUNDED PRECEDING
            ) AS session FROM gaps
        )
        SELECT bidder, min(date_time) AS window_start, max(date_time) + 10000 AS window_end, count(*) AS count
        FROM sessions GROUP BY bidder, session
    """,
    "q14": """
        SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)) AS price,
            CASE WHEN hour BETWEEN 8 AND 18 THEN 'dayTime' WHEN hour <= 6 OR hour >= 20 THEN 'nightTime'
            ELSE 'otherTime' END AS time_type,
            date_time, extra, length(extra) - length(replace(extra, 'c', '')) AS letters
        FROM (SELECT *, date_time // 3600000 % 24 AS hour FROM bid)
        WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000
    """,
    "q15": f"SELECT {_DAY} AS day, {_STATISTICS} FROM bid GROUP BY 1",
    "q16": f"SELECT channel, {_DAY} AS day, {_STATISTICS} FROM bid GROUP BY 1, 2",
    "q17": f"""
        SELECT auction, {_DAY} AS day, count(*) AS bids, count(*) FILTER (price < 10000) AS rank1,
            count(*) FILTER (price >= 10000 AND price < 1000000) AS rank2,
            count(*) FILTER (price >= 1000000) AS rank3, min(price) AS least, max(price) AS greatest,
            CAST(sum(price) AS BIGINT) AS total, CAST(sum(price) AS BIGINT) // count(*) AS mean
        FROM bid GROUP BY 1, 2
    """,
    "q18": """
        SELECT * FROM bid QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC) = 1
    """,
    "q19": """
        SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC) AS rank FROM bid QUALIFY rank <= 10
    """,
    "q20": """
        SELECT b.auction, bidder, price, channel, url, b.date_time AS bid_date_time, b.extra AS bid_extra,
            item_name, description, initial_bid, reserve, a.date_time AS auction_date_time, expires, seller, category,
            a.extra AS auction_extra
        FROM bid b JOIN auction a ON b.auction = a.id WHERE category = 10
    """,
    "q21": r"""
        SELECT auction, bidder, price, channel,
            CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2'
            WHEN 'baidu' THEN '3' ELSE nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '') END AS channel_id
        FROM bid WHERE channel_id IS NOT NULL
    """,
    "q22": """
        SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1, split_part(url, '/', 5) AS dir2,
            split_part(url, '/', 6) AS dir3
        FROM bid
    """,
}
