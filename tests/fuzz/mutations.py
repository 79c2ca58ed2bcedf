"""Ways to damage the files of a directory: blindly, byte by byte, and knowingly, so that they still parse.

Every mutation is a function of a folder and a random generator; it changes the folder and says what it did.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import safetensors.numpy

MANIFEST = "manifest.json"

Change = Callable[[Path, random.Random], str]


class Raw(str):
    """Text that goes into JSON as it stands."""


NUMBERS = [
    0, 1, -1, 2, 7, -(2**31), 2**31, 2**32, 2**53, 2**63, -(2**63), 2**64, 10**12, 10**30, 0.5, -0.5, 1e-320, 1e38,
    -1e308, 1e308, Raw("1e999"), Raw("-1e999"), Raw("NaN"), Raw("Infinity"), Raw("1" * 5_000), Raw("-0.0"),
]  # fmt: skip
TEXTS = [
    "", "x", "x" * 20_000, "\ud800", "\u202e\u0000\u200b", "Ⅷ", "İ", "../../etc/passwd", "/dev/zero", "{0.__class__}",
    "%s%n", "$(touch /tmp/x)", "[red]x[/red]", "\x1b[2J", "number", "text", "dropped", "NaN",
]  # fmt: skip
OTHERS = [
    None, True, False, [], {}, [[]], [None], {"": None}, [0] * 50_000, {str(i): i for i in range(2_000)},
    Raw("[" * 100_000), Raw("[" * 400 + "]" * 400), Raw('{"a":' * 400 + "0" + "}" * 400),
]  # fmt: skip

DTYPES = ["BOOL", "U8", "I8", "I16", "U16", "F16", "BF16", "I32", "U32", "F32", "F64", "I64", "U64", "F8_E4M3", "X"]


# ---------------------------------------------------------------- bytes


def flip_bits(data: bytearray, rng: random.Random) -> str:
    n_bits = rng.choice([1, 1, 1, 2, 8, 64])
    places = [rng.randrange(len(data)) for _ in range(n_bits if data else 0)]
    for place in places:
        data[place] ^= 1 << rng.randrange(8)
    return f"flipped {len(places)} bits, the first in byte {places[:1]}"


def overwrite_span(data: bytearray, rng: random.Random) -> str:
    start, length = _span(data, rng)
    filler = rng.choice([b"\0", b"\xff", b"9", b"[", None])
    data[start : start + length] = rng.randbytes(length) if filler is None else filler * length
    return f"overwrote {length} bytes at {start} with {filler!r}"


def truncate(data: bytearray, rng: random.Random) -> str:
    kept = rng.choice([0, 1, 7, 8, len(data) // 2, max(0, len(data) - 1), rng.randrange(len(data) + 1)])
    del data[kept:]
    return f"kept {kept} bytes"


def append(data: bytearray, rng: random.Random) -> str:
    added = rng.choice([b"\0", b"\n", b"{}", b" " * 1_000, bytes(100_000), rng.randbytes(64), bytes(data)])
    data += added
    return f"appended {len(added)} bytes"


def cut_out(data: bytearray, rng: random.Random) -> str:
    start, length = _span(data, rng)
    del data[start : start + length]
    return f"cut {length} bytes out at {start}"


def double_span(data: bytearray, rng: random.Random) -> str:
    start, length = _span(data, rng)
    data[start:start] = data[start : start + length]
    return f"doubled {length} bytes at {start}"


def set_word(data: bytearray, rng: random.Random) -> str:
    """A huge, negative or absurd count where some reader may expect one."""
    width, code = rng.choice([(2, "<H"), (4, "<I"), (8, "<Q")])
    place = rng.choice([0, 4, 8, rng.randrange(max(1, len(data))), max(0, len(data) - rng.randrange(1, 40))])
    value = rng.choice([0, 1, 2 ** (8 * width) - 1, 2 ** (8 * width - 1), 2 ** (8 * width - 1) - 1, rng.getrandbits(8)])
    data[place : place + width] = struct.pack(code, value)
    return f"wrote {value} over {width} bytes at {place}"


def replace_all(data: bytearray, rng: random.Random) -> str:
    data[:] = rng.choice(
        [b"", bytes(4_096), b"\xff" * 4_096, b"\x80\x04N.", b"PK\x03\x04", b"null", b"[]", b"{}", b"[" * 200_000]
    )
    return f"replaced everything by {bytes(data[:8])!r}"


BYTES = [flip_bits, flip_bits, overwrite_span, truncate, append, cut_out, double_span, set_word, replace_all]


def _span(data: bytearray, rng: random.Random) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(rng.choice([1, 4, 8, 64, 4_096]), len(data) - start)


def change_bytes(path: Path, rng: random.Random) -> str:
    data = bytearray(path.read_bytes())
    said = rng.choice(BYTES)(data, rng)
    write(path, bytes(data))
    return f"{path.name}: {said}"


# ---------------------------------------------------------------- JSON


def to_json(value: Any) -> str:
    """Like `json.dumps`, but `Raw` goes in as it stands."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(str(key))}:{to_json(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(to_json, value)) + "]"
    return json.dumps(value)


