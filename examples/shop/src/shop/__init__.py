"""A shop: orders, payments and clicks."""
