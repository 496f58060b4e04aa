"""Pickles programs so that the user's code keeps the names of its files, and its classes stay as they are."""

from __future__ import annotations

import builtins
import hashlib
import io
import pickle
import sys
import threading
import uuid
from abc import ABCMeta
from collections import ChainMap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import EnumMeta as EnumType
from functools import cache, cached_property, lru_cache, partial
from types import CellType, CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any, NewType, ParamSpec, TypedDict, cast, is_typeddict
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

__all__ = ["FILL", "dumps", "dumps_with_classes", "loads_as_it_was", "loads_with_classes", "maker"]

_Reduced = tuple[Any, ...]
_Known = dict[type, tuple[str, list[type]]]
"""Digests of what classes have, and the other classes that they refer to."""

_NAMED: dict[type, Callable[[Any], _Reduced]] = {
    type(lru_cache(str)): lambda each: (_cached, (each.__wrapped__, each.cache_parameters())),
    NewType: lambda each: (NewType, (each.__name__, each.__supertype__)),
    ParamSpec: lambda each: (ParamSpec, (each.__name__,)),
}
"""How objects are made that Python pickles by the name of a variable."""
FILL = b"_class_setstate"
"""The name of what fills a class; a pickle of ``cloudpickle`` without it has no classes."""
_MAKE = ("_make_skeleton_class", "_make_skeleton_enum")

_ids: WeakKeyDictionary[type, str] = WeakKeyDictionary()
"""Classes of this process that it has pickled by value, and their ids."""
_classes: WeakValueDictionary[str, type] = WeakValueDictionary()
"""The same by id."""
_unfilled: WeakSet[type] = WeakSet()
"""Classes that were made here and have no content yet."""
_beside_methods: WeakSet[FunctionType] = WeakSet()
"""Functions that were made with the variables of a module."""
_shipped: WeakSet[ModuleType] = WeakSet()
"""Modules that were pickled by value, where others of their names may be imported."""
_of_program: WeakValueDictionary[tuple[str, str, str], type] = WeakValueDictionary()
"""Classes that came with the last program from another process, by module, name and id."""
_process = uuid.uuid4().hex
_from_process = ""
"""The one from which that program came."""
_making = threading.RLock()


def dumps(value: Any) -> bytes:
    """Pickles a value by ``cloudpickle``, and with its code the names of the files that it is from.

    A traceback in a worker shows these files and their lines. ``cloudpickle`` 3.1.3 names every file
    ``<dynamic-code>``, to make pickles independent of where a notebook's cells are.

    Where a class is from, unpickling leaves it alone. ``cloudpickle`` gives it methods that no longer see when a
    variable of their module changes, as in the next cell of a notebook, or by a test.

    Returns:
        The pickle, for :func:`pickle.loads`.
    """
    return _dumps(value, _left_alone)


def dumps_with_classes(value: Any) -> tuple[bytes, frozenset[str]]:
    """Pickles a value as :func:`dumps` does, for :func:`loads_as_it_was`.

    Returns:
        The pickle, and digests of the classes in it that are pickled by value.
    """
    known: _Known = {}
    data = _dumps(value, partial(_as_it_is, known))
    return data, frozenset(digest for digest, _ in known.values())


def loads_as_it_was(data: bytes) -> Any:
    """Unpickles a value in the process that has pickled it with its classes. Those that have changed are as they were.

    Those that refer to one which has changed are other classes, too: their methods know that one.
    """
    return _Former(io.BytesIO(data)).load()


def loads_with_classes(data: bytes) -> Any:
    """Unpickles what another process has pickled with its classes. Those that are here stay as they are.

    That of an earlier run, as in its state, is the one of this program that has its name.
    """
    return _Unpickler(io.BytesIO(data)).load()


