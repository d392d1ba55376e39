"""The reference of the public surface, read from the code: signatures with their shapes, and what docstrings say of them.

Nothing is imported, so a page can neither be slow nor depend on what is installed. Docstrings are Markdown with
Google's sections.
"""

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# The rooms with a page, as a notebook meets them; of `measures` each module is a face.
ROOMS = ("models", "images", "interventions", "capture", "measures", "figures", "diagnosis", "publish")
SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises")
WIDTH = 78  # characters of code that a page shows
# Where HTML, the address of a Markdown link, a role or mathematics would begin.
_MARKUP = re.compile(r"<(?=[A-Za-z/!?])|(?<=])\(|\{(?=[\w:+-]+\}`)|\$|(?<=\w)_(?=\W|$)|(?<!\w)_(?=\w)|\*")


@dataclass(frozen=True)
class Entry:
    """A name of the surface: where it is offered, the statement that defines it, and the comment above that."""

    name: str
    module: str
    node: ast.AST
    comment: str = ""

    @property
    def documented(self) -> bool:
        """Whether its own code says what it is."""
        is_definition = isinstance(self.node, ast.FunctionDef | ast.ClassDef | ast.Module)
        return bool(ast.get_docstring(self.node) if is_definition else self.comment or isinstance(self.node, ast.Assign))


def entries(package: Path, room: str) -> Iterator[Entry]:
    """The public names of a room of the package: those of its face's `__all__`, or of `measures` the functions and classes of
    each module.

    Raises ValueError for a name that a face offers and no module defines.
    """
    if room == "measures":
        for path in sorted((package / room).glob("[!_]*.py")):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                    yield Entry(node.name, f"helpers.{room}.{path.stem}", node)
        return
    face = package / room / "__init__.py"
    for name in sorted(_offered(face), key=lambda name: (name.isupper(), name.lower())):
        yield _defined(package, face, name, f"helpers.{room}", name)


def pages(package: Path) -> dict[str, str]:
    """Room -> its page, as Markdown."""
    return {room: _page(package, room) for room in ROOMS}


def _page(package: Path, room: str) -> str:
    parts = [f"(api-{room})=\n# `helpers.{room}`", _text(_docstring(package / room / "__init__.py"))]
    module = f"helpers.{room}"
    for entry in entries(package, room):
        if entry.module != module:
            module = entry.module
            parts += [f"## `{module}`", _text(_docstring(package.parent.joinpath(*module.split(".")).with_suffix(".py")))]
        level = "###" if room == "measures" else "##"  # below its module
        parts.append(f"{level} `{entry.name}`\n\n{_shown(entry)}")
    return "\n\n".join(filter(None, parts)) + "\n"


