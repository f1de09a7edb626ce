"""What the policy reads in a conversation: the first prompt, and what follows each of its turns.

    after(messages) = tokens(user, turn, messages, start of the next turn) − tokens(user, turn)

`user` and `turn` are dummies: what the policy sampled is never encoded again.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from rlobj.base.errors import ConfigError
from rlobj.base.showing import shown
from rlobj.conversations.environment import Message
from rlobj.data.prompts import Chat, checked_prompt, with_bos

_BREAK = "\ufdd0"
"""Where a text is cut before it is encoded. Unicode reserves it for the inside of programs."""
_QUESTION: Message = {"role": "user", "content": "What is 2 + 2?"}
_MARK, _SEEN = "dummy-turn-7391", "observed-7391"
"""The end of a dummy turn, or the argument of its call; and what an environment says after it."""
_TURNS = (
    "It is 4.",
    "<think>\nTwo and two.\n</think>\n\nIt is 4.",
    '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 2}}\n</tool_call>',
    "It is 4. " * 300,
)
"""Dummy turns."""


class Rendering:
    """The token ids of what is said to the policy.

    The added tokens of the tokenizer (`<|im_end|>`, `<tool_response>`, `<think>`, ...) have their
    ids where the chat template writes them. The text of such a token in a message is encoded as
    ordinary text, so that a tool cannot forge the end of a turn.

    Args:
        tokenizer: of transformers.
        chat: how prompts go through the chat template; None = contents are concatenated.
        tools: JSON schemas of the tools, as chat templates read them.

    Raises:
        ConfigError: what follows a turn depends on what the turn says; or the template does not
            write calls of tools, or what the policy is to read: the role is "tool" if there are
            tools, else "user".
    """

    def __init__(
        self, tokenizer: Any, chat: Chat | None, tools: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        self.tokenizer, self.chat, self.tools = tokenizer, chat, tools
        added = {
            index: token.content
            for index, token in tokenizer.added_tokens_decoder.items()
            if not token.content.isspace()
        }
        self._added = frozenset(added)
        starts = [f"{re.escape(s[0])}(?={re.escape(s[1:])})" for s in added.values() if len(s) > 1]
        self._starts = re.compile("|".join(starts) or "(?!)")
        self._ends: dict[str | None, tuple[int | None, int]] = {}
        self._written = {"tool"} if tools else set[str]()  # roles
        if chat is not None:
            self._check()

    def opening(self, messages: Sequence[Message], *, trusted: bool = False) -> list[int]:
        """The token ids of the first prompt, up to the start of the policy's turn.

        Args:
            messages: the first messages of the conversation.
            trusted: they are the data set's: added tokens in their contents keep their ids, as in
                the prompts of conversations of one turn.

        Raises:
            ConfigError: the template fails, or the prompt has no tokens.
        """
        ids = self._encode(self._open(messages)) if trusted else self._ids(messages, self._open)
        if self.chat is None:
            ids = with_bos(self.tokenizer, ids)
        return checked_prompt(ids, "".join(message["content"] for message in messages))

    def after(self, messages: Sequence[Message], last: int | None = None) -> list[int]:
        """The token ids between a turn of the policy and its next one.

        Args:
            messages: what the policy reads; [] = only the start of its next turn.
            last: the last token id of the policy's turn. If the rest begins with this added token,
                such as the template's end of turn, it is not repeated.

        Returns:
            The rest of the policy's turn that it did not write, such as "\\n" after `<|im_end|>`;
            the messages; and the start of the next turn.

        Raises:
            ConfigError: the template fails on the messages, such as on an unknown role.
        """
        if self.chat is None:
            return self._ids(messages, self._open)
        for role in {str(message["role"]) for message in messages} - self._written:
            if _SEEN not in self._tail([{"role": role, "content": _SEEN}]):
                raise ConfigError(
                    f"the chat template of '{self.tokenizer.name_or_path}' does not write messages "
                    f"of the role {role!r}; give the policy messages of the role 'user'"
                )
            self._written.add(role)
        return self._cut(self._ids(messages, self._tail), messages, last)

    def example(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, str]:
        """A text up to the start of the policy's turn, and a turn that calls a tool.

        There is a chat template.

        Raises:
            ConfigError: it fails.
        """
        assert self.chat is not None
        before = self._open([_QUESTION])
        said = _call("", name, arguments)
        whole = self.chat.rendered(self.tokenizer, [_QUESTION, said], self.tools, more=False)
        return before, whole[_common(before, whole) :]

    def _open(self, messages: Sequence[Message]) -> str:
        if self.chat is None:
            return "".join(message["content"] for message in messages)
        return self.chat.rendered(self.tokenizer, messages, self.tools)

    def _dummy(self, messages: Sequence[Message], turn: str = "", *, more: bool = True) -> str:
        """A conversation with a dummy turn; messages of tools follow a call of the first one."""
        assert self.chat is not None
        said: Message = {"role": "assistant", "content": turn + _MARK}
        if (tool := _tool(messages)) is not None:
            said = _call(turn, tool.get("name", ""), {"x": _MARK})
        rest = messages if more else ()
        return self.chat.rendered(self.tokenizer, [_QUESTION, said, *rest], more=more)

    def _tail(self, messages: Sequence[Message], *, more: bool = True) -> str:
        return self._dummy(messages, more=more).partition(_MARK)[2]

    def _ids(
        self, messages: Sequence[Message], render: Callable[[Sequence[Message]], str]
    ) -> list[int]:
        """The token ids of messages; added tokens are only those that the template writes.

        If a template or the tokenizer joins the halves of an added token, each character of the
        messages is encoded alone.
        """

        def encoded(change: Callable[[str], str]) -> list[int]:
            return self._encode(render([_changed(message, change) for message in messages]))

        ids = encoded(lambda text: self._starts.sub(rf"\g<0>{_BREAK}", text))
        harmless = encoded(lambda text: text and "x")
        if self._controls(ids) != self._controls(harmless):
            ids = encoded(_BREAK.join)
        return ids

    def _encode(self, text: str) -> list[int]:
        pieces = filter(None, text.split(_BREAK))
        encode = self.tokenizer
        return [i for piece in pieces for i in encode(piece, add_special_tokens=False)["input_ids"]]

    def _controls(self, ids: Sequence[int]) -> list[int]:
        return [token for token in ids if token in self._added]

    def _cut(self, tail: list[int], messages: Sequence[Message], last: int | None) -> list[int]:
        """What follows the policy's own tokens, in the token ids that follow the mark."""
        tool = _tool(messages)
        name = None if tool is None else _changed(tool.get("name", ""), str)
        if name not in self._ends:
            self._ends[name] = self._end(name)
        end, common = self._ends[name]
        rest = tail[common if end is None else tail.index(end) :]
        return rest[last in self._added and rest[:1] == [last] :]

    def _end(self, name: str | None) -> tuple[int | None, int]:
        """The token that ends a turn, if there is one; the number of tokens of the turn in all."""
        seen = [_seen(name)]
        turn, whole = self._encode(self._tail(seen, more=False)), self._encode(self._tail(seen))
        plain = self._encode(self._tail([], more=False))
        ends = {self.tokenizer.eos_token_id, *self._controls(plain[:1])}
        said = turn[: _common(turn, whole)]
        return next((token for token in reversed(said) if token in ends), None), len(said)

    def _check(self) -> None:
        seen = _seen(self.tools[0]["function"]["name"] if self.tools else None)
        expected: list[int] = []
        for turn in _TURNS:
            try:
                _, mark, tail = self._dummy([seen], turn).partition(_MARK)
            except ConfigError as error:
                self._refuse(f"fails on messages of the role '{seen['role']}': {error.__cause__}")
            if not mark:
                what = "the calls of tools" if self.tools else "what the policy said"
                self._refuse(f"does not write {what}")
            if _SEEN not in tail:
                self._refuse(f"does not write messages of the role '{seen['role']}'")
            following = self._cut(self._encode(tail), [seen], None)
            expected = expected or following
            if following != expected:
                self._refuse(f"writes another text after {shown(turn)} than after other turns")

    def _refuse(self, reason: str) -> NoReturn:
        hermes = " and environment.calls=hermes" if self.tools else ""
        raise ConfigError(
            f"the chat template of '{self.tokenizer.name_or_path}' {reason}. Use another model, "
            f"change its chat_template.jinja, or use model.chat_template=false{hermes}"
        )


def _call(content: str, name: str, arguments: Mapping[str, Any]) -> Message:
    function = {"name": name, "arguments": arguments}
    call = {"id": "call00000", "type": "function", "function": function}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def _seen(tool: str | None) -> Message:
    who = {"role": "user"} if tool is None else {"role": "tool", "name": tool}
    return {**who, "content": _SEEN}


def _tool(messages: Sequence[Message]) -> Message | None:
    return next((message for message in messages if message["role"] == "tool"), None)


def _common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """The number of equal elements at the beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    """A message with other texts, without lone surrogates."""
    if isinstance(value, str):
        return change(value.encode("utf-8", "replace").decode().replace(_BREAK, "\ufffd"))
    if isinstance(value, Mapping):
        keep = ("role", "type")
        return {key: part if key in keep else _changed(part, change) for key, part in value.items()}
    return [_changed(part, change) for part in value] if isinstance(value, list | tuple) else value