class _Unpickler(pickle.Unpickler):
    """Fills only classes that were not here."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            found = super().find_class(module, name)
        except (ImportError, AttributeError):
            if (known := _with_name(module, name.rpartition(".")[2])) is None:
                raise
            return known
        if name in _MAKE:
            return partial(_known_or_made, found)
        return partial(_fill_if_new, found) if name == FILL.decode() else found


def _known_or_made(make: Callable[..., type], *arguments: Any) -> type:
    from cloudpickle.cloudpickle import _DYNAMIC_CLASS_TRACKER_BY_ID as known

    *_, class_id, _ = arguments
    module = arguments[4] if make.__name__ == "_make_skeleton_enum" else arguments[3].get("__module__")
    if (module, arguments[1], class_id) not in _of_program:  # it may be here of another program, that has ended
        found = _with_name(module, arguments[1])
        if found is not None and (class_id not in known or found in _of_program.values()):
            known[class_id] = found
    return _made(make, *arguments)


def _with_name(module: str, name: str) -> type | None:
    """Returns the class with a name: one that came with the program, or that a module of this process has."""
    found = [each for key, each in list(_of_program.items()) if key[:2] == (module, name)]
    here = getattr(sys.modules.get(module), name, None)
    if not found and isinstance(here, type) and here.__module__ == module:
        return here
    return found[0] if len(found) == 1 else None  # several may be nested in others


def _made(make: Callable[..., type], *arguments: Any) -> type:
    """Makes a class without content, unless it is here: what it refers to may have been first, and it may be listed."""
    from cloudpickle.cloudpickle import _DYNAMIC_CLASS_TRACKER_BY_ID

    with _making:
        made = _DYNAMIC_CLASS_TRACKER_BY_ID.get(arguments[-2])
        if made is None:
            with _without_hooks(next(each for each in arguments if isinstance(each, tuple))):
                made = make(*arguments)
            if isinstance(made, ABCMeta):
                made.__abstractmethods__ = frozenset()  # content may have an object of it, and comes later
            _unfilled.add(made)
    return cast("type", made)


@contextmanager
def _without_hooks(bases: tuple[type, ...]) -> Iterator[None]:
    """Keeps ``__init_subclass__`` from being called again, and without its arguments: classes have what it has done."""
    from cloudpickle.cloudpickle import _DYNAMIC_CLASS_TRACKER_BY_CLASS as known

    above = {each for base in bases if isinstance(base, type) for each in base.__mro__ if each in known}
    hooks: list[tuple[Any, Any]] = [(each, hook) for each in above if (hook := vars(each).get("__init_subclass__"))]
    for each, _ in hooks:
        each.__init_subclass__ = classmethod(lambda cls, **_: None)
    try:
        yield
    finally:
        for each, hook in hooks:
            each.__init_subclass__ = hook


def _fill_if_new(fill: Callable[[type, Any], object], made: type, has: Any) -> None:
    if made in _unfilled:  # another thread may have made it, or one that failed before it could fill it
        fill(made, has)
        _unfilled.discard(made)


def maker(values: Any, own: type) -> Callable[..., Callable[[], Any]]:
    """Returns what pickles one of these values, and returns what makes copies of it, with objects of their own.

    Their classes are the same, and so is all that methods of these refer to, but objects of ``own``: one that looks
    whether an attribute *is* a constant of its module, or in a dictionary there that a function has filled, finds that
    one. If ``beside_methods`` is true, functions keep to the variables of a module that such methods have, see what
    these set, and know all that these variables refer to. Other functions have the variables as they are now.
    """
    classes: dict[type, None] = {}

    def noted(each: type, reduced: _Reduced) -> _Reduced:
        classes[each] = None
        return list, ()  # without what it has, which may be much

    _dumps(values, noted)
    methods = _pickler()(io.BytesIO(), _whole)
    methods.dump(list(classes))
    shared = _found_by(methods, own) if classes else {}
    functions = [each for each in shared.values() if type(each) is FunctionType and _is_by_value(each)]
    variables = {id(each.__globals__): each.__globals__ for each in functions}

    def pickled(value: Any, *, beside_methods: bool = False) -> Callable[[], Any]:
        data, used, read = _dumps_beside(value, shared, {})
        kept = variables if beside_methods and any(id(each) in used for each in classes) else {}
        if kept:
            data, used, read = _dumps_beside(value, shared, kept)
        if unknown := [each for each in read if id(each) not in shared]:
            constants = _pickler()(io.BytesIO(), _whole)
            for each in unknown:
                with suppress(Exception):  # it stays where it is
                    constants.dump(each)
            data, used, _ = _dumps_beside(value, {**shared, **_found_by(constants, own)}, kept)
        return lambda: _Linked(data, used).load()

    return pickled


def _whole(each: type, reduced: _Reduced) -> _Reduced:
    return reduced


def _found_by(pickler: Any, own: type) -> dict[int, Any]:
    """Returns what a pickler has found, by its ids."""
    kinds = own, CellType, _Module, _Variables
    return {key: each for key, (_, each) in pickler.memo.copy().items() if not isinstance(each, kinds)}


def _dumps_beside(
    value: Any, shared: dict[int, Any], variables: dict[int, Any]
) -> tuple[bytes, dict[int, Any], list[Any]]:
    """Pickles a value without what is shared, and its functions without these variables, all by their ids.

    Returns:
        The pickle, what of them it refers to, and the values of the variables that the functions read.
    """
    used: dict[int, Any] = {}
    kept = dict(variables)
    read: list[Any] = []

    class Pickler(_pickler()):  # type: ignore[misc]
        def persistent_id(self, each: Any) -> int | None:
            key = id(each)
            if isinstance(each, ModuleType) and id(vars(each)) in kept:
                read.extend(vars(each).values())
            elif key not in shared and key not in kept:
                return None
            used[key] = each
            return key

        def reducer_override(self, each: Any) -> Any:
            reduced = super().reducer_override(each)
            if type(each) is not FunctionType or not isinstance(reduced, tuple):
                return reduced
            if id(each.__globals__) not in variables and each not in _beside_methods:
                return reduced
            kept[id(each.__globals__)] = each.__globals__
            read.extend(reduced[2][1]["__globals__"].values())
            return _with_variables(each.__globals__, reduced)

    buffer = io.BytesIO()
    Pickler(buffer, _whole).dump(value)
    return buffer.getvalue(), used, read


def _with_variables(of_module: dict[str, Any], reduced: _Reduced) -> _Reduced:
    """Lets a function be made with the variables of a module, instead of a copy of those that it reads."""
    _, (code, _, *rest), (state, slots), *others, fill = reduced
    return FunctionType, (code, of_module, *rest), (state, {**slots, "__globals__": {}}), *others, partial(_set, fill)


def _set(fill: Callable[[FunctionType, Any], object], made: FunctionType, has: Any) -> None:
    _beside_methods.add(made)
    builtins = made.__globals__["__builtins__"]
    fill(made, has)  # sets cloudpickle's
    made.__globals__["__builtins__"] = builtins


class _Linked(pickle.Unpickler):
    """Takes objects from a dictionary."""

    def __init__(self, data: bytes, objects: dict[int, Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._objects = objects

    def persistent_load(self, key: int) -> Any:
        return self._objects[key]


class _Former(pickle.Unpickler):
    """Looks at each class once."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._known: _Known = {}

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        return partial(_as_it_was, self._known) if found is _as_it_was else found


