#!/usr/bin/env python3
"""Checks the public headers, cmake/install.cmake's lists; exits with 1 after printing what is wrong: tools/surface.py

A public header includes public headers only. Any other header declares everything in headroom::internal.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

LISTS = Path("cmake/install.cmake")


def faults(header: str, public: set[str]) -> Iterator[str]:
    text = Path(header).read_text()
    if header in public:
        for name in re.findall(r'^#include "(.+)"$', text, re.MULTILINE):
            if name not in public:
                yield f"is public and includes {name}, which is not"
        return
    # clang-format begins a namespace in the first column unless another one surrounds it.
    for name in re.findall(r"^namespace (headroom\S*) \{$", text, re.MULTILINE):
        if not re.match(r"headroom::internal\b", name):
            yield f"is not public and declares in {name}"


def main() -> int:
    listed = re.findall(r"^set\(public_\w*headers\n(.*?)^\)$", LISTS.read_text(), re.MULTILINE | re.DOTALL)
    public = {f"headroom/{name}" for name in "".join(listed).split()}
    listing = ["git", "ls-files", "headroom/**.h"]
    headers = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split()
    found = [f"{LISTS}: {header} is not there" for header in sorted(public.difference(headers))]
    found += [f"{header}: {fault}" for header in headers for fault in faults(header, public)]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
