from __future__ import annotations

from dagster_flinkpy.metrics import MetricGroup


def test_values_are_named_by_their_groups() -> None:
    group = MetricGroup()
    counter = group.counter("seen")
    counter.inc(5)
    counter.dec()
    inner = group.add_group("types", "late")
    meter = inner.meter("events")
    meter.mark_event()
    meter.mark_event(2)
    size = [1]
    inner.gauge("size", lambda: size[0])
    size[0] = 9
    assert (counter.get_count(), meter.get_count()) == (4, 3)
    assert group.values() == {"seen": 4, "types.late.events": 3, "types.late.size": 9}
    assert group.add_group("types") is group.add_group("types")


def test_a_distribution_without_numbers_has_no_least_one() -> None:
    group = MetricGroup()
    distribution = group.distribution("size")
    assert group.values() == {"size.count": 0, "size.sum": 0}
    for value in (3, 1, 5):
        distribution.update(value)
    assert group.values() == {"size.count": 3, "size.sum": 9, "size.min": 1, "size.max": 5}
