"""Write probe/vendor_enums.json: the enum names and attribute types of the cuBLASLt headers, one table a release.

    python -m tools.extract_enums                               # the releases of RELEASES, downloaded (2.3 GB, 40 s to minutes)
    python -m tools.extract_enums nvidia-cublas==13.11.0.1      # this release too; the tables that are there stay
    python -m tools.extract_enums --check                       # exit 1 if the table of the installed wheel differs from its headers

pip is the client, one wheel at a time in a temporary folder, of which only the headers are read. Nothing is typed in by hand: names and
numbers come from the enums, the C type of an attribute from the line of its comment that states it ("int32_t, default: 0"). The wheel, its
version and hash, and the hash of each header are kept beside the data. The oldest release is written whole, each later one as a JSON merge
patch of the one before it, which is what a reader wants to know of it.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib.metadata
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))  # for `python tools/extract_enums.py`; last, so that an installed probe comes first

from probe.vendor import DEFAULT, expanded, numbers  # noqa: E402 (after the path)

OUTPUT = ROOT / "probe" / "vendor_enums.json"
RELEASES = ["nvidia-cublas-cu12==12.8.5.5", "nvidia-cublas-cu12==12.9.3.13", "nvidia-cublas==13.1.0.3", "nvidia-cublas==13.10.0.20"]
WHEEL = "nvidia-cublas"  # of the release that --check looks at

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
    "cublasLtMatmulAlgoCapAttributes_t",
]
TYPES = ("int8_t", "int16_t", "uint16_t", "int32_t", "uint32_t", "int64_t", "uint64_t", "float")


def installed() -> tuple[str, dict[str, bytes]]:
    """(version, {file name: bytes}) of the two headers in the installed wheel."""
    distribution = importlib.metadata.distribution(WHEEL)
    found = {file.name: Path(str(file.locate())).read_bytes() for file in distribution.files or [] if file.name in ENUMS}
    return distribution.version, _complete(found, WHEEL)


def unpacked(wheel: Path) -> dict[str, bytes]:
    """{file name: bytes} of the two headers in a wheel file."""
    with zipfile.ZipFile(wheel) as archive:
        paths = {Path(name).name: name for name in archive.namelist() if Path(name).name in ENUMS}
        return _complete({name: archive.read(path) for name, path in paths.items()}, wheel.name)


def _complete(found: dict[str, bytes], where: str) -> dict[str, bytes]:
    missing = set(ENUMS) - set(found)
    if missing:
        raise SystemExit(f"{where} has no {', '.join(sorted(missing))}")
    return found


def download(release: str) -> dict[str, Any]:
    """The whole table of a release, "nvidia-cublas==13.1.0.3", from its wheel. pip verifies the wheel against its index."""
    name, _, version = release.partition("==")
    if not version:
        raise SystemExit(f"{release!r} is no release: nvidia-cublas==13.1.0.3")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
        subprocess.run([*command, "--dest", folder, release], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with wheel.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return table({"wheel": name, "version": version, "file": wheel.name, "sha256": sha256}, unpacked(wheel))


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


def attribute_type(comment: str, name: str, enums: set[str]) -> str:
    """The C type that a comment states for its attribute; a pointer is "void*", one of `enums` is as wide as an int, an array is "T[]"."""
    found = []
    for line in comment.splitlines():
        plain = line.strip().lstrip("*").strip()
        if plain.startswith("array of ") and plain.removeprefix("array of ") in TYPES:
            found.append(plain.removeprefix("array of ") + "[]")
            continue
        stated = re.match(r"(?:[A-Z][a-z ]+: )?((?:const )?\w+ ?\*|\w+)(?=[,;]|$| based on| default| 0 means)", plain)
        if stated is None:
            continue
        if stated[1] in TYPES:
            found.append(stated[1])
        elif stated[1].endswith("*") or stated[1] == "cublasLtEmulationDesc_t":
            found.append("void*")
        elif stated[1] in enums:
            found.append("int32_t")
    if len(set(found)) != 1:
        raise SystemExit(f"the comment of {name} states {found or 'no type'}")
    return found[0]


def attributes(text: str, group: str, known: dict[str, int]) -> dict[str, dict[str, Any]]:
    """{name: {"number", "type"}} of an enum of attributes in a header's text."""
    body, enums = enum_body(text, group), set(re.findall(r"typedef enum\b[^}]*\}\s*(\w+)\s*;", text))
    held = members(body, known)
    out = {}
    for comment, name in re.findall(r"/\*\*(.*?)\*/\s*(\w+)\s*=", body, re.DOTALL):
        out[name] = {"number": held[name], "type": attribute_type(comment, name, enums)}
    if set(out) != set(held):
        raise SystemExit(f"no comment for {sorted(set(held) - set(out))}")
    return out


