"use strict";
// Everything recorded reaches the page as text nodes only: `el` never parses markup.
const el = (tag, attributes, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) if (value != null) node.setAttribute(name, value);
  for (const child of children.flat()) if (child != null) node.append(child);
  return node;
};
const counted = (number, thing) => `${number} ${thing}${number === 1 ? "" : "s"}`;
const pre = (text, kind) => el("pre", { class: kind, tabindex: "0" }, text);
const more = (title, make) => {
  const box = el("details", { class: "more" }, el("summary", {}, title));
  box.addEventListener("toggle", () => { if (box.open && box.children.length === 1) box.append(...[make()].flat()); });
  return box;
};
const unpack = async (id) => {
  const packed = Uint8Array.from(atob(document.getElementById("data-" + id).textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
};

const facts = (r) => {
  const seconds = Object.entries(r.seconds).map(([stage, s]) => `${stage} ${s.toFixed(1)}`).join(", ");
  const image = r.environment.image_digest || r.environment.image;
  const rows = {
    reward: r.reward == null ? "none" : String(r.reward), stopped: [r.stop, r.detail].filter(Boolean).join(": "),
    harness: r.harness, model: r.model, turns: r.turns, "model calls": r.calls.length,
    tokens: `${r.usage.prompt_tokens} in, ${r.usage.completion_tokens} out${r.usage.estimated ? " (words)" : ""}`,
    tries: r.earlier ? `${r.tries} (not shown, of earlier tries: ${counted(r.earlier, "call")})` : r.tries,
    seconds, started: r.started, image, backend: r.environment.backend, id: r.id,
  };
  return el("dl", { class: "facts-grid" }, Object.entries(rows).filter(([, value]) => value != null && value !== "")
    .map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, String(value)))));
};

const command = (c) => {
  const end = c.output == null ? "no record of a run" : c.note || `exit code ${c.exit}`;
  const bad = c.output == null || c.note || c.exit !== 0;
  return el("div", { class: "command" }, pre((c.name === "bash" ? "$ " : c.name + " ") + c.command, "run"),
    c.output ? pre(c.output, "out") : null,
    el("p", { class: "end" }, el("span", { class: bad ? "bad" : "good" }, end), c.seconds == null ? "" : ` · ${c.seconds.toFixed(2)} s`));
};

const call = (c) => {
  const head = [`call ${c.index + 1}`, c.purpose !== "agent" ? c.purpose : null, c.matched === "forked" ? `forks after ${counted(c.kept, "message")}` : null,
    c.seconds == null ? null : `${c.seconds.toFixed(2)} s`, `${c.tokens[0]} + ${c.tokens[1]} tokens`, c.finish, c.status !== "ok" ? c.status : null];
  return el("div", { class: "call" }, el("p", { class: "head" }, head.filter(Boolean).join(" · ")),
    c.prompt.length ? more(`${counted(c.prompt.length, "new message")} in the prompt`,
      () => c.prompt.map((m) => el("div", {}, el("small", {}, m.role), pre(m.text)))) : null,
    c.error ? el("p", { class: "bad" }, c.error) : null,
    c.reasoning ? more("reasoning", () => pre(c.reasoning)) : null,
    c.text ? el("p", { class: "said" }, c.text) : null, c.commands.map(command));
};

const diff = (patch) => {
  const kind = (line) => /^(diff |index |--- |\+\+\+ |new |deleted |similarity |rename |old mode|GIT )/.test(line) ? "file"
    : line.startsWith("@@") ? "hunk" : line.startsWith("+") ? "add" : line.startsWith("-") ? "del" : null;
  return el("pre", { class: "diff", tabindex: "0" }, patch.replace(/\n$/, "").split("\n").map((line) => el("span", { class: kind(line) }, line || " ")));
};

const tests = (list) => el("div", { class: "scroll" }, el("table", { class: "tests" }, el("tbody", {}, list.map((t) => el("tr", {},
  el("td", {}, el("span", { class: "mark " + (t.ok ? "pass" : "fail") }, t.ok ? "✓" : "✗")),
  el("td", {}, t.id, t.message ? more("message", () => pre(t.message)) : null),
  el("td", {}, String(t.group || "").replaceAll("_", " ")), el("td", {}, t.status),
  el("td", { class: "num" }, t.seconds == null ? "" : Number(t.seconds).toFixed(3) + " s"))))));

const reward = (r) => {
  const { tests: list, log, ...rest } = r.evidence;
  const known = Array.isArray(list), bad = known ? list.filter((t) => !t.ok) : [], good = known ? list.filter((t) => t.ok) : [];
  const other = Object.entries(rest).filter(([, value]) => value != null && !(Array.isArray(value) && !value.length));
  return el("div", {}, el("h3", {}, `Grader ${r.grader}: ${r.score == null ? "missing" : r.score}`),
    r.missing ? el("p", { class: "bad" }, r.missing) : null,
    known ? el("p", {}, `${good.length} of ${list.length} named tests hold.`) : null,
    bad.length ? tests(bad) : null, good.length ? more(`the ${good.length} that hold`, () => tests(good)) : null,
    other.length ? more("evidence", () => pre(JSON.stringify(Object.fromEntries(other), null, 2))) : null,
    log ? more("log", () => pre(log)) : null);
};

const render = (r) => el("div", { class: "body" }, facts(r),
  r.failure ? el("p", { class: "alert" }, el("b", {}, `Not judged: ${r.failure.seam}, ${r.failure.reason}. `), r.failure.text) : null,
  r.instruction ? [el("h3", {}, "Instruction"), el("p", { class: "said" }, r.instruction)] : null,
  el("h3", {}, "Trajectory"), r.calls.map(call), r.commands.length ? [el("p", { class: "head" }, "commands"), r.commands.map(command)] : null,
  el("h3", {}, "Patch"), r.patch ? diff(r.patch) : el("p", { class: "dim" }, "none"),
  r.submission && r.submission.trim() ? [el("h3", {}, "Submission"), pre(r.submission)] : null, r.rewards.map(reward));

const rollouts = [...document.querySelectorAll("details.rollout")];
for (const box of rollouts) box.addEventListener("toggle", async () => {
  if (!box.open || box.children.length > 1) return;
  const body = el("div", { class: "body" }, el("p", { class: "dim" }, "…"));
  box.append(body);
  body.replaceWith(render(await unpack(box.id)));
});

const filter = document.getElementById("filter"), state = document.getElementById("state");
const apply = () => {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const box of rollouts) {
    const fits = (!state.value || box.dataset.state === state.value) && words.every((word) => box.dataset.text.includes(word));
    box.hidden = !fits;
    shown += fits;
  }
  document.getElementById("count").textContent = `${shown} of ${rollouts.length}`;
};
filter.addEventListener("input", apply);
state.addEventListener("change", apply);
apply();
const jump = () => {
  const box = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (box && box.matches("details.rollout")) { box.hidden = false; box.open = true; box.scrollIntoView(); }
};
addEventListener("hashchange", jump);
jump();
