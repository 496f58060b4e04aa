"""Writes days of orders, payments and clicks, always the same ones: ``python -m shop.generate data 3``."""

import sys
from datetime import date, timedelta
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq

from shop.functions import DAY_MS, HOUR_MS
from shop.records import CLICK, ORDER, PAYMENT

FIRST_DAY = date(2024, 3, 1)
MINUTE_MS = 60_000


def generate(folder: Path | str, *, days: int = 3, orders_per_day: int = 300) -> None:
    """Writes one file per day and kind, with the records in the order in which they arrive.

    Some orders and payments arrive twice, some payments arrive after more than two hours or never, and some clicks
    arrive a day late. With more days, the first days stay the same.
    """
    random = Random(7)
    begin = (FIRST_DAY - date(1970, 1, 1)).days * DAY_MS
    orders, payments, clicks = [], [], []  # each record follows its time of arrival
    for day in range(days):
        for number in range(orders_per_day):
            at = begin + day * DAY_MS + random.randrange(DAY_MS)
            customer, product = f"customer-{random.randrange(40)}", f"product-{int(random.expovariate(0.1))}"
            order_id = f"{FIRST_DAY + timedelta(days=day)}-{number:04}"
            order = (order_id, customer, product, random.randrange(100, 20_000), at)
            orders += [(at + again * MINUTE_MS, order) for again in range(1 + (random.random() < 0.05))]

            if random.random() < 0.9:
                paid_at = at + random.randrange(2 * HOUR_MS if random.random() < 0.9 else 5 * HOUR_MS)
                payment = (f"payment-{order_id}", order_id, paid_at)
                payments += [(paid_at + again * MINUTE_MS, payment) for again in range(1 + (random.random() < 0.05))]

            for _ in range(random.randrange(1, 6)):
                clicked_at = at - random.randrange(20 * MINUTE_MS)
                late = DAY_MS if random.random() < 0.02 else 0
                clicks.append((clicked_at + late, (customer, f"/{product}", clicked_at)))
    for name, row_type, records in (
        ("orders", ORDER, orders),
        ("payments", PAYMENT, payments),
        ("clicks", CLICK, clicks),
    ):
        _write(Path(folder) / name, row_type, sorted(records), begin, days)


def _write(folder, row_type, records, begin, days):
    folder.mkdir(parents=True, exist_ok=True)
    for day in range(days):
        # Clicks of the previous evening are in the first file. Records that arrive after the last day are left out.
        rows = [record for arrival, record in records if max(0, (arrival - begin) // DAY_MS) == day]
        columns = {name: [row[i] for row in rows] for i, name in enumerate(row_type.field_names)}
        pq.write_table(pa.table(columns), folder / f"{FIRST_DAY + timedelta(days=day)}.parquet")


if __name__ == "__main__":
    generate(sys.argv[1], days=int(sys.argv[2]))