def _dumps(value: Any, reduce_class: Callable[[type, _Reduced], _Reduced]) -> bytes:
    buffer = io.BytesIO()
    _pickler()(buffer, reduce_class).dump(value)
    return buffer.getvalue()


class _Module:
    """A module that is pickled by value, before it has its variables: functions of it may go without these."""

    def __init__(self, module: dict[str, Any]) -> None:
        self._name = module.get("__name__", "")

    def __reduce__(self) -> _Reduced:
        return ModuleType, (self._name,)


class _Variables:
    """Those of such a module. Its functions see what others set in it, and others what they set."""

    def __init__(self, module: dict[str, Any], first: dict[str, Any]) -> None:
        self.module, self._first = _Module(module), first

    def __reduce__(self) -> _Reduced:
        return vars, (self.module,), None, None, iter(self._first.items())


@cache
def _pickler() -> Callable[..., Any]:
    import cloudpickle
    from cloudpickle.cloudpickle import _make_empty_cell

    reduce_code = cloudpickle.Pickler.dispatch_table[CodeType]
    reducers: dict[type, Callable[[Any], _Reduced]] = {
        CodeType: lambda code: (_code_in_file, (code.co_filename, *reduce_code(code))),
        CellType: lambda cell: (_make_empty_cell, ()),  # functions fill it
        # Without its lock, which it has before Python 3.12.
        cached_property: lambda each: (cached_property, (each.func,), {"attrname": each.attrname}),
        WeakKeyDictionary: lambda each: (WeakKeyDictionary, (), None, None, iter(each.items())),  # of singledispatch()
    }

    table = ChainMap(reducers, cloudpickle.Pickler.dispatch_table)

    class CodePickler(cloudpickle.Pickler):  # type: ignore[misc]
        dispatch_table = table

        def __init__(self, file: io.BytesIO, reduce_class: Callable[[type, _Reduced], _Reduced]) -> None:
            super().__init__(file, protocol=5)
            self._reduce_class = reduce_class
            self._variables: dict[int, _Variables] = {}

        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, ModuleType) and _is_by_value(value):
                variables = {name: each for name, each in vars(value).items() if name != "__builtins__"}
                return _itself, (self._variables_of(vars(value), {}).module,), variables, None, None, _set_variables
            if (take := _NAMED.get(type(value))) and _is_by_value(value):
                return take(value)
            reduced = super().reducer_override(value)
            if not (isinstance(reduced, tuple) and len(reduced) == 6):
                return reduced  # neither a class nor a function, or one that is pickled by reference
            if type(value) is FunctionType:
                return self._function(value, *reduced)
            has = reduced[2][0]
            has.pop("__slotnames__", None)  # pickle puts it there with the first object
            if has.get("__annotations__") == {}:  # whoever looks for them puts it there
                del has["__annotations__"]
            return self._reduce_class(value, _complete(value, *reduced))

        def _function(self, value: FunctionType, make: Any, arguments: _Reduced, has: Any, *rest: Any) -> _Reduced:
            """Lets functions share the variables of a module, and cells: ``cloudpickle`` copies what is in a cell."""
            code, variables, *others, _ = arguments
            has[1]["__closure__"] = value.__closure__ and tuple(map(_content, value.__closure__))
            variables = self._variables_of(value.__globals__, variables)
            return make, (code, variables, *others, value.__closure__), has, *rest

        def _variables_of(self, module: dict[str, Any], first: dict[str, Any]) -> _Variables:
            return self._variables.setdefault(id(module), _Variables(module, first))

    return CodePickler


