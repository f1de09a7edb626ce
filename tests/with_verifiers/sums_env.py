"""An environment of verifiers: its agent talks in this process, and its contexts branch."""

from __future__ import annotations

import verifiers.v1 as vf
from openai import AsyncOpenAI

__all__ = ["SumsEnv", "SumsHarness", "SumsTaskset"]


class SumsData(vf.TaskData):
    answer: str


class SumsTask(vf.Task[SumsData]):
    @vf.reward
    async def digits(self, trace: vf.Trace) -> float:
        """The share of the answer's digits that the last turn has."""
        said = trace.last_reply
        return sum(digit in said for digit in self.data.answer) / len(self.data.answer)

    @vf.reward(weight=0.5)
    async def short(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply) < 4)


class SumsTaskset(vf.Taskset[SumsTask]):
    def load(self):
        for a in range(8):
            data = SumsData(prompt=f"{a}+1=", answer=str(a + 1))
            yield SumsTask(data, self.config.task)
        yield SumsTask(SumsData(prompt="fail", answer="0"), self.config.task)


class SumsHarness(vf.Harness[vf.HarnessConfig]):
    """Two turns, a third in a branch, and one after a compaction; "fail" fails after one."""

    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        async with AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0) as client:

            async def turn(*said: dict) -> dict:
                answer = await client.chat.completions.create(model=ctx.model, messages=[*said])
                return {"role": "assistant", "content": answer.choices[0].message.content or ""}

            def user(text: str) -> dict:
                return {"role": "user", "content": text}

            first = user(data.prompt)
            opened = await turn(first)
            if data.prompt == "fail":
                raise ValueError("the program ended")
            await turn(first, opened, user("more"))
            await turn(first, opened, user("less"))
            await turn(user("sum so far 2"))
        return vf.ProgramResult(0, "", "")


class SumsConfig(vf.SingleAgentEnvConfig):
    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())


class SumsEnv(vf.SingleAgentEnv, vf.Env[SumsConfig]):
    pass
