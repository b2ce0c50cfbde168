"""What the modules of this folder agree on."""

import sys

MAJOR_VERSION = "18"
START_TIMEOUT_SECONDS = 60.0
STOP_TIMEOUT_SECONDS = 60.0

LINUX = sys.platform.startswith("linux")
# The server knows its data folder only by this name: any path works, and no parent is looked at.
HERE = "/proc/self/cwd" if LINUX else "."
SOCKET = ".s.PGSQL.5432"
