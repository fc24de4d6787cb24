# chat.py [MODEL]: chats, answered token by token, one after the other on the screen and all at once in the engine.
import sys

from streamrunner.engine import LLM, SamplingParams

questions = ["Name three colours.", "Why is the sky blue?", "Count to five."]
chats = [[{"role": "user", "content": question}] for question in questions]

with LLM(*sys.argv[1:] or ["smollm2-135m-instruct"]) as llm:
    for output in llm.generate_stream(chats, SamplingParams(temperature=0.0, max_tokens=40), ordered=True):
        print(output.outputs[0].delta_text, end="\n\n" if output.finished else "", flush=True)