def hostile(rng: random.Random) -> Any:
    return rng.choice(rng.choice([NUMBERS, NUMBERS, TEXTS, OTHERS]))


def change_json(document: Any, rng: random.Random) -> str:
    """Change one node of a document in place: replace, remove, rename, double, exchange or nudge it."""
    nodes = _nodes(document)
    parent, key = rng.choice(nodes)
    value = parent[key]
    kind = rng.choice(["replace", "replace", "replace", "remove", "rename", "double", "exchange", "nudge", "nudge"])
    if kind == "nudge" and isinstance(value, (int, float)) and not isinstance(value, bool):
        parent[key] = rng.choice([value + 1, value - 1, -value, value * 10**9, value / 3, float(value), str(value)])
    elif kind == "nudge" and isinstance(value, list):
        parent[key] = rng.choice([value[:-1], value[::-1], value * 2, [*value, *value[:1]], [value]])
    elif kind == "nudge" and isinstance(value, str):
        parent[key] = rng.choice([value.upper(), value + "\u200b", value[:-1], value * 1_000, "\ufeff" + value])
    elif kind == "remove":
        del parent[key]
    elif kind == "rename" and isinstance(parent, dict):
        parent[rng.choice(TEXTS)] = parent.pop(key)
    elif kind == "double" and isinstance(parent, list):
        parent.insert(key, value)
    elif kind == "exchange":
        other, place = rng.choice(nodes)
        parent[key] = json.loads(json.dumps(other[place])) if place in other or isinstance(other, list) else None
    else:
        parent[key] = hostile(rng)
    return f"{kind} {str(key)[:40]!r}, now {_short(parent, key)}"


def _nodes(document: Any) -> list[tuple[Any, Any]]:
    """Every node below the root with its parent, whole lists of alike numbers counted a few times only."""
    nodes: list[tuple[Any, Any]] = []
    pending = [document]
    while pending:
        node = pending.pop()
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        for key in keys if len(keys) < 60 else [*keys[:3], *keys[-3:]]:
            nodes.append((node, key))
            if isinstance(node[key], (dict, list)):
                pending.append(node[key])
    return nodes or [([document], 0)]


def _short(parent: Any, key: Any) -> str:
    found = parent.get(key) if isinstance(parent, dict) else parent[key] if key < len(parent) else None
    return ascii(found)[:60]


def change_json_file(path: Path, rng: random.Random) -> str:
    document = json.loads(path.read_text(encoding="utf-8"))
    said = change_json(document, rng)
    text = to_json(document)
    if rng.random() < 0.05:  # the same key twice
        key = json.dumps(rng.choice(list(document)))
        text, said = f"{text[:-1]},{key}:{to_json(hostile(rng))}}}", f"{said}; {key} again"
    write(path, text.encode("utf-8", "surrogatepass"))
    return f"{path.name}: {said}"


def change_json_line(path: Path, rng: random.Random) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    place = rng.randrange(len(lines))
    document = json.loads(lines[place])
    said = change_json(document, rng)
    lines[place] = to_json(document if rng.random() < 0.8 else hostile(rng))
    write(path, "\n".join(lines).encode("utf-8", "surrogatepass"))
    return f"{path.name}: line {place}: {said}"


# ---------------------------------------------------------------- TOML


