"""The toy repair: a project with one failing test, and a scripted model that mends it with any harness's own tools.

It needs ``sh`` alone, so it fits every image. The model reads the file, mends it, runs the test, and ends; it takes
what tools the request offers, by their names and the schemas of their arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from orchard.harness.protocol import SUBMIT_MARKER

WORKDIR = "/testbed"
FILE = "greet.sh"
WRONG, RIGHT = 'echo "Helo, $1!"', 'echo "Hello, $1!"'
PASSED = "1 passed"
"""What the test says of a mended project."""
TEST = f"""\
said=$(sh {FILE} World)
if [ "$said" = "Hello, World!" ]; then echo "{PASSED}"; exit 0; fi
echo "1 failed: {FILE} World says '$said', not 'Hello, World!'"
exit 1
"""
FILES: Mapping[str, str] = {FILE: f"{WRONG}\n", "test.sh": TEST}
INSTRUCTION = (
    f"The greeting in {FILE} is misspelt, so the test fails. Correct it, run the test by `sh test.sh`, and end once it"
    f" passes. Everything is in {WORKDIR}."
)
VERDICT = f'[ "$(sh {FILE} World)" = "Hello, World!" ]'
"""A command that exits with 0 in a mended project; it reads nothing that an attempt may forge but the file itself."""
SAYS = ("I read the file first.", "The greeting lacks a letter.", "Now the test.", "The greeting is mended.")
"""What each answer says: by it a harness's own trajectory file is found to hold the answer."""
SIDE = "Mend the greeting"
"""The answer to a call without tools: a title or a summary."""
SUMMARY = f"<analysis>A toy.</analysis>\n<summary>The greeting in {FILE} is to be mended, and tested.</summary>"
"""The answer to a call that asks for the conversation so far in short, tools and all."""

_SHELLS = (
    "bash", "shell", "terminal", "exec_command", "exec", "execute_bash", "run_shell_command", "run_command", "command",
)  # fmt: skip
_READERS = ("read", "read_file", "file_read", "view", "file_editor", "str_replace_editor")
_EDITORS = ("edit", "edit_file", "file_edit", "str_replace", "patch", "file_editor", "str_replace_editor")
_COMMAND = ("command", "cmd", "script")
_PATH = ("file_path", "filePath", "path", "file", "filename")
_OLD = ("old_string", "oldString", "oldText", "old_str", "old_text", "search")
_NEW = ("new_string", "newString", "newText", "new_str", "new_text", "replace")
_MODES = {"read": ("view", "read"), "edit": ("str_replace", "replace", "edit")}

Message = Mapping[str, Any]


def answer(messages: Sequence[Message], tools: Sequence[Message]) -> dict[str, Any]:
    """Return the scripted model's next step, as ``ScriptEngine`` takes it: it depends on the conversation alone."""
    if not tools or _wants_summary(messages):
        return {"content": SIDE if not tools else SUMMARY}
    step = min(acted(messages), 3)
    call = (_read, _mend, _test, _end)[step](_hands(tools), messages)
    return {"content": SAYS[step], "calls": [call] if call else []}


def _wants_summary(messages: Sequence[Message]) -> bool:
    last = messages[-1] if messages else {}
    begun = any(one.get("role") == "assistant" for one in messages)
    text = str(last.get("content")).lower() if last.get("role") == "user" else ""
    return "summary" in text and (begun or "run out of context" in text)


def acted(messages: Sequence[Message]) -> int:
    """Return how many answers of a conversation called tools."""
    return sum(one.get("role") == "assistant" and bool(one.get("tool_calls")) for one in messages)


def shell_call(tools: Sequence[Message], command: str) -> dict[str, Any] | None:
    """Return a call that runs ``command`` by whatever of ``tools`` is a shell; None where none is."""
    return _shell(_hands(tools), command, cwd="")


def end_call(tools: Sequence[Message], words: str) -> dict[str, Any] | None:
    """Return a call of the tool by which a harness's agent ends; None where words alone do."""
    hands = _hands(tools)
    return _call("finish", hands["finish"], {("message",): words}, "end") if "finish" in hands else None


def _hands(tools: Sequence[Message]) -> dict[str, Message]:
    return {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}


def _read(hands: Mapping[str, Message], _: Sequence[Message]) -> dict[str, Any] | None:
    found = _by_role(hands, _READERS, _PATH)
    if found is None:
        return _shell(hands, f"cat {FILE}")
    return _call(found, hands[found], {_PATH: f"{WORKDIR}/{FILE}"}, "read")


