# submit.py [MODEL]: submit a job from Python, run it in this process, and read its results.
import sys

from streamrunner.runner import Client

countries = ["France", "Japan", "Peru"]
spec = {
    "name": "capitals",
    "model": sys.argv[1] if sys.argv[1:] else "smollm2-135m-instruct",
    "sampling": {"temperature": 0, "max_tokens": 16},
    "requests": [{"custom_id": name, "prompt": f"The capital of {name} is"} for name in countries],
    "outputs": [],
}

with Client() as client:
    job = client.submit(spec)  # only writes the job to the log; the same again is the same job
    job.run(progress=True)  # without this line a `runner worker` on any machine does the work
    for line in job.results(order="input"):
        answer = line["error"] or line["response"]["body"]["choices"][0]["text"]
        print(line["custom_id"], repr(answer))
    print(job.status())
