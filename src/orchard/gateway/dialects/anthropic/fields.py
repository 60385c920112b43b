"""What becomes of each field of a request in Anthropic's messages form."""

from __future__ import annotations

from collections.abc import Mapping

from orchard.gateway.dialects.wire import ANY, Field, dropped, passed, refused, translated

_SERVER = dropped("what a tool run by Anthropic did")

FIELDS: Mapping[str, Field] = {
    "model": translated("any name is taken; the engine is asked for the session's own, where it has one"),
    "stream": translated("server-sent events, or one answer"),
    "system": translated("the first message, of role `system`; a billing header in it is dropped"),
    "messages": translated("messages; role `system` may stand anywhere among them"),
    "content.text": translated("text; a `cache_control` mark is left out, as everywhere"),
    "content.image": translated("an `image_url` part, inside tool results too"),
    "content.document": translated("text where it is text, else a `file` part"),
    "content.tool_result": translated("a message of role `tool`, before the rest of its message"),
    "content.tool_reference": translated("the name of the tool; from then on the tool is passed"),
    "content.tool_addition": translated("the tool is passed from then on"),
    "content.tool_removal": translated("the tool is dropped from then on"),
    "content.tool_use": translated("a tool call of its answer"),
    "content.thinking": translated("`reasoning_content` of its answer; dropped where the signature is not ours"),
    "content.redacted_thinking": dropped("it holds nothing that could be read"),
    "content.is_error": dropped("the text of the result says so"),
    "content.server_tool_use": _SERVER,
    "content.web_search_tool_result": _SERVER,
    "content.web_fetch_tool_result": _SERVER,
    "content.code_execution_tool_result": _SERVER,
    "content.tool_search_tool_result": _SERVER,
    "content.mcp_tool_use": _SERVER,
    "content.mcp_tool_result": _SERVER,
    "content.*": refused("no such block can be put before a model here"),
    "tools": translated("tools, as below"),
    "tools.custom": translated("a function"),
    "tools.deferred": dropped("those with `defer_loading`, until something names one; kept as `tools.NAME`"),
    "tools.*": dropped("run by Anthropic, or known to its models by a type; kept as `tools.NAME`"),
    "tool_choice": translated("in chat's words, `parallel_tool_calls` too; left out where no tool is left"),
    "max_tokens": passed(),
    "temperature": passed(),
    "top_p": passed(),
    "top_k": passed(),
    "stop_sequences": translated("`stop`"),
    "output_config": translated("`format` becomes `response_format`"),
    "output_config.effort": dropped(),
    "output_config.*": dropped(),
    "thread": refused("nothing is kept between requests: send all messages each time"),
    "thinking": dropped("whether a model thinks is its own matter; what it thinks is given"),
    "metadata": dropped("read for which agent asks"),
    "context_management": dropped("the prompt stays as it was sent"),
    "cache_control": dropped("prompts are cached anyway"),
    ANY: dropped("`service_tier`, `container`, `mcp_servers`, `betas` …"),
}