def change_toml(path: Path, rng: random.Random) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    place = rng.choice([number for number, line in enumerate(lines) if " = " in line])
    name, _, value = lines[place].partition(" = ")
    kind = rng.choice(["replace", "replace", "replace", "remove", "double", "rename", "move"])
    if kind == "replace":
        value = rng.choice(
            ["0", "-1", "1", "3", "2", "1000000000000", "9" * 400, "inf", "nan", "-0.0", '""', '"x"', "[]", "{}",
             "true", "1e308", "1979-05-27", '"none"', '"linear"', '"mlp"', '"batch"', '"random"', "1e-9", "[0.0, 1.0]",
             '{"dino" = 1.0}', '{"memory_bank" = 1.0}', '"' + "x" * 9_999 + '"', "4096", "100000", "64", "[" * 9_000]
        )  # fmt: skip
        lines[place] = f"{name} = {value}"
    elif kind == "remove":
        del lines[place]
    elif kind == "double":
        lines.insert(place, lines[place])
    elif kind == "rename":
        lines[place] = f"{rng.choice(['x', '__class__', name.upper(), '[a]'])} = {value}"
    else:
        lines.append(lines.pop(place))
    write(path, "\n".join(lines).encode())
    return f"{path.name}: {kind} {name} = {value[:40]}"


# ---------------------------------------------------------------- safetensors


