"""The size of the package, part of `make lint`: bounds that may only fall. Where a change goes below one, lower it."""

import ast
import sys
from pathlib import Path

MOST = {
    "lines of code": 37_070,
    "files": 230,
    "isinstance": 417,
    "lines of a file": 372,
    "methods of a class": 25,
    "functions with more than 12 parameters": 2,
    "the cyclomatic number of a function": 15,
}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_BRANCHES = (ast.If, ast.For, ast.While, ast.ExceptHandler, ast.match_case)


def code_lines(text: str, nodes: list[ast.AST]) -> int:
    """The number of lines of a module that hold code: no comments, docstrings or blank lines."""
    lines = text.splitlines()
    for node in nodes:
        body = node.body if isinstance(node, (ast.Module, ast.ClassDef, *_FUNCTIONS)) else []
        first = body[0] if body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            last = first.end_lineno or first.lineno
            lines[first.lineno - 1 : last] = [""] * (last - first.lineno + 1)
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in lines)


def branches(function: ast.AST) -> int:
    """The cyclomatic number of a function, without the functions inside of it."""
    found, nodes = 1, list(ast.iter_child_nodes(function))
    while nodes:
        node = nodes.pop()
        found += isinstance(node, _BRANCHES)
        if not isinstance(node, (*_FUNCTIONS, ast.Lambda)):
            nodes += ast.iter_child_nodes(node)
    return found


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    given = function.args
    return len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs)


def measured(texts: list[str]) -> dict[str, int]:
    """What there is in modules of each thing that has a bound."""
    lines, calls, methods, functions = [], 0, [0], []
    for text in texts:
        nodes = list(ast.walk(ast.parse(text)))
        lines.append(code_lines(text, nodes))
        functions += [node for node in nodes if isinstance(node, _FUNCTIONS)]
        for node in nodes:
            calls += isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance"
            if isinstance(node, ast.ClassDef):
                methods.append(sum(isinstance(part, _FUNCTIONS) for part in node.body))
    return {
        "lines of code": sum(lines),
        "files": len(texts),
        "isinstance": calls,
        "lines of a file": max(lines),
        "methods of a class": max(methods),
        "functions with more than 12 parameters": sum(parameters(one) > 12 for one in functions),
        "the cyclomatic number of a function": max(map(branches, functions)),
    }


def main() -> int:
    """Print what is above its bound; 1 if anything is."""
    package = Path(__file__).parent.parent / "kalprox"
    found = measured([path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py"))])
    above = [f"{what}: {found[what]:,}, at most {most:,}" for what, most in MOST.items() if found[what] > most]
    print("\n".join(above) or "The house: " + ", ".join(f"{what} {count:,}" for what, count in found.items()))
    return bool(above)


if __name__ == "__main__":
    sys.exit(main())
