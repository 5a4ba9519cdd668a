"""Addresses of exported functions in a running process, found in its memory.

They are found as the dynamic loader finds them.  No file is opened: a library of a container, or
one that an upgrade has deleted, is found as well.  What stands in the memory of a process is
untrusted; sizes are limited.
"""

import os
import re
import struct

from ..run import processes

PYTHON = re.compile(r"/libpython\d[^/]*$")
"""The path of a shared Python; else the program itself has the functions of Python."""
THREADS = re.compile(r"/(?:libc|libpthread)(?:-[\d.]+\.so|\.so\.\d+)$")
"""The path of the libraries of glibc that may have ``pthread_create``: before 2.34 it stood in one
of its own."""
DELETED = " (deleted)"
"""What the kernel writes behind the path of a file that is mapped and gone."""

MAPPING = re.compile(
    r"^(?P<start>[0-9a-f]+)-(?P<end>[0-9a-f]+) (?P<mode>[-rwxsp]{4}) (?P<offset>[0-9a-f]+) \S+ \S+"
    r" *(?P<path>.*)$"
)
MAPS_LIMIT = 8 << 20
"""Bytes of the table of mappings that are read."""
MOST_SYMBOLS, MOST_TEXT = 1 << 18, 16 << 20
"""Symbols of a library, and bytes of their names, beyond which it is left alone."""
X86_64 = 62
"""The processor, in the header of a library."""
LOAD, DYNAMIC = 1, 2
"""Kinds of program headers."""
HASH, STRTAB, SYMTAB, STRSZ, GNU_HASH = 4, 5, 6, 10, 0x6FFFFEF5
"""Entries of the dynamic section."""
FUNCTION = 2
"""Kind of a symbol."""


class NotFound(Exception):
    """A process has not what is looked for; says what."""


class Mapping:
    """A stretch of the memory of a process."""

    def __init__(self, found):
        self.start, self.end, self.offset = (
            int(found[name], 16) for name in ("start", "end", "offset")
        )
        self.executable = found["mode"][2] == "x"
        path = found["path"]
        if path.endswith(DELETED):
            self.path = path[: -len(DELETED)]
        else:
            self.path = path


def mappings(pid):
    """The mappings of files in the memory of a process."""
    lines = processes.read_text("/proc/%d/maps" % pid, MAPS_LIMIT).splitlines()
    found = [Mapping(match) for match in map(MAPPING.match, lines) if match]
    return [one for one in found if one.path.startswith("/")]


class Memory:
    """The memory of a process, to be read."""

    def __init__(self, pid):
        self._file = os.open("/proc/%d/mem" % pid, os.O_RDONLY | os.O_CLOEXEC)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self._file)

    def read(self, address, size):
        """Exactly so many bytes; raises NotFound where they are not there."""
        try:
            found = os.pread(self._file, size, address)
        except (OSError, OverflowError) as error:
            raise NotFound("its memory at %#x cannot be read (%s)" % (address, error)) from error
        if len(found) != size:
            raise NotFound("its memory at %#x ends too early" % address)
        return found

    def unpack(self, form, address):
        """The numbers that stand at an address."""
        return struct.unpack(form, self.read(address, struct.calcsize(form)))


def python_functions(pid, memory, mapped, names):
    """{name: address} of functions of Python's interface in C.

    Raises NotFound where the process does not have them.
    """
    program = os.readlink("/proc/%d/exe" % pid)
    if program.endswith(DELETED):
        program = program[: -len(DELETED)]
    libraries = {one.path for one in mapped if PYTHON.search(one.path)}
    return _functions(memory, mapped, [*sorted(libraries), program], names)


def thread_functions(memory, mapped, names):
    """{name: address} of functions of glibc; raises NotFound where the process has them not."""
    return _functions(
        memory, mapped, sorted({one.path for one in mapped if THREADS.search(one.path)}), names
    )


def _functions(memory, mapped, paths, names):
    """Each function from the first of these libraries that exports it."""
    found = {}  # type: dict[str, int]
    for path in paths:
        base = next((one.start for one in mapped if one.path == path and one.offset == 0), None)
        if base is not None:
            found = {**exported(memory, base, names), **found}
    missing = [name for name in names if name not in found]
    if missing:
        raise NotFound("it exports no %s" % ", ".join(missing))
    return found


def exported(memory, base, names):
    """{name: address} of those functions that the library or program at an address exports."""
    head = memory.read(base, 64)
    (machine,) = struct.unpack_from("<H", head, 18)
    if head[:6] != b"\x7fELF\x02\x01" or machine != X86_64:
        return {}
    shift, entries = _dynamic(memory, base, head)
    if not {STRTAB, SYMTAB, STRSZ} <= entries.keys():
        return {}
    # glibc writes addresses there, other loaders leave the offsets
    at = {key: value if value >= base else value + shift for key, value in entries.items()}
    count = _symbol_count(memory, at)
    size = entries[STRSZ]
    if count > MOST_SYMBOLS or size > MOST_TEXT:
        raise NotFound("a library has %d symbols" % count)
    symbols = memory.read(at[SYMTAB], 24 * count)
    text = memory.read(at[STRTAB], size)
    wanted = {name.encode(): name for name in names}
    found = {}
    for place, kind, _, section, value, _ in struct.iter_unpack("<IBBHQQ", symbols):
        if section and kind & 15 == FUNCTION:
            name = wanted.get(text[place : text.find(b"\0", place)])
            if name:
                found[name] = value + shift
    return found


def _dynamic(memory, base, head):
    """(what is added to the addresses in a library, its dynamic section as {kind: value})."""
    (table,) = struct.unpack_from("<Q", head, 32)
    size, count = struct.unpack_from("<HH", head, 54)
    first = 0
    dynamic = (0, 0)
    for number in range(count):
        kind, _, offset, address, _, _, length, _ = memory.unpack(
            "<IIQQQQQQ", base + table + number * size
        )
        if kind == LOAD and offset == 0:
            first = address
        elif kind == DYNAMIC:
            dynamic = (address, min(length, 1 << 16))
    shift = base - first
    section = memory.read(dynamic[0] + shift, dynamic[1] // 16 * 16)
    return shift, dict(struct.iter_unpack("<QQ", section))


def _symbol_count(memory, at):
    """How many symbols a library has, which only its hash tables say."""
    if HASH in at:
        return memory.unpack("<II", at[HASH])[1]
    if GNU_HASH not in at:
        raise NotFound("a library has no table of its symbols")
    buckets, before, filters, _ = memory.unpack("<IIII", at[GNU_HASH])
    if buckets > MOST_SYMBOLS or filters > MOST_SYMBOLS:
        raise NotFound("a library has %d groups of symbols" % buckets)
    table = at[GNU_HASH] + 16 + 8 * filters
    last = max(memory.unpack("<%dI" % buckets, table), default=0)
    if last < before:
        return before
    # the last of a group has an odd number
    while (
        last < MOST_SYMBOLS
        and not memory.unpack("<I", table + 4 * (buckets + last - before))[0] & 1
    ):
        last += 1
    return last + 1
