"""Everything that lets tests take less time than what they test takes its users; `HELIXFOLD_TEST_SPEEDUPS=0` is off.

`install` is called before anything of the packages is imported whose shapes are checked: by tests/conftest.py, and in
the processes that tests fork. What each patch saves is in tests/README.md.
"""

import copy
import os
import sys
from collections.abc import Callable
from dataclasses import is_dataclass, replace
from functools import cache, update_wrapper, wraps
from importlib.util import find_spec
from inspect import getmembers
from types import CodeType, FunctionType
from typing import Any

import jaxtyping
import torch
from jaxtyping import config, jaxtyped

# Inherited by the processes that tests start.
IS_ON = os.environ.get("HELIXFOLD_TEST_SPEEDUPS", "1") != "0"


def install() -> None:
    """Install all of them, unless they are switched off."""
    if not IS_ON:
        return
    # Processes that tests start would compile every module again where bytecode is switched off, and pytest would
    # rewrite the assertions of every test file again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    # Test tensors are small: threads that wait for each other would take most of the time, in further processes too.
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    jaxtyping.jaxtyped = checked_once
    _count_without_checks()
    if find_spec("triton") and os.environ.get("TRITON_INTERPRET") == "1":
        _interpret_faster()
    if find_spec("cyclopts"):
        _remember_options()


# Checks of shapes, once for each form of a call, since a pass makes calls of the same shapes again and again:
# `jaxtyping` takes several times as long for a check as small tensors take to be computed.

# The forms of arguments that were found right, and of what was returned for each: by functions' code and name, since a
# function inside another is another one in each call.
_RIGHT: dict[tuple[CodeType, str, str], dict[Any, set[Any]]] = {}
# What makes the check of each function of a module, which takes milliseconds; functions inside others come again.
_MAKERS: list[Callable[[], object]] = []
# A function that is called in more forms than this, such as one that reads lines, is checked at every call.
_MOST_FORMS = 100
# Numbers' values are in no annotation, but words are.
_BY_KIND = {int, float, complex, slice, type(None), type(...), bytes}


def form(value: Any) -> Any:
    """Everything that annotations can tell one value from another by."""
    kind = type(value)
    if kind in _BY_KIND:
        return kind
    if kind in {str, bool, torch.dtype}:
        return value
    if kind in {tuple, list}:
        return kind, *map(form, value)
    if kind is dict:
        return kind, *value, *map(form, value.values())
    if isinstance(value, torch.nn.Module) or kind is FunctionType:
        return kind
    return kind, getattr(value, "shape", None), getattr(value, "dtype", None)


def checked_once(*, typechecker: Any) -> Callable[[Any], Any]:
    """`jaxtyped`, but a call that has the form of one before, and returns what that returned, is right as that was."""
    decorate = jaxtyped(typechecker=typechecker)

    def checked(function: Any) -> Any:
        if isinstance(function, type) and "__init__" in vars(function) and is_dataclass(function):
            function.__init__ = checked(function.__init__)
            return function
        if type(function) is not FunctionType:
            return decorate(function)
        return _checked_once(function, decorate) if _has_shapes(function) else function

    return checked


def _has_shapes(function: FunctionType) -> bool:
    """Whether any annotation has a shape; what there is beside these, the type checker has seen to."""
    return any(isinstance(each, str) or "jaxtyping" in repr(each) for each in function.__annotations__.values())


def _checked_once(function: FunctionType, decorate: Callable[[Any], Any]) -> Callable[..., Any]:
    # Code alone does not tell the methods apart that are made for data classes with fields of the same names.
    right = _RIGHT.setdefault((function.__code__, function.__module__, function.__qualname__), {})
    check: Callable[..., Any] | None = None

    def made() -> Callable[..., Any]:
        nonlocal check
        check = check or decorate(function)
        return check

    if "<locals>" not in function.__qualname__:
        _MAKERS.append(made)
    # An object's own method is not told by its shape, which another one may compute.
    first = type if function.__code__.co_varnames[:1] in {("self",), ("cls",)} else form

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if config.jaxtyping_disable:
            return function(*args, **kwargs)
        if len(right) > _MOST_FORMS:
            return made()(*args, **kwargs)
        given = tuple(map(first, args[:1])) + tuple(map(form, args[1:]))
        if kwargs:
            given += *kwargs, *map(form, kwargs.values())
        known = right.get(given)
        if known is None:
            found = made()(*args, **kwargs)
            right[given] = {form(found)}
            return found
        if len(known) > _MOST_FORMS:
            return made()(*args, **kwargs)
        found = function(*args, **kwargs)
        if (returned := form(found)) not in known:
            decorate(_giving(found, function))(*args, **kwargs)
            known.add(returned)
        return found

    return call


def _giving(found: Any, function: FunctionType) -> FunctionType:
    """A function of the same signature that returns this."""

    def give(*_: Any, **__: Any) -> Any:
        return found

    return update_wrapper(FunctionType(give.__code__, function.__globals__, "give", None, give.__closure__), function)


def make_checks() -> None:
    """Make the checks of all functions that have been imported, which processes then have that are forked."""
    for made in _MAKERS:
        made()


def leave_shapes_unchecked() -> None:
    """Check no shapes from now on: integration tests call what unit tests call with checks."""
    if IS_ON:
        config.update("jaxtyping_disable", True)


