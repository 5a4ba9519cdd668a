"""What a release of NCCL can say: every text of its log, and every variable that it asks for.

A source tree is read at its macros. A library without its source is read at its calls: the machine code before
each call of NCCL's log function says the level, the text and the file. Nothing is loaded or run but `objdump`.
"""

from __future__ import annotations

import mmap
import re
import struct
import subprocess
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LEVELS = {2: "WARN", 3: "INFO", 6: "ATTN"}
"""Numbers of NCCL's log levels; 6 is new in 2.32. Abort and trace say nothing of a user's job."""


@dataclass(frozen=True, order=True)
class Text:
    """One format of a log line."""

    level: str
    format: str
    file: str = ""


@dataclass(frozen=True)
class Release:
    """All that one release can say, and ask the environment for."""

    version: str
    texts: frozenset[Text]
    variables: frozenset[str]
    defaults: dict[str, int]
    """Of whole numbers: name of the variable → what NCCL takes where it is unset."""


def read_release(path: Path) -> Release:
    """The texts of a source tree, of a library, or of the library in a wheel."""
    if path.is_dir():
        return _release_of_tree(path)
    if path.suffix == ".whl":
        return _release_of_wheel(path)
    return _release_of_library(path)


def _release_of_wheel(path: Path) -> Release:
    # objdump needs a file, which stands beside the wheel as it may be larger than /tmp
    with zipfile.ZipFile(path) as wheel:
        member = next(name for name in wheel.namelist() if name.endswith("/libnccl.so.2"))
        library = path.with_suffix(".so")
        try:
            with wheel.open(member) as packed, library.open("wb") as unpacked:
                while block := packed.read(1 << 20):
                    unpacked.write(block)
            return _release_of_library(library)
        finally:
            library.unlink(missing_ok=True)


# ------------------------------------------------------------------ a library

NAME = re.compile(r"NCCL_[A-Z][A-Z0-9_]{2,80}")
OWN_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)\b")
LINE = re.compile(r"^ +([0-9a-f]+):\t(\S+) *(.*)$")
CALL_OF_LOG = re.compile(r"<_Z\d+ncclDebugLog(?P<inner>Internal)?17ncclDebugLogLevel\w*(?:@plt)?>")
TARGET = re.compile(r"# ([0-9a-f]+) <")
GOES_AWAY = ("jmp", "jmpq", "ret", "retq", "repz", "ud2", "hlt")
FAR = 90
"""Instructions between a value and the call that gets it; a value further away is not looked for."""
WHERE = {"": ("r8", "rdx"), "Internal": ("r9", "rdx")}
"""Registers of text and file: up to 2.3x the call has one word for file or function, later both."""
ALIASES = {"edi": "rdi", "esi": "rsi", "r8d": "r8", "r9d": "r9", "edx": "rdx"}


@dataclass(frozen=True)
class Instruction:
    address: int
    name: str
    operands: str