def change_header(path: Path, rng: random.Random) -> str:
    """Lies in the header: of types, shapes, places and names, or of its own length."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    name = rng.choice([name for name in header if name != "__metadata__"])
    entry = header[name]
    kind = rng.choice(["shape", "shape", "dtype", "offsets", "json", "length", "same place"])
    if kind == "shape":
        shape = entry["shape"] or [1]
        place = rng.randrange(len(shape))
        changed = rng.choice([0, -1, 1, shape[place] + 1, 2**31, 2**32, 2**63, 2**64 - 1, 10**30, 0.5, None])
        entry["shape"] = rng.choice(
            [[*shape[:place], changed, *shape[place + 1 :]], [*shape, 1], [2**32] * 4, [1] * 70]
        )
    elif kind == "dtype":
        entry["dtype"] = rng.choice(DTYPES)
    elif kind == "offsets":
        entry["data_offsets"][rng.randrange(2)] = rng.choice(
            [0, -1, len(body), len(body) + 1, 2**62, 2**64, 10**30, 0.5]
        )
    elif kind == "same place":
        entry["data_offsets"] = header[rng.choice(list(header))].get("data_offsets", [0, 0])
    elif kind == "json":
        kind = change_json(header, rng)
    written = to_json(header).encode("utf-8", "surrogatepass")
    stated = len(written)
    if kind == "length":
        stated = rng.choice([0, 1, 2**63, 2**64 - 1, 10**8, len(data), len(written) - 1, len(written) + 1])
    write(path, stated.to_bytes(8, "little") + written + body)
    return f"{path.name}: header of {name}: {kind}, now {ascii(header.get(name))[:80]}, length {stated}"


def change_arrays(path: Path, rng: random.Random) -> str:
    """A valid file of other arrays: other values, types, shapes and names."""
    arrays = {name: array.copy() for name, array in safetensors.numpy.load_file(path).items()}
    metadata = _metadata(path)
    name = rng.choice(list(arrays))
    array = arrays[name]
    kind = rng.choice(
        ["values", "values", "values", "values", "type", "shape", "shape", "remove", "rename", "exchange"]
    )
    if kind == "values" and array.size:
        said = _set_values(array, rng)
    elif kind == "type":
        arrays[name] = array.astype(rng.choice([np.float16, np.float32, np.float64, np.int8, np.int32, np.int64, bool]))
        said = f"type {arrays[name].dtype}"
    elif kind == "remove":
        del arrays[name]
        said = "removed"
    elif kind == "rename":
        new = rng.choice([*TEXTS[5:], name + "x", name.rpartition("/")[2], f"/{name}"])
        arrays[new] = arrays.pop(name)
        said = f"renamed to {new[:40]!r}"
    elif kind == "exchange":
        other = rng.choice(list(arrays))
        arrays[name], arrays[other] = arrays[other], arrays[name]
        said = f"exchanged with {other}"
    else:
        arrays[name] = _reshaped(array, rng)
        said = f"shape {array.shape} to {arrays[name].shape}"
    path.unlink()
    safetensors.numpy.save_file({n: np.ascontiguousarray(a) for n, a in arrays.items()}, path, metadata=metadata)
    return f"{path.name}: {name}: {said}"


def _metadata(path: Path) -> dict[str, str] | None:
    data = path.read_bytes()
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__")


def _set_values(array: np.ndarray, rng: random.Random) -> str:
    if array.dtype.kind == "f":
        limits = np.finfo(array.dtype)
        value = rng.choice([np.nan, np.inf, -np.inf, limits.max, limits.min, limits.tiny, 0.0, -1.0, 1e6, 1e20])
    elif array.dtype.kind == "b":
        value = rng.choice([True, False])
    else:
        limits = np.iinfo(array.dtype)
        value = rng.choice([limits.min, limits.max, 0, 1, 127, limits.max // 2])
    places = array.reshape(-1)
    n_places = rng.choice([1, 1, 3, array.size])
    places[[rng.randrange(array.size) for _ in range(n_places)] if n_places < array.size else slice(None)] = value
    return f"{n_places} values set to {value}"


def _reshaped(array: np.ndarray, rng: random.Random) -> np.ndarray:
    changes: list[Callable[[np.ndarray], np.ndarray]] = [
        lambda a: a.reshape(-1), lambda a: a[None], lambda a: a[..., None], lambda a: a[:-1], lambda a: a[:0],
        lambda a: a.T, lambda a: a[::-1], lambda a: np.concatenate([a, a]), lambda a: np.concatenate([a, a], axis=-1),
        lambda a: a[..., :-1], lambda a: a[:1], lambda a: a[..., :1], lambda a: np.zeros((0, 10**9), a.dtype),
        lambda a: a.reshape(-1)[:1].reshape(()),
    ]  # fmt: skip
    return rng.choice(changes)(array) if array.ndim else array.reshape(1)


# ---------------------------------------------------------------- Arrow


def change_ids(path: Path, rng: random.Random) -> str:
    """A valid Arrow file of other ids."""
    with pa.OSFile(str(path), "rb") as file, pa.ipc.open_file(file) as reader:
        ids = reader.read_all().column(0).combine_chunks()
    n_ids = len(ids)
    kind = rng.choice(["type", "length", "name", "columns", "nulls", "compressed", "chunks", "texts"])
    name, options = "id", pa.ipc.IpcWriteOptions()
    if kind == "type":
        others = [
            pa.nulls(n_ids), pa.array(range(n_ids)), pa.array([[1]] * n_ids), pa.array([{"a": 1}] * n_ids),
            pa.array([b"x"] * n_ids), pa.array([1.5] * n_ids), pa.array([True] * n_ids), ids.dictionary_encode(),
            pa.array([2**62] * n_ids, pa.timestamp("s", "Nowhere")), pa.array([10**18] * n_ids, pa.timestamp("s")),
            pa.DictionaryArray.from_arrays(pa.array([9] * n_ids, pa.int32()), pa.array(["x"]), safe=False),
        ]  # fmt: skip
        ids = rng.choice(others)
    elif kind == "length":
        ids = ids.slice(0, rng.choice([0, 1, n_ids - 1]))
    elif kind == "name":
        name = rng.choice(["", "ID", "id\0", "x"])
    elif kind == "nulls":
        ids = pa.array([None, *ids.to_pylist()[1:]], ids.type)
    elif kind == "compressed":
        options = pa.ipc.IpcWriteOptions(compression=rng.choice(["zstd", "lz4"]))
        ids = pa.array(["x" * rng.choice([1, 2_000_000])] * n_ids)
    elif kind == "texts":
        ids = pa.array([rng.choice(TEXTS).encode("utf-8", "replace").decode() for _ in range(n_ids)])
    table = pa.table([ids] * (2 if kind == "columns" else 1), names=[name] * (2 if kind == "columns" else 1))
    path.unlink()
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rng.choice([1, 7]) if kind == "chunks" else None)
    return f"{path.name}: {kind}: {ids.type}"


# ---------------------------------------------------------------- files


def change_files(folder: Path, rng: random.Random) -> str:
    """Files that are no files, that are elsewhere, or that are other files."""
    paths = _regular(folder)
    path = rng.choice(paths)
    whole = path.read_bytes()
    kind = rng.choice(["missing", "pipe", "folder", "link", "device", "host", "loop", "swap", "sparse", "outside"])
    if kind == "swap":
        other = rng.choice(paths)
        mine, theirs = path.read_bytes(), other.read_bytes()
        write(path, theirs)
        write(other, mine)
        return f"swapped {path.name} and {other.name}"
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "link":
        (folder.parent / "elsewhere").write_bytes(whole)
        path.symlink_to(folder.parent / "elsewhere")
    elif kind in ("device", "host"):
        path.symlink_to("/dev/zero" if kind == "device" else "/etc/hostname")
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "outside":
        write(folder.parent / path.name, whole)
    elif kind == "sparse":
        path.touch()
        os.truncate(path, 1 << 40)
    return f"{path.name}: {kind}"


def change_manifest(path: Path, rng: random.Random) -> str:
    """Names of files that lie elsewhere or nowhere, and entries of files that there are."""
    manifest = json.loads(path.read_text(encoding="utf-8"))
    secret = path.parent.parent / "secret"
    secret.write_bytes(b"not of this model")
    entry = {"sha256": hashlib.sha256(secret.read_bytes()).hexdigest(), "size_bytes": secret.stat().st_size}
    names = [
        "../secret", str(secret), "./../secret", "a/../../secret", "..", ".", "", "\0", "~", "secret", "CONFIG.TOML",
        "config.toml\u200b", "config.toml/", "con\u202efig.toml", "n" * 5_000, "\ud800", "C:\\secret", "|cat",
        "%2e%2e/secret", "file:///etc/hostname", "manifest.json", "ids.arrow\0", "\uff0e\uff0e/secret",
    ]  # fmt: skip
    name = rng.choice(names)
    if rng.random() < 0.3:
        manifest["files"][name] = manifest["files"].pop(rng.choice(list(manifest["files"])))
    else:
        manifest["files"][name] = entry
    write(path, to_json(manifest).encode("utf-8", "surrogatepass"))
    return f"{path.name}: names {ascii(name)[:60]}"


# ---------------------------------------------------------------- all of them


def write(path: Path, data: bytes) -> None:
    """Write a file anew: the old one may be a link that others share."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def knowing_changes(path: Path) -> list[Change]:
    """Changes that keep a file of this type readable, so that only what is in it is wrong."""
    if path.name == MANIFEST:
        return [change_json_file, change_manifest, change_manifest]
    return {
        ".json": [change_json_file],
        ".jsonl": [change_json_line],
        ".toml": [change_toml],
        ".safetensors": [change_header, change_arrays, change_arrays, change_arrays],
        ".arrow": [change_ids],
    }.get(path.suffix, [change_bytes])


