# follow.py URL JOB: a job's history and its tokens as they are made, until it ends.
import json
import sys

import redis

log, steps = f"sr:{{{sys.argv[2]}}}:log", f"sr:{{{sys.argv[2]}}}:steps:"
server = redis.from_url(sys.argv[1], protocol=2, decode_responses=True, socket_timeout=None)
cursors, ended = {log: "0"}, False
while page := server.xread(cursors, block=None if ended else 0):
    for key, entries in page:
        for cursors[key], entry in entries:
            if key != log:
                for row, _claim, choice, at, _ids, text, *_ in json.loads(entry["d"]):
                    print(f"row {row} choice {choice} token {at}: {text!r}", flush=True)
                continue
            data = json.loads(entry["data"])
            print(entry["type"], data.get("custom_id", ""), flush=True)
            ended = ended or entry["type"] == "job.ended"
            if entry["type"] == "worker.joined":
                cursors[steps + data["worker"]] = "0"
