"""The contents of sessions: all elements, a reduced value, or an accumulator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.datastream.functions import AggregateFunction, ReduceFunction
from dagster_flinkpy.datastream.operator_specs import WindowSpec, as_callable
from dagster_flinkpy.state.list_table import ListTable
from dagster_flinkpy.state.session_table import Session

__all__ = ["SessionContents", "session_contents"]


class SessionContents(ABC):
    """Reads and changes the contents of the sessions of the current key."""

    @abstractmethod
    def add(self, session: Session, value: Any) -> None:
        """Adds a record."""

    @abstractmethod
    def result(self, session: Session) -> Any:
        """Returns what a session has when it fires; None if nothing."""

    @abstractmethod
    def merge(self, session: Session, other: Session) -> None:
        """Moves the contents of another session, which ends, to a session."""

    def drop(self, session: Session) -> None:  # noqa: B027 - values end with their session
        """Forgets the contents of a session, which ends."""


class _Elements(SessionContents):
    """All elements.

    Args:
        table: The lists, by slot and state window.
    """

    def __init__(self, table: ListTable) -> None:
        self._table = table

    def add(self, session: Session, value: Any) -> None:
        self._table.extend((session.slot, session.state_window), [value])

    def result(self, session: Session) -> Any:
        return self._table.elements((session.slot, session.state_window)) or None

    def merge(self, session: Session, other: Session) -> None:
        elements = self.result(other)
        self.drop(other)
        if elements:
            self._table.extend((session.slot, session.state_window), elements)

    def drop(self, session: Session) -> None:
        cell = session.slot, session.state_window
        if session.stored is None:
            self._table.drop(cell)
        else:
            self._table.remove(cell)


class _Values(SessionContents):
    """One value, with the names of its fields."""

    def __init__(self, value_type: TypeInformation) -> None:
        self._name_fields, self._named = value_type.name_fields, value_type.names_fields

    def merge(self, session: Session, other: Session) -> None:
        if session.value is None:
            session.value = other.value
        elif other.value is not None:
            session.value = self._name_fields(self._merged(session.value, other.value))

    @abstractmethod
    def _merged(self, value: Any, other: Any) -> Any:
        """Merges two values."""


class _Accumulators(_Values):
    def __init__(self, function: AggregateFunction, value_type: TypeInformation) -> None:
        super().__init__(value_type)
        self._function = function
        self._create, self._add = function.create_accumulator, function.add

    def add(self, session: Session, value: Any) -> None:
        held = session.value
        added = self._add(value, self._create() if held is None else held)
        session.value = self._name_fields(added) if self._named else added

    def result(self, session: Session) -> Any:
        return None if session.value is None else self._function.get_result(session.value)

    def _merged(self, value: Any, other: Any) -> Any:
        return self._function.merge(value, other)


class _Reduced(_Values):
    def __init__(self, function: Any, value_type: TypeInformation) -> None:
        super().__init__(value_type)
        self._reduce = as_callable(function, ReduceFunction, "reduce")

    def add(self, session: Session, value: Any) -> None:
        held = session.value
        session.value = self._name_fields(value if held is None else self._reduce(held, value))

    def result(self, session: Session) -> Any:
        return session.value

    def _merged(self, value: Any, other: Any) -> Any:
        return self._reduce(value, other)


def session_contents(spec: WindowSpec, table: Any) -> SessionContents:
    """Returns the contents of sessions.

    Args:
        spec: The window spec.
        table: The lists of elements if the spec has neither a reduction nor an aggregation.
    """
    if spec.aggregate is not None:
        return _Accumulators(spec.aggregate, spec.accumulator_type)
    if spec.reduce is not None:
        return _Reduced(spec.reduce, spec.accumulator_type)
    return _Elements(table)
