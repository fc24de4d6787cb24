#!/bin/sh
# Start Redis as a job log: users from users.acl, every write on disk before it is answered.
# Wants RUNNER_PASSWORD, WORKER_PASSWORD and WATCHER_PASSWORD; further arguments go to redis-server.
set -eu
here=$(dirname "$0")
users=${USERS_FILE:-/tmp/users.acl}

# The server gets digests only. The passwords stay in the environment of this container.
digest() {
  [ -n "$2" ] || { echo "start.sh: $1 is empty; every user needs a password of its own" >&2; exit 64; }
  printf %s "$2" | sha256sum | cut -d' ' -f1
}
runner=$(digest RUNNER_PASSWORD "${RUNNER_PASSWORD:-}")
worker=$(digest WORKER_PASSWORD "${WORKER_PASSWORD:-}")
watcher=$(digest WATCHER_PASSWORD "${WATCHER_PASSWORD:-}")
sed -e "s/RUNNER_SHA256/$runner/" -e "s/WORKER_SHA256/$worker/" -e "s/WATCHER_SHA256/$watcher/" \
  "$here/users.acl" >"$users"
unset RUNNER_PASSWORD WORKER_PASSWORD WATCHER_PASSWORD

# appendfsync always  an acknowledged event survives a power cut; a weaker policy can lose the last second
# noeviction          a full server refuses writes, and the runner waits; an evicting one would delete logs
# save ""             the append-only file holds everything already
set -- redis-server --aclfile "$users" --appendonly yes --appendfsync always --maxmemory-policy noeviction \
  --save "" --auto-aof-rewrite-min-size 256mb "$@"

# The image's own entrypoint gives up root and owns /data; outside the image there is none.
if command -v docker-entrypoint.sh >/dev/null; then exec docker-entrypoint.sh "$@"; fi
exec "$@"
