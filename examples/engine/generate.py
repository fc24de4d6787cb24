# generate.py [MODEL]: a list in, a list out, as with vLLM.
import sys

from streamrunner.engine import LLM, SamplingParams

prompts = ["The capital of France is", "Water boils at", "", "The opposite of hot is"]

with LLM(*sys.argv[1:] or ["smollm2-135m-instruct"]) as llm:
    for output in llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=16)):
        if output.error is not None:  # a prompt that cannot run fails alone
            print(f"{output.index}: {output.error.code}: {output.error}")
        else:
            print(f"{output.index}: {output.prompt}|{output.outputs[0].text}")
