"""How the files of native code are named in stacks, which agent and readers have to tell."""

import re

NATIVE_FILE = re.compile(r"\.so\b|\.(?:c|cc|cpp|cxx|cu|cuh|h|hpp|S)$")
"""Libraries, and sources of native code where a library has its debugging symbols."""
