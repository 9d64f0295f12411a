"""Frozen data classes that cost little until they are used.

`dataclasses` compiles six methods for each class. That takes half a millisecond, and a start
declares hundreds of classes that it makes no instance of. Here `__init__` is compiled for the first
instance, and no other method is.
"""

from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields, is_dataclass
from operator import attrgetter
from reprlib import recursive_repr
from typing import Any, TypeVar, dataclass_transform, overload

T = TypeVar("T")


@overload
@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def frozen(cls: type[T], /) -> type[T]: ...


@overload
@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def frozen(
    *, kw_only: bool = True, slots: bool = True, eq: bool = True
) -> Callable[[type[T]], type[T]]: ...


def frozen(
    cls: type[T] | None = None, /, *, kw_only: bool = True, slots: bool = True, eq: bool = True
) -> type[T] | Callable[[type[T]], type[T]]:
    """Make a class what `dataclass(frozen=True)` makes of it with these options: for `fields` and
    `replace` of `dataclasses`, for pydantic, and for frozen data classes that inherit from it, by
    either decorator. `InitVar`, and `hash` of a field, are not known.
    """

    def make(cls: type[T]) -> type[T]:
        own = {*vars(cls)}
        if "__eq__" in own and vars(cls)["__hash__"] is None:  # the language has set it
            own.remove("__hash__")
        # True would compile two methods for each class; what inherits needs it to be accepted
        inherits = any(map(is_dataclass, cls.__mro__[1:]))
        made: Any = dataclass(
            init=False, repr=False, eq=False, frozen=inherits, kw_only=kw_only, slots=slots
        )(cls)
        made.__dataclass_params__.frozen = True  # else `dataclass(frozen=True)` refuses to inherit
        methods = _REFUSE | (_compare(made) if eq else {}) | (_STATE if slots else {})
        methods |= {"__init__": _CompiledLater(made), "__repr__": _repr}
        for name in methods.keys() - own:
            setattr(made, name, methods[name])
        result: type[T] = made
        return result

    return make if cls is None else make(cls)


class _CompiledLater:
    """`__init__` of a class until somebody looks at it, or makes an instance."""

    def __init__(self, made: Any) -> None:  # noqa: ANN401 - any data class
        self._made = made

    def __get__(self, instance: object, owner: type) -> Callable[..., None]:
        init: Any = _compile(self._made)
        self._made.__init__ = init
        bound: Callable[..., None] = init.__get__(instance, owner)
        return bound


def _compile(made: Any) -> Callable[..., None]:  # noqa: ANN401 - of any data class
    """Return an `__init__` that sets the fields in their order, then calls `__post_init__`."""
    scope: dict[str, Any] = {"set_field_": object.__setattr__, "unset_": MISSING}
    heads: dict[bool, list[str]] = {False: [], True: []}
    body = list[str]()
    for one in fields(made):
        name, value, factory = one.name, one.name, one.default_factory
        default, head = f"default_of_{name}", name
        scope[default] = one.default if factory is MISSING else factory
        if factory is not MISSING:
            value = f"{default}() if {name} is unset_ else {name}" if one.init else f"{default}()"
            head += "=unset_"
        elif one.default is not MISSING:
            value, head = name if one.init else default, f"{name}={default}"
        if one.init:
            heads[one.kw_only is True].append(head)
        if one.init or scope[default] is not MISSING:
            body.append(f"set_field_(self, {name!r}, {value})")
    if hasattr(made, "__post_init__"):
        body.append("self.__post_init__()")
    arguments = ", ".join(["self", *heads[False], *(["*", *heads[True]] if heads[True] else ())])
    exec(f"def __init__({arguments}):\n " + "\n ".join(body or ["pass"]), scope)  # noqa: S102 - as dataclasses does; names of fields alone
    init: Callable[..., None] = scope["__init__"]
    init.__annotations__ = {one.name: one.type for one in fields(made) if one.init}
    init.__qualname__ = f"{made.__qualname__}.__init__"
    return init


def _is_fixed(self: Any, name: str) -> bool:  # noqa: ANN401 - of any data class
    """Return whether an attribute keeps its value: all but others than fields in a subclass."""
    made = type(self)
    return "__dataclass_fields__" in vars(made) or name in made.__dataclass_fields__


def _set(self: object, name: str, value: object) -> None:
    if _is_fixed(self, name):
        raise FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _delete(self: object, name: str) -> None:
    if _is_fixed(self, name):
        raise FrozenInstanceError(f"cannot delete field {name!r}")
    object.__delattr__(self, name)


_REFUSE: dict[str, Any] = {"__setattr__": _set, "__delattr__": _delete}


def _compare(made: Any) -> dict[str, Any]:  # noqa: ANN401 - of any data class
    """Return `__eq__` and `__hash__` by value."""
    names = [one.name for one in fields(made) if one.compare]
    values = attrgetter(*names) if names else lambda _: ()

    def __eq__(self: object, other: object) -> bool:  # noqa: N807 - it becomes a method
        if other.__class__ is not self.__class__:
            return NotImplemented
        return bool(values(self) == values(other))

    def __hash__(self: object) -> int:  # noqa: N807 - the same
        return hash(values(self))

    return {"__eq__": __eq__, "__hash__": __hash__}


@recursive_repr()
def _repr(self: Any) -> str:  # noqa: ANN401 - of any data class
    shown = [f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr]
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _get_state(self: Any) -> list[object]:  # noqa: ANN401 - of any data class
    return [getattr(self, one.name) for one in fields(self)]


def _set_state(self: Any, state: list[object]) -> None:  # noqa: ANN401 - of any data class
    for one, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)


_STATE: dict[str, Any] = {"__getstate__": _get_state, "__setstate__": _set_state}
"""For `pickle` and `copy`, which cannot restore a frozen instance that has slots without them."""
