# follow.py [JOB]: what happens in a job, and the text of each row as it grows, until the job ends.
import sys

from streamrunner.runner import LiveText, TokensEvent, watch

texts = LiveText()
for event in watch(*sys.argv[1:]):
    for row, choice in texts.apply(event):
        print(f"{row}.{choice}: {texts.text(row, choice)!r}", flush=True)
    if not isinstance(event, TokensEvent):
        print(event.type, event.custom_id or "", flush=True)
