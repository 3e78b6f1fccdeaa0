#!/usr/bin/env python3
"""Prints source files over 500 lines and functions over 60; exits with 1 if there are any: tools/sizes.py

Functions of tests may be longer. Functions of C++ are found by their layout: clang-format ends one with a brace in the
column of its first line.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

FILE_LINES, FUNCTION_LINES = 500, 60
FOLDERS = ("headroom", "python")
TEST_FOLDER = "tests"


def python_functions(text: str) -> Iterator[tuple[str, int, int]]:
    """Yields the name, first line and number of lines of each function, docstrings left out."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = node.body[0] if ast.get_docstring(node) else None
            left_out = docstring.end_lineno - docstring.lineno + 1 if docstring else 0
            yield node.name, node.lineno, node.end_lineno - node.lineno + 1 - left_out


def cpp_functions(text: str) -> Iterator[tuple[str, int, int]]:
    """Yields the name, first line and number of lines of each function that is no part of another one."""
    lines = text.splitlines()
    start: tuple[str, int, str] | None = None
    for number, line in enumerate(lines, 1):
        head = re.match(r"( {0,2})(?!namespace|class|struct|enum|union|return|if|for|while|else|switch)\S.*\{$", line)
        if start is None and head and "= {" not in line:
            first = number
            # The first line of a signature that takes several has the name.
            while first > 1 and "(" not in lines[first - 1]:
                first -= 1
            name = re.search(r"([\w:~]+)\(", lines[first - 1])
            start = (name.group(1) if name else line.strip(), number, head.group(1))
        elif start is not None and re.match(rf"{start[2]}\}}", line):
            yield start[0], start[1], number - start[1] + 1
            start = None


def main() -> int:
    listing = ["git", "ls-files", *FOLDERS, TEST_FOLDER]
    tracked = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split()
    excesses = 0
    for name in tracked:
        if not name.endswith((".py", ".h", ".cpp")):
            continue
        text = Path(name).read_text()
        count = text.count("\n")
        if count > FILE_LINES:
            print(f"{name}: {count} lines")
            excesses += 1
        if name.startswith(TEST_FOLDER):
            continue
        functions = python_functions(text) if name.endswith(".py") else cpp_functions(text)
        for function, line, length in functions:
            if length > FUNCTION_LINES:
                print(f"{name}:{line}: {function} has {length} lines")
                excesses += 1
    return 1 if excesses else 0


if __name__ == "__main__":
    sys.exit(main())
