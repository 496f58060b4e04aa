"""The columns of input and tables. Times are milliseconds since 1970, amounts are cents."""

from dagster_flinkpy.common import Types
from dagster_flinkpy.datastream import OutputTag

ORDER = Types.ROW_NAMED(
    ["order_id", "customer", "product", "amount", "ordered_at"],
    [Types.STRING(), Types.STRING(), Types.STRING(), Types.LONG(), Types.LONG()],
)
PAYMENT = Types.ROW_NAMED(
    ["payment_id", "order_id", "paid_at"],
    [Types.STRING(), Types.STRING(), Types.LONG()],
)
CLICK = Types.ROW_NAMED(
    ["customer", "page", "clicked_at"],
    [Types.STRING(), Types.STRING(), Types.LONG()],
)

PAID_ORDER = Types.ROW_NAMED(
    ["order_id", "customer", "product", "amount", "ordered_at", "paid_at"],
    [Types.STRING(), Types.STRING(), Types.STRING(), Types.LONG(), Types.LONG(), Types.LONG()],
)
ALERT = Types.ROW_NAMED(["alert", "order_id", "at"], [Types.STRING(), Types.STRING(), Types.LONG()])
SESSION = Types.ROW_NAMED(
    ["customer", "started_at", "ended_at", "clicks", "last_page"],
    [Types.STRING(), Types.LONG(), Types.LONG(), Types.LONG(), Types.STRING()],
)
TOP_PRODUCT = Types.ROW_NAMED(
    ["day", "rank", "product", "amount"],
    [Types.LONG(), Types.INT(), Types.STRING(), Types.LONG()],
)

ALERTS = OutputTag("alerts", ALERT)
LATE_CLICKS = OutputTag("late_clicks", CLICK)
LATE_SALES = OutputTag("late_sales", PAID_ORDER)
