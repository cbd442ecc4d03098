"""Write probe/vendor_enums.json: the enum names and attribute types of the cuBLASLt headers of one wheel.

    python tools/extract_enums.py            # from the nvidia-cublas wheel of this environment
    python tools/extract_enums.py --check    # exit 1 if the committed file differs

Nothing is typed in by hand: names and numbers come from the enums, the C type of an attribute from the line
of its comment that states it ("int32_t, default: 0"). The wheel, its version and the hash of each header
are kept beside the data.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib.metadata
import json
import re
import sys
from pathlib import Path
from typing import Any

WHEEL = "nvidia-cublas"
OUTPUT = Path(__file__).resolve().parent.parent / "probe" / "vendor_enums.json"

ENUMS = {
    "cublas_api.h": ["cublasStatus_t", "cublasOperation_t", "cublasPointerMode_t", "cublasComputeType_t"],
    "cublasLt.h": [
        "cublasLtMatmulTile_t",
        "cublasLtMatmulStages_t",
        "cublasLtClusterShape_t",
        "cublasLtMatmulInnerShape_t",
        "cublasLtPointerMode_t",
        "cublasLtReductionScheme_t",
        "cublasLtEpilogue_t",
    ],
}
ATTRIBUTES = [
    "cublasLtMatrixLayoutAttribute_t",
    "cublasLtMatmulDescAttributes_t",
    "cublasLtMatmulPreferenceAttributes_t",
    "cublasLtMatmulAlgoConfigAttributes_t",
]
TYPES = ("int8_t", "int16_t", "uint16_t", "int32_t", "uint32_t", "int64_t", "uint64_t", "float")


def headers() -> tuple[str, dict[str, bytes]]:
    """(version, {file name: bytes}) of the two headers in the installed wheel."""
    distribution = importlib.metadata.distribution(WHEEL)
    found = {}
    for file in distribution.files or []:
        if file.name in ENUMS:
            found[file.name] = Path(str(file.locate())).read_bytes()
    missing = set(ENUMS) - set(found)
    if missing:
        raise SystemExit(f"the wheel {WHEEL} has no {', '.join(sorted(missing))}")
    return distribution.version, found


def enum_body(text: str, name: str) -> str:
    """The text between the braces of `typedef enum { ... } name;`."""
    match = re.search(r"typedef enum\s*\{((?:(?!typedef enum).)*?)\}\s*" + name + r"\s*;", text, re.DOTALL)
    if match is None:
        raise SystemExit(f"no enum {name} in the header")
    return match[1]


def evaluate(expression: str, known: dict[str, int]) -> int:
    """The value of a C constant made of numbers, known names and the operators | << and brackets."""

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.Name):
            return known[node.id]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return value(node.left) | value(node.right)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift):
            return value(node.left) << value(node.right)
        raise SystemExit(f"cannot evaluate {expression!r}")

    return value(ast.parse(expression.strip(), mode="eval").body)


def members(body: str, known: dict[str, int]) -> dict[str, int]:
    """{name: number} of an enum, without the _END marker. `known` gains every name."""
    out: dict[str, int] = {}
    following = 0
    bare = re.sub(r"//[^\n]*", "", re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL))
    for item in bare.split(","):
        name, _, expression = item.strip().partition("=")
        name = name.strip()
        if not name:
            continue
        number = evaluate(expression, known) if expression else following
        known[name], following = number, number + 1
        if not name.endswith("_END"):
            out[name] = number
    return out


def attribute_type(comment: str, name: str) -> str:
    """The C type that a comment states for its attribute; every pointer is "void*"."""
    found = []
    for line in comment.splitlines():
        plain = line.strip().lstrip("*").strip()
        stated = re.match(r"(?:[A-Z][a-z ]+: )?(const void \*|void \*|\w+)(?=[,;]|$| based on)", plain)
        if stated and stated[1] in TYPES:
            found.append(stated[1])
        elif stated and (stated[1].endswith("void *") or stated[1] == "cublasLtEmulationDesc_t"):
            found.append("void*")
    if len(set(found)) != 1:
        raise SystemExit(f"the comment of {name} states {found or 'no type'}")
    return found[0]


def attributes(body: str, known: dict[str, int]) -> dict[str, dict[str, Any]]:
    """{name: {"number", "type"}} of an enum of attributes."""
    numbers = members(body, known)
    out = {}
    for comment, name in re.findall(r"/\*\*(.*?)\*/\s*(\w+)\s*=", body, re.DOTALL):
        out[name] = {"number": numbers[name], "type": attribute_type(comment, name)}
    if set(out) != set(numbers):
        raise SystemExit(f"no comment for {sorted(set(numbers) - set(out))}")
    return out


def extract() -> dict[str, Any]:
    """The whole content of vendor_enums.json."""
    version, files = headers()
    known: dict[str, int] = {}
    enums: dict[str, dict[str, int]] = {}
    for file, names in ENUMS.items():
        text = files[file].decode()
        for name in names:
            enums[name] = members(enum_body(text, name), known)
    text = files["cublasLt.h"].decode()
    return {
        "source": {
            "wheel": WHEEL,
            "version": version,
            "headers": {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())},
        },
        "enums": enums,
        "attributes": {name: attributes(enum_body(text, name), known) for name in ATTRIBUTES},
    }


def render(content: dict[str, Any]) -> str:
    """The text of vendor_enums.json for one content."""
    return json.dumps(content, indent=1) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="compare with the committed file, write nothing")
    check = parser.parse_args().check
    text = render(extract())
    if check:
        same = OUTPUT.read_text() == text
        print("same" if same else f"{OUTPUT.name} differs from the installed headers")
        return 0 if same else 1
    OUTPUT.write_text(text)
    print(f"wrote {OUTPUT.name}: {len(text)} characters")
    return 0


if __name__ == "__main__":
    sys.exit(main())
