"""An extension of griffe: `**options: Unpack[WorkOptions]` is shown as the arguments that it stands for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import griffe


def _fields(options: griffe.Object) -> Iterator[griffe.Attribute]:
    """Yield the fields of a TypedDict: first its own, then those of its bases."""
    yield from options.attributes.values()
    assert isinstance(options, griffe.Class)
    for base in options.resolved_bases:
        if isinstance(base, griffe.Class):
            yield from _fields(base)


def _functions(scope: griffe.Object) -> Iterator[griffe.Function]:
    for member in scope.members.values():
        if isinstance(member, griffe.Function):
            yield member
        elif isinstance(member, griffe.Class | griffe.Module):
            yield from _functions(member)


class TypedOptions(griffe.Extension):
    """Expand the options of all functions of a package."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Expand them once the package is loaded as a whole."""
        for function in _functions(pkg):
            rest = function.parameters[-1] if function.parameters else None
            if rest is not None and "Unpack[" in str(rest.annotation):
                self._expand(function, rest, pkg)

    def _expand(self, function: griffe.Function, rest: griffe.Parameter, package: griffe.Module) -> None:
        annotation = rest.annotation
        assert isinstance(annotation, griffe.ExprSubscript)
        path = annotation.slice.canonical_path if isinstance(annotation.slice, griffe.Expr) else ""
        fields = [*_fields(package.modules_collection[path])]
        del function.parameters[rest.name]
        lines = []
        for field in fields:
            if field.name in function.parameters:
                continue
            words = " ".join(field.docstring.value.split()) if field.docstring else ""
            lines.append(f"    {field.name}: {words}")
            function.parameters.add(
                griffe.Parameter(
                    field.name,
                    annotation=field.annotation,
                    kind=griffe.ParameterKind.keyword_only,
                    default="...",
                )
            )
        if function.docstring is not None:
            text, raises, errors = function.docstring.value.partition("\n\nRaises:")
            function.docstring.value = f"{text}\n\nArgs:\n" + "\n".join(lines) + raises + errors
