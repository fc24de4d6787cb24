# stream.py [MODEL]: prompts from a generator that never ends, results as they finish.
import itertools
import sys

from streamrunner.engine import LLM, SamplingParams

params = SamplingParams(temperature=0.7, max_tokens=24)

with LLM(*sys.argv[1:] or ["smollm2-135m-instruct"], seed=7) as llm:
    prompts = (f"Fact {number} about the sea:" for number in itertools.count(1))
    with llm.generate_stream(prompts, params, every_n=None) as stream:
        for output in itertools.islice(stream, 8):
            print(output.index, repr(output.outputs[0].text), flush=True)
    # Leaving the block has freed whatever was still running.
