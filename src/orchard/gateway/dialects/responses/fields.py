"""What becomes of each field of a request in OpenAI's responses form."""

from __future__ import annotations

from collections.abc import Mapping

from orchard.gateway.dialects.wire import ANY, Field, dropped, passed, refused, translated

_HOSTED = dropped("what a tool hosted by OpenAI did")
_STATE = refused("nothing is kept between requests: send the whole input each time")

FIELDS: Mapping[str, Field] = {
    "model": translated("any name is taken; the engine is asked for the session's own, where it has one"),
    "stream": translated("server-sent events, or one answer"),
    "instructions": translated("the first message, of role `system`"),
    "input": translated("messages; the items of one answer become one message"),
    "input.message": translated("a message; role `developer` becomes `system`"),
    "input.reasoning": translated("`reasoning_content` of its answer: the content, else the summary"),
    "input.function_call": translated("a tool call; its namespace goes into the name"),
    "input.custom_tool_call": translated('a tool call with the argument `{"input": TEXT}`'),
    "input.function_call_output": translated("a message of role `tool`"),
    "input.custom_tool_call_output": translated("a message of role `tool`"),
    "input.additional_tools": translated("more tools"),
    "input.web_search_call": _HOSTED,
    "input.file_search_call": _HOSTED,
    "input.code_interpreter_call": _HOSTED,
    "input.image_generation_call": _HOSTED,
    "input.item_reference": _STATE,
    "input.*": refused("no such item can be put before a model here"),
    "content.input_text": translated("text"),
    "content.output_text": translated("text"),
    "content.text": translated("text"),
    "content.refusal": translated("text"),
    "content.input_image": translated("an `image_url` part"),
    "content.input_file": translated("a `file` part"),
    "content.*": refused("no such part can be put before a model here"),
    "tools": translated("tools, as below"),
    "tools.function": translated("a function"),
    "tools.custom": translated("a function of one argument, `input`; a grammar goes into its description"),
    "tools.namespace": translated("its functions, named `NAMESPACE__NAME`; a call comes back with its `namespace`"),
    "tools.*": dropped("hosted by OpenAI, or with items of its own; kept as `tools.TYPE`"),
    "tool_choice": translated("in chat's words; allowed tools become their mode; left out where no tool is left"),
    "parallel_tool_calls": translated("passed where there are tools"),
    "max_output_tokens": translated("`max_completion_tokens`"),
    "reasoning": translated("`effort` becomes `reasoning_effort`; a summary is always given, and it is the whole"),
    "text": translated("`format` becomes `response_format`"),
    "temperature": passed(),
    "top_p": passed(),
    "previous_response_id": _STATE,
    "conversation": _STATE,
    "prompt": _STATE,
    "background": refused("an answer is only given to whoever waits for it"),
    "include": dropped("nothing of it exists here; reasoning comes back unencrypted"),
    "store": dropped("nothing can be asked for later by its id"),
    ANY: dropped("`prompt_cache_key`, `client_metadata`, `metadata`, `truncation`, `service_tier` …"),
}
