"""Cases that notice a broken rule, as `tests.matrix.run.check` prints them."""

from __future__ import annotations

from tests.matrix.programs import Input, Leg, Path_, Program
from tests.matrix.run import Settings

__all__ = ["NOTICED"]

_RECORDS = (("a", 1, 3), ("a", 2, 4), ("b", 3, 5), ("a", 4, 4))

NOTICED: dict[str, tuple[Program, Settings]] = {
    "sources_share_one_event_time": (
        Program(
            inputs=(
                Input(epochs=((), ((), (("b", 50, 6),))), idleness=True),
                Input(epochs=(((("b", 5, 3), ("c", 13, 9), ("a", 5, 0), ("b", 9, 5)),), ()), idleness=True),
            ),
            path=Path_.DIRECT,
            legs=(Leg.COLUMNS_SLIDING,),
            ends=True,
        ),
        Settings(
            parallelism=3,
            epochs=3,
            order=0,
            at_least_once=True,
            heap=True,
            swaps=True,
            small=True,
            attempts=True,
            rescale={2: 3},
        ),
    ),
    "what_was_in_flight_is_forgotten": (
        Program(
            inputs=(
                Input(
                    epochs=(
                        ((("c", 17, 6),), (("a", 18, 9), ("c", 0, 0), ("a", 20, 1), ("c", 19, 9))),
                        ((("a", 40, 9), ("b", 41, 9)), (("c", 54, 2), ("a", 45, 4), ("c", 46, 3))),
                        ((("b", 85, 2), ("a", 93, 7), ("a", 96, 9), ("c", 86, 5)),),
                    ),
                    idleness=True,
                ),
                Input(epochs=((),), idleness=True),
                Input(epochs=((), (), (), ()), idleness=False),
            ),
            path=Path_.REBALANCE,
            legs=(Leg.SIDES,),
            ends=True,
        ),
        Settings(
            parallelism=4,
            epochs=3,
            order=73,
            unaligned=True,
            lags=True,
            swaps=True,
            small=True,
            attempts=True,
            crashes=frozenset({1}),
        ),
    ),
    "state_shares_its_values": (
        Program(inputs=(Input(epochs=((_RECORDS,),)),), path=Path_.DIRECT, legs=(Leg.CHANGEABLE,), spoils=True),
        Settings(),
    ),
    "what_was_emitted_is_shared": (
        Program(inputs=(Input(epochs=((_RECORDS,),)),), path=Path_.MAP, legs=(Leg.COUNT,), spoils=True),
        Settings(),
    ),
    "what_was_given_is_shared": (
        Program(inputs=(Input(epochs=((_RECORDS,),)),), path=Path_.MAP, legs=(Leg.COUNT, Leg.STATE), spoils=True),
        Settings(),
    ),
}
"""By the name of the broken rule."""
