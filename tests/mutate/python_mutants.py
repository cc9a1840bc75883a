"""The mutants of a Python source, made from its syntax tree."""

import ast
import functools

from tests.mutate.mutant import Mutant

_COMPARE: dict[type[ast.cmpop], tuple[str, tuple[str, ...]]] = {
    ast.Lt: ("<", ("<=", ">=")),
    ast.LtE: ("<=", ("<", ">")),
    ast.Gt: (">", (">=", "<=")),
    ast.GtE: (">=", (">", "<")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
}
_BINARY: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.Pow: ("**", "*"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}
_NAMES = {
    "min": "max",
    "minimum": "maximum",
    "amin": "amax",
    "argmin": "argmax",
    "clamp_min": "clamp_max",
    "floor": "ceil",
    "any": "all",
    "cumsum": "cumprod",
    "zeros": "ones",
    "zeros_like": "ones_like",
    "new_zeros": "new_ones",
}
_NAMES |= {new: old for old, new in _NAMES.items()}


class _Finder(ast.NodeVisitor):
    """Collects the mutants of one file."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.text = text
        self.starts = [0]
        for line in text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line.encode()))
        self.raw = text.encode()
        self.found: list[Mutant] = []
        self.lines: tuple[int, ...] = ()
        self.in_default = False

    def visit(self, node: ast.AST) -> None:
        """Note which lines show that the statement at hand is executed."""
        if not isinstance(node, ast.stmt):
            super().visit(node)
            return
        outer, last = self.lines, node.end_lineno or node.lineno
        inner = getattr(node, "body", None)
        if inner:
            last = max(node.lineno, min(last, inner[0].lineno - 1))
        self.lines = tuple(range(node.lineno, last + 1))
        super().visit(node)
        self.lines = outer

    # Positions: ast counts bytes of UTF-8, a Mutant counts characters.
    def at(self, line: int, column: int) -> int:
        return len(self.raw[: self.starts[line - 1] + column].decode())

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        first = self.at(node.lineno, node.col_offset)
        return first, self.at(node.end_lineno, node.end_col_offset)

    def add(self, span: tuple[int, int], new: str, kind: str, line: int) -> None:
        kind = "default" if self.in_default else kind
        self.found.append(Mutant(self.file, *span, new, kind, line, self.lines))

    def between(self, left: ast.expr, right: ast.expr, old: str, new: str, kind: str) -> None:
        """Replace the operator between two operands."""
        first, last = self.span(left)[1], self.span(right)[0]
        gap = self.text[first:last]
        place = gap.find(old)
        if place < 0 or "#" in gap:
            return
        spot = (first + place, first + place + len(old))
        self.add(spot, new, kind, self.text.count("\n", 0, spot[0]) + 1)

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for left, op, right in zip(operands, node.ops, operands[1:], strict=False):
            old, news = _COMPARE[type(op)]
            for new in news:
                self.between(left, right, old, new, "comparison")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in _BINARY and not _is_text(node):
            self.between(node.left, node.right, *_BINARY[type(node.op)], "arithmetic")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self.between(left, right, old, new, "boolean")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            value = node.operand.value
            if type(value) is int:
                for new in (-value + 1, -value - 1):
                    self.add(self.span(node), str(new), "constant", node.lineno)
                return
        if not isinstance(node.op, ast.UAdd):
            first, last = self.span(node)[0], self.span(node.operand)[0]
            opened = "(" * self.raw.decode()[first:last].count("(")  # they are closed behind it
            self.add((first, last), opened, "negation", node.lineno)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if type(value) is bool:
            self.add(self.span(node), str(not value), "constant", node.lineno)
        elif type(value) is int:
            for new in (value + 1, value - 1):
                self.add(self.span(node), str(new), "constant", node.lineno)
        elif type(value) is float and value + 1 != value:
            self.add(self.span(node), repr(value + 1), "constant", node.lineno)

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in ("min", "max", "any", "all"):
            self.add(self.span(node), _NAMES[node.id], "name", node.lineno)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr in _NAMES:
            last = self.span(node)[1]
            line = node.end_lineno or node.lineno
            self.add((last - len(node.attr), last), _NAMES[node.attr], "name", line)
        self.generic_visit(node)

    def condition(self, test: ast.expr, kind: str) -> None:
        for new in ("True", "False"):
            self.add(self.span(test), new, kind, test.lineno)

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) in ("TYPE_CHECKING", "__name__ == '__main__'"):
            return
        self.condition(node.test, "guard")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.condition(node.test, "choice")
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        if not isinstance(node.test, ast.Constant):
            self.add(self.span(node.test), "False", "guard", node.lineno)
        self.generic_visit(node)

    def remove(self, node: ast.stmt) -> None:
        self.add(self.span(node), "pass", "statement", node.lineno)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self.remove(node)
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self.remove(node)  # and not into the message

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.remove(node)
        if type(node.op) in _BINARY:
            old, new = _BINARY[type(node.op)]
            self.between(node.target, node.value, old + "=", new + "=", "arithmetic")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if any(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self.remove(node)
        if not any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            self.generic_visit(node)

    def visit_Continue(self, node: ast.Continue) -> None:
        self.remove(node)

    def visit_Break(self, node: ast.Break) -> None:
        self.remove(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)  # and not into the annotation

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if any(ast.unparse(name).endswith("overload") for name in node.decorator_list):
            return
        outer = self.lines
        last = node.end_lineno or node.lineno
        self.lines = tuple(range(node.body[0].lineno, last + 1))  # a default acts in the body
        self.in_default = True
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.visit(default)
        self.lines, self.in_default = outer, False
        for statement in node.body:
            self.visit(statement)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - the name ast calls

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Nothing inside a formatted text."""


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(side, ast.JoinedStr)
        or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )


@functools.lru_cache(maxsize=64)
def _tree(text: str) -> str | None:
    try:
        return ast.dump(ast.parse(text))
    except SyntaxError:
        return None


def changes_program(mutant: Mutant, text: str) -> bool:
    """Whether a mutant of a Python source parses, to another syntax tree than the original."""
    return _tree(mutant.apply(text)) not in (None, _tree(text))


def python_mutants(file: str, text: str) -> list[Mutant]:
    """Every mutant of a Python source, in the order of its lines.

    Args:
        file: the path of the source, relative to the root of the repository.
        text: the source.

    Returns:
        Mutants of which no two give the same text. `changes_program` tells the few that do not
        parse or mean the same; it is too slow to ask of all.

    Example:
        >>> [mutant.apply("x = a < 3") for mutant in python_mutants("x.py", "x = a < 3")]
        ['x = a <= 3', 'x = a >= 3', 'x = a < 4', 'x = a < 2']
    """
    finder = _Finder(file, text)
    finder.visit(ast.parse(text))
    ordered = sorted(finder.found, key=lambda mutant: (mutant.start, mutant.end))
    unique = {(mutant.start, mutant.end, mutant.new): mutant for mutant in ordered}
    return list(unique.values())