def _is_by_value(value: Any) -> bool:
    from cloudpickle.cloudpickle import _is_registered_pickle_by_value, _lookup_module_and_qualname

    if isinstance(value, ModuleType):
        shipped = value in _shipped or value.__name__ not in sys.modules
        return shipped or _is_registered_pickle_by_value(value)
    found = _lookup_module_and_qualname(value)
    return found is None or _is_registered_pickle_by_value(found[0])


def _itself(module: ModuleType) -> ModuleType:
    return module


def _set_variables(module: ModuleType, variables: dict[str, Any]) -> None:
    _shipped.add(module)
    vars(module).update(variables, __builtins__=vars(builtins))


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return lru_cache(**parameters)(function)


def _content(cell: CellType) -> Any:
    try:
        return SimpleNamespace(cell_contents=cell.cell_contents)
    except ValueError:  # it is empty
        return cell


def _complete(each: type, make: Any, arguments: _Reduced, has: Any, *rest: Any) -> _Reduced:
    """Adds to a class what ``cloudpickle`` leaves out."""
    has[0]["__qualname__"] = each.__qualname__
    if isinstance(each, EnumType):  # what their __init__() or __new__() has given to them
        has[1].update({name: dict(vars(one)) for name, one in cast("Any", each).__members__.items()})
    if is_typeddict(each):  # it has no other bases than a dict, but cannot be made from that
        arguments = (*arguments[:2], (TypedDict,), *arguments[3:])
    return make, arguments, has, *rest


def _code_in_file(filename: str, make: Callable[..., CodeType], arguments: tuple[Any, ...]) -> CodeType:
    return make(*arguments).replace(co_filename=filename)


# cloudpickle reduces a class to: how it is made, the arguments for that, what it has, two times None, how it gets that.
# The last argument but one is an id. If a class with this id is there, that is what is made.


def _left_alone(each: type, reduced: _Reduced) -> _Reduced:
    _ids[each] = class_id = reduced[1][-2]
    _classes[class_id] = each
    make, *others, fill = reduced
    return partial(_made, make), *others, partial(_fill, fill, _process)


def _fill(fill: Callable[[type, Any], object], process: str, made: type, has: Any) -> None:
    from cloudpickle.cloudpickle import _DYNAMIC_CLASS_TRACKER_BY_CLASS

    global _from_process
    if made in _ids:
        return
    fill(made, has)
    _unfilled.discard(made)
    for name, attributes in has[1].items():
        vars(getattr(made, name)).update(attributes)
    if process != _from_process:
        _of_program.clear()
        _from_process = process
    _of_program[made.__module__, made.__name__, _DYNAMIC_CLASS_TRACKER_BY_CLASS[made]] = made


def _as_it_is(known: _Known, each: type, reduced: _Reduced) -> _Reduced:
    make, arguments, *rest = _left_alone(each, reduced)
    return _as_it_was, (make, arguments, _digest(known, each)), *rest


def _as_it_was(known: _Known, make: Callable[..., type], arguments: tuple[Any, ...], digest: str) -> type:
    *others, class_id, extra = arguments
    there = _classes.get(class_id)
    if there is None or _digest(known, there) == digest:
        return make(*arguments)
    return make(*others, f"{class_id}-{digest}", extra)


def _digest(known: _Known, of: type) -> str:
    """Digests what a class and all those have that it refers to."""
    digests, left = dict[type, str](), [of]
    while left:
        each = left.pop()
        if each not in digests:
            found = known[each] = known.get(each) or _looked_at(each)
            digests[each] = found[0]
            left += found[1]
    return hashlib.sha256("".join(sorted(digests.values())).encode()).hexdigest()[:16]


def _looked_at(of: type) -> tuple[str, list[type]]:
    others: dict[type, None] = {}

    def reduce_class(each: type, reduced: _Reduced) -> _Reduced:
        class_id, has = reduced[1][-2], reduced[2]
        if each is of:
            return str, (class_id, each.__bases__), has
        others[each] = None
        return str, (class_id,)

    return hashlib.sha256(_dumps(of, reduce_class)).hexdigest(), list(others)
