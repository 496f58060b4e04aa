"""Orders as JSON text: parsed into dictionaries without a type, changed, filtered and summed by three jobs."""

import json

from pyflink.common import Types
from pyflink.datastream import StreamExecutionEnvironment


def order(number, shop, *items):
    lines = [{"sku": sku, "pieces": pieces} for sku, pieces in items]
    return number, json.dumps({"shop": {"city": shop}, "lines": lines, "paid": number % 2 == 0})


ORDERS = [
    order(11, "Lyon", ("bolt", 40), ("nut", 80)),
    order(12, "Turin", ("gear", 3)),
    order(13, "Lyon"),
    order(14, "Graz", ("bolt", 5), ("gear", 1), ("ünit", 2)),
    order(15, "Turin", ("nut", 7)),
]


def parse(value):
    return value[0], json.loads(value[1])


def pay(value):
    number, document = value
    document["paid"] = True
    document["lines"] = [line for line in document["lines"] if line["pieces"] > 2]
    return number, document


def pieces(value):
    document = json.loads(value.body)
    return document["shop"]["city"], sum(line["pieces"] for line in document["lines"])


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)

    untyped = env.from_collection(ORDERS)
    untyped.map(parse).filter(lambda value: not value[1]["paid"]).map(pay).print()
    env.execute("pay what is open")

    rows = env.from_collection(ORDERS, Types.ROW_NAMED(["number", "body"], [Types.INT(), Types.STRING()]))
    rows.filter(lambda row: row.number > 12).map(lambda row: (row.number, len(json.loads(row.body)["lines"]))).print()
    env.execute("count lines")

    rows.map(pieces).key_by(lambda value: value[0]).sum(1).print()
    env.execute("pieces per city")


if __name__ == "__main__":
    main()