def table(source: dict[str, Any], files: dict[str, bytes]) -> dict[str, Any]:
    """The whole table of one release; `source` gains the hashes of the headers."""
    known: dict[str, int] = {}
    enums: dict[str, dict[str, int]] = {}
    for file, names in ENUMS.items():
        text = files[file].decode()
        for name in names:
            enums[name] = members(enum_body(text, name), known)
    text = files["cublasLt.h"].decode()
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())}
    return {
        "source": {**source, "headers": hashes},
        "enums": enums,
        "attributes": {name: attributes(text, name, known) for name in ATTRIBUTES},
    }


def patch(before: Any, after: Any) -> Any:
    """The JSON merge patch that makes `after` of `before`; {} where they are equal. Neither holds a null."""
    out: dict[str, Any] = {name: None for name in before if name not in after}
    for name, value in after.items():
        if name not in before:
            out[name] = value
        elif isinstance(value, dict) and isinstance(before[name], dict):
            inner = patch(before[name], value)
            if inner:
                out[name] = inner
        elif value != before[name]:
            out[name] = value
    return out


def compact(tables: list[dict[str, Any]]) -> dict[str, Any]:
    """The content of vendor_enums.json for whole tables, in any order. Reading it back must give the tables."""
    ordered = sorted(tables, key=lambda t: numbers(t["source"]["version"]))
    releases = []
    for before, after in zip([None, *ordered], ordered, strict=False):
        parts = ("enums", "attributes")
        names = {part: after[part] if before is None else patch(before[part], after[part]) for part in parts}
        releases.append({"source": after["source"], **names})
    content = {"releases": releases}
    back = expanded(content)
    if back != ordered or [first_names(t) for t in back] != [first_names(t) for t in ordered]:
        raise SystemExit("the tables do not come back from their patches: a name moved among its synonyms")
    return content


def first_names(one: dict[str, Any]) -> dict[str, dict[int, str]]:
    """{enum: {number: the first name that the header gives it}}: what a patch, which keeps no order, could lose."""
    return {enum: {number: name for name, number in reversed(names.items())} for enum, names in one["enums"].items()}


def render(content: dict[str, Any]) -> str:
    """The text of vendor_enums.json for one content."""
    return json.dumps(content, indent=1) + "\n"


def check() -> int:
    """Whether the committed table of the installed wheel's release is what its headers say."""
    version, files = installed()
    committed = {t["source"]["version"]: t for t in expanded(json.loads(OUTPUT.read_text()))}
    if version not in committed:
        print(f"{OUTPUT.name} has no table of {WHEEL} {version}")
        return 1
    theirs = table({k: v for k, v in committed[version]["source"].items() if k != "headers"}, files)
    same = theirs == committed[version]
    print("same" if same else f"{OUTPUT.name} differs from the installed headers")
    return 0 if same else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("releases", nargs="*", help="nvidia-cublas==13.1.0.3 ...; none: write the whole file anew")
    parser.add_argument("--check", action="store_true", help="compare with the installed wheel, write nothing")
    given = parser.parse_args()
    if given.check:
        return check()
    kept = {t["source"]["version"]: t for t in expanded(json.loads(OUTPUT.read_text()))} if given.releases else {}
    for release in given.releases or RELEASES:
        made = download(release)
        kept[made["source"]["version"]] = made
        print(f"{release}: {made['source']['file']}, sha256 {made['source']['sha256']}")
    if DEFAULT not in {".".join(version.split(".")[:3]) for version in kept}:
        raise SystemExit(f"there must be a table of {DEFAULT}, the default")
    text = render(compact(list(kept.values())))
    OUTPUT.write_text(text)
    print(f"wrote {OUTPUT.name}: {len(text)} characters")
    return 0


if __name__ == "__main__":
    sys.exit(main())
