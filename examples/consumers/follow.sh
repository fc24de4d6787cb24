#!/bin/sh
# follow.sh JOB [redis-cli options]: a job's history, event by event, until it ends.
job=$1 id=0 type=
shift
until [ "$type" = job.ended ]; do
  entry=$(redis-cli "$@" --raw XREAD COUNT 1 BLOCK 0 STREAMS "sr:{$job}:log" "$id") || exit
  id=$(printf %s "$entry" | sed -n 2p)
  type=$(printf %s "$entry" | sed -n 4p)
  printf '%s %s %s\n' "$id" "$type" "$(printf %s "$entry" | sed -n 12p)"
done
