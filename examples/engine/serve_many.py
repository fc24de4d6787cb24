# serve_many.py [MODEL]: async callers that know nothing of each other share the engine's batches.
import asyncio
import sys

from streamrunner.engine import LLM, SamplingParams

params = SamplingParams(temperature=0.0, max_tokens=24)


async def ask(llm: LLM, question: str) -> str:
    chat = {"messages": [{"role": "user", "content": question}]}
    text = ""
    async with llm.agenerate_stream(chat, params) as stream:
        async for output in stream:
            text += output.outputs[0].delta_text
    return text


async def main(llm: LLM) -> None:
    questions = ["What is a tide?", "What is a wave?", "What is a current?"]
    for question, answer in zip(questions, await asyncio.gather(*(ask(llm, one) for one in questions)), strict=True):
        print(f"{question} {answer!r}")


with LLM(*sys.argv[1:] or ["smollm2-135m-instruct"]) as engine:
    asyncio.run(main(engine))