def mutate(folder: Path, rng: random.Random) -> str:
    """Damage one file, seldom two or three, and in six cases of seven make the checksums agree with it."""
    said = []
    for _ in range(rng.choice([1, 1, 1, 1, 2, 3])):
        if rng.random() < 0.07:
            said.append(change_files(folder, rng))
            continue
        path = rng.choice(_regular(folder))
        try:
            said.append(rng.choice([change_bytes, *knowing_changes(path), *knowing_changes(path)])(path, rng))
        except Exception:  # what an earlier change left cannot be read any more
            said.append(change_bytes(path, rng) if path.exists() else "nothing")
    if rng.random() < 6 / 7:
        rehash(folder)
        said.append("checksums right")
    return "; ".join(said)


def _regular(folder: Path) -> list[Path]:
    """The files that can be read, and in a moment."""
    paths = sorted(path for path in folder.iterdir() if path.is_file() and not path.is_symlink())
    return [path for path in paths if 0 < path.stat().st_size < 1 << 30]


def rehash(folder: Path) -> None:
    """Make the manifest agree with whatever its files now hold, if it still can be read."""
    path = folder / MANIFEST
    if path not in _regular(folder):
        return
    try:
        manifest = json.loads(path.read_bytes())
        entries = manifest["files"]
        for name, entry in entries.items():
            file = folder / name
            if file.is_file() and not file.is_symlink() and file.stat().st_size < 1 << 30:
                content = file.read_bytes()
                entry |= {"sha256": hashlib.sha256(content).hexdigest(), "size_bytes": len(content)}
        write(path, to_json(manifest).encode("utf-8", "surrogatepass"))
    except (AttributeError, KeyError, OSError, TypeError, ValueError, RecursionError):
        return
