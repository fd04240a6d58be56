"""Patches that make tests faster; `HELIXFOLD_TEST_SPEEDUPS=0` switches them off.

Call `install` before importing packages whose shapes are checked, as tests/conftest.py and forked processes do.
tests/README.md lists how much time each patch saves.
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
    """Install all patches, unless they are switched off."""
    jaxtyping.jaxtyped = shapes_checked
    if not IS_ON:
        return
    # Processes that tests start would compile every module again where bytecode is switched off, and pytest would
    # rewrite the assertions of every test file again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    # Test tensors are small: threads that wait for each other would take most of the time, also in child processes.
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    _count_without_checks()
    if find_spec("triton") and os.environ.get("TRITON_INTERPRET") == "1":
        _interpret_faster()
    if find_spec("cyclopts"):
        _remember_options()


# Shapes are checked once for each form of a call: networks repeat calls with the same shapes, and a check by jaxtyping
# takes several times as long as computing small tensors.

# The forms of arguments that passed the check, with the forms of their results. Keys are code and name, because nested
# functions are new objects in each call.
_RIGHT: dict[tuple[CodeType, str, str], dict[Any, set[Any]]] = {}
# Builders of the checks of module-level functions; building one takes milliseconds.
_MAKERS: list[Callable[[], object]] = []
# A function that is called in more forms than this, such as one that reads lines, is checked at every call.
_MAX_FORMS = 100
# Annotations never depend on the value of a number, but they may name a text.
_BY_KIND = {int, float, complex, slice, type(None), type(...), bytes}


def form(value: Any) -> Any:
    """Return a key that is equal for values that no annotation can distinguish."""
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


def shapes_checked(*, typechecker: Any) -> Callable[[Any], Any]:
    """Replace `jaxtyped`: functions without shapes in their annotations are left to mypy.

    With speed-ups, a call is not checked if a call with arguments and a result of the same forms has passed.
    """
    decorate = jaxtyped(typechecker=typechecker)

    def checked(function: Any) -> Any:
        if isinstance(function, type) and "__init__" in vars(function) and is_dataclass(function):
            function.__init__ = checked(function.__init__)
            return function
        if type(function) is not FunctionType:
            return decorate(function)
        if not _has_shapes(function):
            return function
        return _checked_once(function, decorate) if IS_ON else decorate(function)

    return checked


def _has_shapes(function: FunctionType) -> bool:
    """Return whether any annotation has a shape."""
    return any(isinstance(each, str) or "jaxtyping" in repr(each) for each in function.__annotations__.values())


def _checked_once(function: FunctionType, decorate: Callable[[Any], Any]) -> Callable[..., Any]:
    # Methods that are generated for data classes with equal field names have equal code, so the name is needed too.
    right = _RIGHT.setdefault((function.__code__, function.__module__, function.__qualname__), {})
    check: Callable[..., Any] | None = None

    def make_check() -> Callable[..., Any]:
        nonlocal check
        check = check or decorate(function)
        return check

    if "<locals>" not in function.__qualname__:
        _MAKERS.append(make_check)
    # The form of `self` is its class only, because reading its shape may call a method.
    first = type if function.__code__.co_varnames[:1] in {("self",), ("cls",)} else form

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if config.jaxtyping_disable:
            return function(*args, **kwargs)
        if len(right) > _MAX_FORMS:
            return make_check()(*args, **kwargs)
        key = tuple(map(first, args[:1])) + tuple(map(form, args[1:]))
        if kwargs:
            key += *kwargs, *map(form, kwargs.values())
        returns = right.get(key)
        if returns is None:
            result = make_check()(*args, **kwargs)
            right[key] = {form(result)}
            return result
        if len(returns) > _MAX_FORMS:
            return make_check()(*args, **kwargs)
        result = function(*args, **kwargs)
        if (returned := form(result)) not in returns:
            decorate(_giving(result, function))(*args, **kwargs)
            returns.add(returned)
        return result

    return call


def _giving(value: Any, function: FunctionType) -> FunctionType:
    """Return a function of the same signature that returns `value`."""

    def give(*_: Any, **__: Any) -> Any:
        return value

    return update_wrapper(FunctionType(give.__code__, function.__globals__, "give", None, give.__closure__), function)


def make_checks() -> None:
    """Build the checks of all imported functions, so that forked processes inherit them."""
    for make_check in _MAKERS:
        make_check()


def leave_shapes_unchecked() -> None:
    """Stop checking shapes, for integration tests: unit tests call the same functions with checks."""
    if IS_ON:
        config.update("jaxtyping_disable", True)
        os.environ["JAXTYPING_DISABLE"] = "1"  # for the processes that tests start


def _count_without_checks() -> None:
    """Switch off checks while operators are counted on the meta device, where checks take longer than counting."""
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
    """Skip work of Triton's interpreter that does not change results, in versions with the expected functions.

    - It also computes every sum, difference and product of 32-bit integers in 64 bits, to compare it with the limits in
      an assertion, which only exists in debug mode.
    - It builds a table of all dtypes for each look-up.
    - It looks through all functions of the language at every call of a kernel, and for each function that a kernel
      calls replaces them once more.
    - It builds the shape of every tensor and of every type again.

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
    dtypes: dict[str, Any] = {}

    def cached_numpy_dtype(dtype: Any) -> Any:
        name = dtype.scalar.name
        if name not in dtypes:
            dtypes[name] = numpy_dtype(dtype)  # type: ignore[misc]
        return dtypes[name]

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
        interpreter._get_np_dtype = cached_numpy_dtype
    builder = getattr(interpreter, "interpreter_builder", None)
    if hasattr(builder, "options") and not builder.options.debug:
        builder.options = replace(builder.options, sanitize_overflow=False)


def _remember_options() -> None:
    """Read the options of each command once, and give cyclopts copies.

    Reading their definitions takes three quarters of the time of rejecting a wrong option.
    """
    from cyclopts import App, ArgumentCollection  # noqa: PLC0415  not installed everywhere

    assemble = App.assemble_argument_collection
    collections: dict[Callable[..., Any] | None, list[tuple[dict[str, Any], ArgumentCollection]]] = {}

    def remembered(app: App, **named: Any) -> ArgumentCollection:
        key = {**named, "inherited": app.app_stack.default_parameter}
        entries = collections.setdefault(app.default_command, [])
        for other, arguments in entries:
            if other == key:
                return _without_words(arguments)
        arguments = assemble(app, **named)
        entries.append((key, arguments))
        return _without_words(arguments)

    App.assemble_argument_collection = remembered  # type: ignore[method-assign]


def _without_words(arguments: Any) -> Any:
    """Return a copy without values from the command line, also of nested arguments."""
    collection = type(arguments)
    copies = {id(argument): copy.copy(argument) for argument in arguments}
    for each in copies.values():
        each.tokens = []
        each.children = collection(copies[id(child)] for child in each.children)
    return collection(copies.values())