class Image:
    """The constant data of a library by address."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._bytes = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        self._sections = dict(self._named_sections())

    def _named_sections(self) -> Iterator[tuple[str, tuple[int, int, int]]]:
        table = struct.unpack_from("<Q", self._bytes, 0x28)[0]
        size, count, names_at = struct.unpack_from("<HHH", self._bytes, 0x3A)
        rows = [struct.unpack_from("<IIQQQQIIQQ", self._bytes, table + n * size) for n in range(count)]
        names = rows[names_at][4]
        for row in rows:
            start = names + row[0]
            name = self._bytes[start : self._bytes.find(b"\0", start)].decode()
            yield name, (row[3], row[4], row[5])

    def text_at(self, address: int) -> str | None:
        """The C text of constant data that begins at an address."""
        begin, offset, size = self._sections[".rodata"]
        if not begin <= address < begin + size:
            return None
        at = offset + address - begin
        return self._bytes[at : self._bytes.find(b"\0", at)].decode("utf-8", "replace")

    def texts(self) -> Iterator[str]:
        """Every whole C text of the constant data."""
        _, offset, size = self._sections[".rodata"]
        for piece in self._bytes[offset : offset + size].split(b"\0"):
            yield piece.decode("utf-8", "replace")


def _release_of_library(path: Path) -> Release:
    image = Image(path)
    code = list(_instructions(path))
    texts = frozenset(_texts_of_calls(code, image))
    if not texts:
        raise ValueError(f"{path}: no call of NCCL's log function; is the library stripped?")
    variables = read_variables(code, image)
    return Release(variables.version, texts, variables.names, variables.defaults)


@dataclass(frozen=True)
class Variables:
    """What one library asks the environment for."""

    version: str
    names: frozenset[str]
    defaults: dict[str, int]


def variables_of_library(path: Path) -> Variables:
    """The variables of a library alone, which is read in seconds."""
    return read_variables(list(_instructions(path)), Image(path))


def read_variables(code: list[Instruction], image: Image) -> Variables:
    """The variables of a library whose code was read."""
    whole = list(image.texts())
    versions = [found[1] for text in whole if (found := OWN_VERSION.match(text))]
    defaults = _defaults(code, image)
    # a name that ends another text has no text of its own
    names = {text for text in whole if NAME.fullmatch(text)} | defaults.keys()
    return Variables(versions[0] if versions else "", frozenset(names), defaults)


LOAD = re.compile(r"<_Z\d+ncclLoadParam\w*(?:@plt)?>")
NEAR = 14
"""Instructions before the call that loads a number, in which its name and default are put."""


def _defaults(code: list[Instruction], image: Image) -> dict[str, int]:
    found = {}
    for place, one in enumerate(code):
        # a function of its own for the variable ends with a jump there
        if not one.name.startswith(("call", "jmp")) or not LOAD.search(one.operands):
            continue
        values = _numbers_before(code, place)
        name = image.text_at(values.get("rdi", -1)) or ""
        if NAME.fullmatch(name) and "rsi" in values:
            default = values["rsi"]
            found[name] = default - (1 << 64) if default >= 1 << 63 else default
    return found


def _numbers_before(code: list[Instruction], call: int) -> dict[str, int]:
    """Register → the number or address that it has at a call; of one that is computed nothing is known."""
    values: dict[str, int] = {}
    computed = set()
    for earlier in reversed(code[max(0, call - NEAR) : call]):
        if earlier.name.startswith(("call", "jmp", "ret")):
            break
        register, value = _constant(earlier)
        if register in values or register in computed:
            continue
        operands = earlier.operands
        # a register that is taken from itself is 0, and one with all bits set is -1
        if earlier.name.startswith("xor") and operands == "%esi,%esi":
            values["rsi"] = 0
        elif earlier.name.startswith("or") and operands == "$0xffffffffffffffff,%rsi":
            values["rsi"] = (1 << 64) - 1
        elif value == -1:
            computed.add(register)
        else:
            values[register] = value
    return values


def _texts_of_calls(code: list[Instruction], image: Image) -> Iterator[Text]:
    jumps: dict[int, list[int]] = defaultdict(list)
    places = {one.address: place for place, one in enumerate(code)}
    for place, one in enumerate(code):
        if one.name.startswith("j"):
            target = places.get(int(one.operands.split(" ")[0], 16) if one.operands[:1].isalnum() else -1)
            if target is not None:
                jumps[target].append(place)
    for place, one in enumerate(code):
        called = CALL_OF_LOG.search(one.operands) if one.name.startswith(("call", "jmp")) else None
        if called:
            text_in, file_in = WHERE[called["inner"] or ""]
            yield from _texts_before(code, jumps, place, (text_in, file_in), image)


def _instructions(path: Path) -> Iterator[Instruction]:
    command = ["objdump", "-d", "--no-show-raw-insn", "-j", ".text", str(path.absolute())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    for line in done.stdout.splitlines():
        match = LINE.match(line)
        if match:
            yield Instruction(int(match[1], 16), match[2], match[3])


def _texts_before(
    code: list[Instruction],
    jumps: dict[int, list[int]],
    call: int,
    registers: tuple[str, str],
    image: Image,
) -> Iterator[Text]:
    """The texts that a call may get: one for each way through the code that ends at it."""
    text_in, file_in = registers
    wanted = ("rdi", text_in, file_in)
    # compilers merge the ends of similar branches, so one call may have many texts
    ways: list[tuple[int, int, dict[str, int]]] = [(call, FAR, {})]
    seen: set[object] = set()
    while ways:
        place, left, values = ways.pop()
        state = (place, tuple(sorted(values.items())))
        if state in seen or len(seen) > 20_000:
            continue
        seen.add(state)
        if len(values) == len(wanted):
            yield from _text_of_values(values, registers, image)
            continue
        for earlier in _places_before(code, jumps, place):
            one = code[earlier]
            if left == 0 or (one.name.startswith("call") and earlier != call):
                yield from _text_of_values(values, registers, image)
                continue
            register, value = _constant(one)
            now = values
            if register in wanted and register not in values:
                now = {**values, register: value if value != -1 else _kept_value(code, earlier)}
            ways.append((earlier, left - 1, now))


KEPT = re.compile(r"%(rbx|rbp|r1[2-5]),%\w+$")
"""A copy of a register that calls leave alone; compilers keep there what several calls get."""
LONG_AGO = 600
"""Instructions in which the value of such a register is looked for."""


def _kept_value(code: list[Instruction], place: int) -> int:
    copied = KEPT.match(code[place].operands)
    if copied is None or not code[place].name.startswith("mov"):
        return -1
    for one in reversed(code[max(0, place - LONG_AGO) : place]):
        register, value = _constant(one)
        if register == copied[1]:
            return value
    return -1


def _places_before(code: list[Instruction], jumps: dict[int, list[int]], place: int) -> Iterator[int]:
    yield from jumps.get(place, ())
    if place and not code[place - 1].name.startswith(GOES_AWAY):
        yield place - 1


def _constant(one: Instruction) -> tuple[str, int]:
    """The register that an instruction sets, and its number or address; -1 where it is computed."""
    operands = one.operands.split("#")[0].strip()
    last = operands.rpartition("%")[2] if "%" in operands else ""
    register = ALIASES.get(last, last)
    if one.name.startswith("lea"):
        target = TARGET.search(one.operands)
        return register, int(target[1], 16) if target else -1
    if one.name.startswith("mov"):
        number = re.match(r"\$0x([0-9a-f]+),%\w+$", operands)
        return register, int(number[1], 16) if number else -1
    if one.name.startswith(("pop", "xor", "add", "sub", "and", "or", "cmov", "set", "shl", "shr")):
        return register, -1
    return "", -1


def _text_of_values(values: dict[str, int], registers: tuple[str, str], image: Image) -> Iterator[Text]:
    level = LEVELS.get(values.get("rdi", -1))
    text = image.text_at(values.get(registers[0], -1))
    if level and text is not None:
        yield Text(level, text, image.text_at(values.get(registers[1], -1)) or "")


# ------------------------------------------------------------------ a source tree

SOURCES = (".cc", ".cpp", ".h", ".cu", ".cuh")
MACRO = re.compile(r"\b(WARN|INFO|ATTN)\s*\(")
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"|\b(PRI[diuxX](?:8|16|32|64|PTR))\b')
ASKED = re.compile(
    r"\b(?:DEFINE_)?NCCL_PARAM\s*\(\s*\w+\s*,\s*\"(?P<key>\w+)\""
    r"|\b(?:ncclGetEnv|getenv)\s*\(\s*\"(?P<name>NCCL_\w+)\""
)
DEFAULT = re.compile(r"\bNCCL_PARAM\s*\(\s*\w+\s*,\s*\"(\w+)\"\s*,\s*(-?(?:0x[0-9a-fA-F]+|\d+))\s*\)")
ESCAPES = {r"\n": "\n", r"\t": "\t", r"\"": '"', r"\\": "\\"}


def _release_of_tree(root: Path) -> Release:
    texts: set[Text] = set()
    variables: set[str] = set()
    defaults = {}
    for path in sorted(root.rglob("*")):
        if path.suffix in SOURCES and path.is_file():
            source = path.read_text(encoding="utf-8", errors="replace")
            texts.update(_texts_of_source(source, str(path.relative_to(root))))
            for asked in ASKED.finditer(source):
                variables.add(asked["name"] or "NCCL_" + asked["key"].removeprefix("NCCL_"))
            for name, number in DEFAULT.findall(source):
                defaults["NCCL_" + name.removeprefix("NCCL_")] = int(number, 0)
    return Release(_version_of_tree(root), frozenset(texts), frozenset(variables), defaults)


def _version_of_tree(root: Path) -> str:
    """What `makefiles/version.mk` says."""
    for path in root.rglob("version.mk"):
        numbers = re.findall(r"NCCL_(?:MAJOR|MINOR|PATCH)\s*:?=\s*(\d+)", path.read_text())
        return ".".join(numbers[:3])
    return ""


def _texts_of_source(source: str, file: str) -> Iterator[Text]:
    for macro in MACRO.finditer(source):
        arguments = _bracketed(source, macro.end())
        start = arguments.find('"')
        if start < 0:
            continue
        literals = []
        end = start
        # adjacent literals are one text; anything else between them ends it
        for piece in LITERAL.finditer(arguments, start):
            if arguments[end : piece.start()].strip(" \t\r\n\\"):
                break
            literals.append("ld" if piece[2] else piece[1])
            end = piece.end()
        text = "".join(literals)
        for escape, character in ESCAPES.items():
            text = text.replace(escape, character)
        yield Text(macro[1], text, file)


def _bracketed(source: str, start: int) -> str:
    """The arguments of a macro, up to the bracket that closes it; 8,000 characters at most."""
    depth = 1
    for place in range(start, min(len(source), start + 8000)):
        if source[place] == "(":
            depth += 1
        elif source[place] == ")":
            depth -= 1
            if depth == 0:
                return source[start:place]
    return ""
