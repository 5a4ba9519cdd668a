"""A script: reads a process, or runs a tool on it, as its owner.

It has no more rights than the owner, since whose process it is chooses the names of its source
files, and where it prints to.  Root that opened them would read any file for him, and might wait in
a pipe or wake a device.  `as_owner` runs the source of this file, so it imports nothing of the
agent, and nothing once it has given up rights.
"""

import ctypes
import json
import os
import signal
import stat
import sys
import time

LARGEST_FILE = 4 << 20
"""Bytes of one source file that are read."""
LARGEST_TOTAL = 16 << 20
"""Bytes of all source files of a process that are read."""
TAIL = 64 << 10
"""Bytes at the end of what a process printed."""
OUTPUTS = (1, 2)

PR_SET_PDEATHSIG, PR_SET_KEEPCAPS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 1, 8, 47, 2
CAP_SYS_CHROOT, CAP_SYS_PTRACE, CAP_SYS_ADMIN = 18, 19, 21
CAPABILITY_VERSION = 0x20080522
LIBC = ctypes.CDLL(None, use_errno=True)


class NotAllowed(Exception):
    """The rights of the owner cannot be had; the text says why."""


def main(words):
    """``read PID``, or ``run PID PROGRAM ARGUMENT …``.

    To read takes a JSON list of paths as input.
    """
    verb = words[0]
    pid = int(words[1])
    command = words[2:]
    parent = os.getppid()
    try:
        process = Process(pid)
        if verb == "run":
            run_tool(process, command, parent)
        print(json.dumps(read_files(process, json.load(sys.stdin), parent)))
    except NotAllowed as why:
        sys.exit(str(why))
    except OSError as error:
        sys.exit(error.strerror or str(error))


class Process:
    """A process by one descriptor of its folder in /proc.

    So no later process of the same number is meant.
    """

    def __init__(self, pid):
        self.folder = os.open("/proc/%d" % pid, os.O_PATH | os.O_DIRECTORY)
        self.rights = Rights(self.text("status"), self.link("ns/user"))

    def text(self, name):
        """The text of one of its files."""
        with open(os.open(name, os.O_RDONLY, dir_fd=self.folder), errors="replace") as source:
            return source.read()

    def link(self, name):
        """Where one of its links points to."""
        return os.readlink(name, dir_fd=self.folder)

    def handle(self, name):
        """A descriptor of what one of its links leads to.

        By it nothing is read or woken.
        """
        return os.open(name, os.O_PATH, dir_fd=self.folder)


class Rights:
    """The user, the groups and the capabilities of a process.

    Raises NotAllowed where the process acts for two users.
    """

    def __init__(self, status, namespace):
        pairs = (line.partition(":") for line in status.splitlines())
        fields = {name: value.split() for name, _, value in pairs}
        users = {*map(int, fields["Uid"])}
        groups = {*map(int, fields["Gid"])}
        if len(users) > 1 or len(groups) > 1:
            raise NotAllowed("it runs with the rights of two users, as a setuid program does")
        (self.user,), (self.group,) = users, groups
        self.groups = sorted(map(int, fields["Groups"]))
        self.capabilities = int(fields["CapEff"][0], 16)
        self.namespace = namespace

    def wanted_capabilities(self, ours):
        """Capabilities that a reader in its place has.

        It is None where those of the process hold in its container only.
        """
        is_root_here = self.user == 0 and self.namespace == ours.namespace
        if is_root_here:
            return self.capabilities & ours.capabilities
        return 0

    def same_as(self, other):
        """Whether both may do the same."""
        return vars(self) == vars(other)


def own_rights():
    """The rights of this process."""
    return Process(os.getpid()).rights


def take_rights(rights, ours, capabilities):
    """Have the rights of another process's owner, and these capabilities, for good."""
    if ours.user != 0:
        if rights.user == ours.user:
            return
        raise NotAllowed(
            "it belongs to user %d, and only root may act for another user" % rights.user
        )
    _prctl(PR_SET_KEEPCAPS, 1)
    os.setgroups(rights.groups)
    os.setresgid(rights.group, rights.group, rights.group)
    os.setresuid(rights.user, rights.user, rights.user)
    _set_capabilities(capabilities)