def _mend(hands: Mapping[str, Message], _: Sequence[Message]) -> dict[str, Any] | None:
    path = {_PATH: f"{WORKDIR}/{FILE}"}
    found = _by_role(hands, _EDITORS, _PATH, _OLD, _NEW)
    if found is not None:
        return _call(found, hands[found], {**path, _OLD: WRONG, _NEW: RIGHT}, "edit")
    for name in _named(hands, _EDITORS):  # one that takes a list of replacements
        for field, value in _properties(hands[name]).items():
            inner = _properties(value.get("items") or {})
            old, new = _first(inner, _OLD), _first(inner, _NEW)
            if old and new and _first(_properties(hands[name]), _PATH):
                return _call(name, hands[name], {**path, (field,): [{old: WRONG, new: RIGHT}]}, "edit")
    return _shell(hands, f"printf '%s\\n' '{RIGHT}' > {FILE}")


def _test(hands: Mapping[str, Message], _: Sequence[Message]) -> dict[str, Any] | None:
    return _shell(hands, "sh test.sh")


def _end(hands: Mapping[str, Message], messages: Sequence[Message]) -> dict[str, Any] | None:
    """End as the harness wants it: by the marker that its prompt names, by a tool for that, or by words alone."""
    if any(SUBMIT_MARKER in str(one.get("content")) for one in messages):
        return _shell(hands, f"echo {SUBMIT_MARKER}")
    return _call("finish", hands["finish"], {("message",): SAYS[3]}, "end") if "finish" in hands else None


def _shell(hands: Mapping[str, Message], command: str, cwd: str = WORKDIR) -> dict[str, Any] | None:
    found = _by_role(hands, _SHELLS, _COMMAND)
    if found is None:
        return None
    field = _first(_properties(hands[found]), _COMMAND)
    command = f"cd {cwd} && {command}" if cwd else command
    listed = field is not None and _properties(hands[found])[field].get("type") == "array"
    given: Any = ["sh", "-c", command] if listed else command
    return _call(found, hands[found], {_COMMAND: given}, "shell")


def _call(name: str, schema: Message, given: Mapping[tuple[str, ...], Any], purpose: str) -> dict[str, Any]:
    """Return a call: each value under the first of its names that the schema has, then whatever else is required."""
    properties = _properties(schema)
    arguments = {field: value for names, value in given.items() if (field := _first(properties, names))}
    for field, facts in properties.items():
        modes = [mode for mode in _MODES.get(purpose, ()) if mode in (facts.get("enum") or ())]
        if modes and field not in arguments:
            arguments[field] = modes[0]
    for field in schema.get("required") or ():
        arguments.setdefault(field, filler(properties.get(field) or {}))
    return {"name": name, "arguments": arguments}


def filler(facts: Message) -> Any:
    """Return some value of an argument's kind, for one that a tool requires and that does not matter."""
    if facts.get("enum"):
        return facts["enum"][0]
    kind = facts.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    fillers: dict[str, Any] = {"boolean": False, "integer": 1, "number": 1, "array": [], "object": {}}
    return fillers.get(str(kind), "the toy repair")


def _by_role(hands: Mapping[str, Message], names: Iterable[str], *fields: tuple[str, ...]) -> str | None:
    """Return the first tool of ``names`` that takes an argument of each of ``fields``."""
    known = _named(hands, names)
    return next((one for one in known if all(_first(_properties(hands[one]), each) for each in fields)), None)


def _named(hands: Mapping[str, Message], names: Iterable[str]) -> list[str]:
    by_word = {name.lower(): name for name in hands}
    return [by_word[word] for word in names if word in by_word]


def _first(properties: Mapping[str, Any], names: Iterable[str]) -> str | None:
    return next((name for name in names if name in properties), None)


def _properties(schema: Message) -> dict[str, Message]:
    return schema.get("properties") or {}


AGENT = """\
import json, os, subprocess, sys, urllib.request
tool = {"type": "function", "function": {"name": "bash", "parameters": {
    "type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}}}
messages = [{"role": "user", "content": sys.stdin.read()}]
while True:
    body = {"model": os.environ["OPENAI_MODEL"], "messages": messages, "tools": [tool]}
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(), headers)
    message = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    messages.append(message)
    if not message.get("tool_calls"):
        print(message["content"])
        break
    for call in message["tool_calls"]:
        command = json.loads(call["function"]["arguments"])["command"]
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": done.stdout + done.stderr})
"""
"""An agent of Python's standard library alone, which the harness ``command`` runs where it is told no other."""
CONFIG: Mapping[str, Mapping[str, Any]] = {
    "command": {"argv": ["python3", "-c", AGENT]},
    "hermes-agent": {"settings": {"agent": {"verify_on_stop": False}}},  # it knows the toy's test for none
    "openclaw": {"append_only": True},  # else each of its calls is a conversation of its own
    "kimi-code": {"context": 1_000_000},  # the check's model counts a byte as a token
}
"""Options under which a harness is checked, where it takes any that it cannot do without."""