def _count_without_checks() -> None:
    """Leave unchecked what is counted on the meta device, where checks take several times as long as counting."""
    from helixfold.execution.counter import Counter  # noqa: PLC0415  imported once checks are installed

    enter, leave, before = Counter.__enter__, Counter.__exit__, list[bool]()

    def begin(counter: Counter) -> Counter:
        before.append(config.jaxtyping_disable)
        config.update("jaxtyping_disable", True)
        return enter(counter)

    def end(counter: Counter, *error: object) -> None:
        leave(counter, *error)
        # There may be a counter inside another.
        config.update("jaxtyping_disable", before.pop())

    Counter.__enter__, Counter.__exit__ = begin, end  # type: ignore[method-assign]


def _interpret_faster() -> None:
    """Leave out of Triton's interpreter what does not change results, if it is a version that is known here.

    - It computes every sum, difference and product of 32-bit integers in 64 bits too, and compares them with the
      limits in an assertion that it then leaves out, because it does not debug.
    - It makes a table of all dtypes to look one of them up.
    - It looks through all functions of the language at every call of a kernel, and for each function that a kernel
      calls replaces them once more.
    - It makes the shape of every tensor, and of every tensor's type, from the beginning.

    This is more than half of the time of a small kernel.
    """
    from triton import language  # noqa: PLC0415  not installed everywhere
    from triton.language.core import is_builtin  # noqa: PLC0415
    from triton.runtime import interpreter  # noqa: PLC0415

    @cache
    def names(namespace: Any) -> list[str]:
        return [name for name, member in getmembers(namespace) if is_builtin(member)]

    def replace_functions(namespace: Any, *rest: Any) -> None:
        for name in names(namespace):
            # A kernel that calls another finds its functions replaced.
            if is_builtin(member := getattr(namespace, name)):
                interpreter._patch_attr(namespace, name, member, *rest)

    replace_all = getattr(interpreter, "_patch_lang", None)

    def replace_all_once(function: Any) -> Any:
        modules = [each for each in function.__globals__.values() if each is language or each is language.core]
        if modules and not any(is_builtin(each.load) for each in modules):
            return interpreter._LangPatchScope()
        return replace_all(function)  # type: ignore[misc]

    numpy_dtype = getattr(interpreter, "_get_np_dtype", None)
    known: dict[str, Any] = {}

    def known_numpy_dtype(dtype: Any) -> Any:
        name = dtype.scalar.name
        if name not in known:
            known[name] = numpy_dtype(dtype)  # type: ignore[misc]
        return known[name]

    core = language.core
    make_type, make_tensor = core.block_type.__init__, core.tensor.__init__
    types: dict[Any, dict[str, Any]] = {}
    shapes: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def new_type(self: Any, element_ty: Any, shape: Any) -> None:
        key = element_ty.name, *(each.value if isinstance(each, core.constexpr) else each for each in shape)
        if key not in types:
            make_type(self, element_ty, shape)
            types[key] = dict(vars(self))
        vars(self).update(types[key], element_ty=element_ty)

    def new_tensor(self: Any, handle: Any, type: Any) -> None:
        key = tuple(type.shape) if type.is_block() else ()
        if key not in shapes:
            make_tensor(self, handle, type)
            shapes[key] = self.shape, self.numel
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = shapes[key]

    probe = core.tensor(None, core.block_type(core.int32, [2]))
    if vars(probe).keys() == {"handle", "type", "dtype", "shape", "numel"}:
        core.block_type.__init__, core.tensor.__init__ = new_type, new_tensor
    if hasattr(interpreter, "_patch_builtin"):
        interpreter._patch_builtin = replace_functions
    if replace_all and hasattr(interpreter, "_LangPatchScope"):
        interpreter._patch_lang = replace_all_once
    if numpy_dtype:
        interpreter._get_np_dtype = known_numpy_dtype
    builder = getattr(interpreter, "interpreter_builder", None)
    if hasattr(builder, "options") and not builder.options.debug:
        builder.options = replace(builder.options, sanitize_overflow=False)


def _remember_options() -> None:
    """Let cyclopts give each command a copy of the options that it has found once.

    Reading their definitions takes three quarters of what it takes to refuse a wrong option.
    """
    from cyclopts import App, ArgumentCollection  # noqa: PLC0415  not installed everywhere

    assemble = App.assemble_argument_collection
    known: dict[Callable[..., Any] | None, list[tuple[dict[str, Any], ArgumentCollection]]] = {}

    def remembered(app: App, **named: Any) -> ArgumentCollection:
        given = {**named, "inherited": app.app_stack.default_parameter}
        found = known.setdefault(app.default_command, [])
        for other, arguments in found:
            if other == given:
                return _without_words(arguments)
        arguments = assemble(app, **named)
        found.append((given, arguments))
        return _without_words(arguments)

    App.assemble_argument_collection = remembered  # type: ignore[method-assign]


def _without_words(arguments: Any) -> Any:
    """Return a copy to which words of the command line can be given, in arguments within arguments too."""
    collection = type(arguments)
    copies = {id(argument): copy.copy(argument) for argument in arguments}
    for each in copies.values():
        each.tokens = []
        each.children = collection(copies[id(child)] for child in each.children)
    return collection(copies.values())