def read_files(process, paths, parent):
    """{"sources": {path: text}, "output": what the process prints to}.

    Both hold only what its owner may read.
    """
    ours = own_rights()
    root = process.handle("root")
    working_folder = process.handle("cwd")
    outputs = list(_outputs(process))
    # a descriptor is opened again by this folder, which a changed root does not hide
    descriptors = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY)
    if ours.user == 0 and not _shares_root(process, root):
        os.fchdir(root)
        os.chroot(".")  # else an absolute link of a container would lead to a file of the host
    if not process.rights.same_as(ours):
        take_rights(process.rights, ours, process.rights.wanted_capabilities(ours))
    _die_with(parent)
    sources, left = {}, LARGEST_TOTAL
    for path in paths:
        if os.path.isabs(path):
            place = "." + path, root
        else:
            place = path, working_folder
        data = _source(descriptors, place, min(LARGEST_FILE, left))
        sources[path] = data.decode("utf-8", "replace")
        left -= len(data)
    found = (_tail(descriptors, handle, name) for handle, name in outputs)
    return {"sources": sources, "output": next(filter(None, found), {})}


def _shares_root(process, root):
    """Whether a path of the process leads there, too, where we follow it."""
    same_folder = os.path.samestat(os.stat(root), os.stat("/"))
    return same_folder and process.link("ns/mnt") == os.readlink("/proc/self/ns/mnt")


def _outputs(process):
    """(descriptor, name) of what the process prints to."""
    for number in OUTPUTS:
        try:
            flags = process.text("fdinfo/%d" % number).partition("flags:")[2].split()[0]
            if int(flags, 8) & os.O_PATH:
                continue  # whoever opened it so was not asked whether he may read it
            yield process.handle("fd/%d" % number), process.link("fd/%d" % number)
        except (OSError, IndexError):
            continue  # closed


def _source(descriptors, place, size):
    """The first bytes of a regular file that its owner may read.

    Of any other file it is nothing.
    """
    path, folder = place
    try:
        handle = os.open(path, os.O_PATH, dir_fd=folder)
    except (OSError, ValueError):  # a name may hold a zero byte
        return b""
    try:
        with _opened(descriptors, handle) as source:
            return source.read(size)
    except OSError:
        return b""
    finally:
        os.close(handle)


def _tail(descriptors, handle, name):
    """{file, seconds since it was written, text of its end} of a regular file.

    Of any other file it is {}.
    """
    try:
        with _opened(descriptors, handle) as source:
            about_file = os.fstat(source.fileno())
            source.seek(max(0, about_file.st_size - TAIL))
            text = source.read(TAIL).decode("utf-8", "replace")
    except OSError:
        return {}
    quiet = round(max(0.0, time.time() - about_file.st_mtime), 1)
    return {"file": name, "quiet": quiet, "text": text}


def _opened(descriptors, handle):
    """A regular file, opened for reading by a descriptor of it.

    Raises OSError where it is another kind of file or may not be read.
    """
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        raise OSError("not a regular file")  # what is read of a pipe is lost for its reader
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
    return open(os.open(str(handle), flags, dir_fd=descriptors), "rb")


def run_tool(process, command, parent):
    """Become a tool that reads a process and files as its owner; never returns.

    Of the process the tool reads the memory.
    """
    ours = own_rights()
    capabilities = 1 << CAP_SYS_PTRACE
    if process.link("ns/mnt") != os.readlink("/proc/self/ns/mnt"):
        capabilities |= 1 << CAP_SYS_ADMIN | 1 << CAP_SYS_CHROOT  # py-spy enters the container
    program = os.open(command[0], os.O_RDONLY)
    is_script = os.pread(program, 2, 0) == b"#!"
    take_rights(process.rights, ours, capabilities & ours.capabilities)
    for number in (CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_SYS_CHROOT):
        if capabilities & ours.capabilities & 1 << number:
            _prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, number)  # stays when the tool is executed
    _die_with(parent)
    # the owner may not be let into the folder of a program that he may execute
    os.execve(command[0] if is_script else program, command, os.environ)


def _set_capabilities(capabilities):
    """Have these capabilities and no other."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    words = [capabilities & 0xFFFFFFFF] * 3 + [capabilities >> 32] * 3
    _check(LIBC.capset(header, (ctypes.c_uint32 * 6)(*words)))


def _prctl(option, *values):
    numbers = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    _check(LIBC.prctl(option, *numbers))


def _check(result):
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _die_with(parent):
    """End with the process that started this one.

    The kernel forgets this order at a change of rights.
    """
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(137)


if __name__ == "__main__":
    main(sys.argv[1:])