def _offered(face: Path) -> list[str]:
    for node in ast.parse(face.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    raise ValueError(f"{face}: a face has a list __all__")


def _docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def _defined(package: Path, path: Path, name: str, module: str, offered: str) -> Entry:
    """The definition of `name` in a file, or in the one from which that imports it."""
    source = path.read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return Entry(offered, module, node)
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if name in {ast.unparse(target) for target in targets}:
                return Entry(offered, module, node, _comment(source, node))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("helpers"):
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    folder = package.parent.joinpath(*node.module.split("."))
                    if (whole := folder / f"{alias.name}.py").is_file():
                        return Entry(offered, module, ast.parse(whole.read_text(encoding="utf-8")))
                    below = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
                    return _defined(package, below, alias.name, module, offered)
    raise ValueError(f"{path}: no definition of {name!r}, which {module} offers")


def _comment(source: str, node: ast.stmt) -> str:
    """What the lines of comment above a statement say, and the one behind it."""
    lines = source.split("\n")
    above = []
    for line in reversed(lines[: node.lineno - 1]):
        if not line.startswith("#"):
            break
        above.insert(0, line.lstrip("# "))
    behind = re.search(r"  # (.+)$", lines[node.end_lineno - 1])
    return " ".join([*above, *([behind[1]] if behind else [])])


def _shown(entry: Entry) -> str:
    node = entry.node
    if isinstance(node, ast.Module):
        return _text(ast.get_docstring(node) or "")
    if isinstance(node, ast.FunctionDef):
        return f"{_code(_signature(node, entry.name))}\n\n{_text(ast.get_docstring(node) or '')}"
    if isinstance(node, ast.ClassDef):
        members = [one for one in node.body if isinstance(one, ast.FunctionDef) and not one.name.startswith("_")]
        listed = [f"`{_call(one)}`\n: {_brief(one)}" for one in members if ast.get_docstring(one)]
        parts = [_code(_construction(node, entry.name)), _text(ast.get_docstring(node) or ""), "\n\n".join(listed)]
        return "\n\n".join(filter(None, parts))
    return "\n\n".join(filter(None, [_code(_short(ast.unparse(node))), _text(entry.comment)]))


def _signature(node: ast.FunctionDef, name: str, drop: int = 0) -> str:
    """`name(arguments) -> type`, an argument a line where one line is too short; without the first `drop` arguments."""
    arguments = node.args
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    parts = [_argument(one, default) for one, default in zip(plain, defaults, strict=True)][drop:]
    if arguments.vararg:
        parts.append(f"*{_argument(arguments.vararg, None)}")
    elif arguments.kwonlyargs:
        parts.append("*")
    parts += [_argument(one, default) for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    parts += [f"**{_argument(arguments.kwarg, None)}"] if arguments.kwarg else []
    return _laid_out(name, parts, f" -> {ast.unparse(node.returns)}" if node.returns else "")


def _argument(one: ast.arg, default: ast.expr | None) -> str:
    text = f"{one.arg}: {ast.unparse(one.annotation)}" if one.annotation else one.arg
    if default is None:
        return text
    return f"{text} = {ast.unparse(default)}" if one.annotation else f"{text}={ast.unparse(default)}"


def _laid_out(name: str, parts: list[str], end: str = "") -> str:
    line = f"{name}({', '.join(parts)}){end}"
    if len(line) <= WIDTH or not parts:
        return line
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){end}"])


def _construction(node: ast.ClassDef, name: str) -> str:
    """How an instance is made: by `__init__`, or of a dataclass by its fields."""
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and one.name == "__init__":
            return _signature(ast.FunctionDef("__init__", one.args, [], []), name, drop=1)
    fields = [one for one in node.body if isinstance(one, ast.AnnAssign) and not ast.unparse(one.target).startswith("_")]
    fields = [one for one in fields if not ast.unparse(one.annotation).startswith("ClassVar")]
    if not any("dataclass" in ast.unparse(one) for one in node.decorator_list) and not fields:
        return f"class {name}"
    return _laid_out(name, [_field(one) for one in fields])


def _field(one: ast.AnnAssign) -> str:
    text = f"{ast.unparse(one.target)}: {ast.unparse(one.annotation)}"
    return f"{text} = {ast.unparse(one.value)}" if one.value is not None else text


def _call(node: ast.FunctionDef) -> str:
    """A method or property in a line, by the names of its arguments alone."""
    if any(ast.unparse(one).endswith("property") for one in node.decorator_list):
        return node.name
    static = any(ast.unparse(one) == "staticmethod" for one in node.decorator_list)
    names = [one.arg for one in (*node.args.posonlyargs, *node.args.args)][0 if static else 1 :]
    return f"{node.name}({', '.join([*names, *(one.arg for one in node.args.kwonlyargs)])})"


def _brief(node: ast.FunctionDef) -> str:
    return _inert(" ".join(ast.get_docstring(node).split("\n\n")[0].split()))


def _short(code: str) -> str:
    return code if len(code) <= 4 * WIDTH else code[: 4 * WIDTH].rstrip() + " ..."


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _text(docstring: str) -> str:
    """A docstring as Markdown: Google's sections as definition lists, doctests as code."""
    parts = []
    for block in docstring.split("\n\n"):
        head, _, rest = block.strip("\n").partition("\n")
        if head.rstrip(":") in SECTIONS and head.endswith(":"):
            parts.append(f"**{head.rstrip(':')}**\n\n{_items(textwrap.dedent(rest), head.rstrip(':'))}")
        elif head.lstrip().startswith(">>>"):
            parts.append(f"```pycon\n{textwrap.dedent(block)}\n```")
        elif head.startswith("    "):
            parts.append(f"```\n{textwrap.dedent(block)}\n```")
        elif block.strip():
            parts.append("\n".join(_inert(line) for line in block.split("\n")))
    return "\n\n".join(parts)


def _items(text: str, section: str) -> str:
    """`name: what it is`, with what is indented below, as a definition list; other text as it is."""
    items: list[list[str]] = []
    for line in text.split("\n"):
        if items and line.startswith(" "):
            items[-1].append(line.strip())
        else:
            items.append([line.strip()])
    found = []
    for item in items:
        line = " ".join(item)
        name = re.match(r"([\w*]+(?:, [\w*]+)*): (.+)", line, flags=re.S)
        found.append(f"`{name[1]}`\n: {_inert(name[2])}" if name and section != "Returns" else _inert(line))
    return "\n\n".join(found)


def _inert(text: str) -> str:
    """Text in which nothing but what stands in backticks is read as markup."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else _MARKUP.sub(lambda match: f"&#{ord(match[0])};", part) for part in parts)
