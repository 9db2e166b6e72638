"use strict";
// A form of the fields of each kind, and its answer; all texts are set as texts, never as HTML.

const model = JSON.parse(document.getElementById("model").textContent);
const main = document.getElementById("main");
const LABELS = {
  texts: "a text a line", words: "words with spaces between them", image: "an image's file",
  messages: "what you say", seed: "a whole number",
};

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

function say(text) { document.getElementById("said").textContent = text; }

// ---------------------------------------------------------------- the form

const kinds = model.kinds.filter(kind => kind.path !== "/attention");
const attention = model.kinds.find(kind => kind.path === "/attention");
const out = make("section", {id: "answer", "aria-label": "Answer"});
const about = make("p", {class: "note"});
const boxes = make("div");
const run = make("button", {type: "submit"}, "Run");
const look = make("button", {type: "button", class: "plain", onclick: showAttention},
                  "Show attention");
const stop = make("button", {type: "button", class: "plain", hidden: true,
                             onclick: () => abort.abort()}, "Stop");
const chosen = make("select", {id: "kind", onchange: fill},
                    ...kinds.map((kind, i) => make("option", {value: i}, kind.path)));
let abort = new AbortController(), running = false;

function kindNow() { return kinds[chosen.value || 0]; }

function fill() {
  const kind = kindNow();
  about.textContent = kind.does;
  boxes.replaceChildren();
  const names = Object.keys(kind.fields).filter(
    name => !(name === "messages" && kind.one_of.includes("prompt")));
  for (const name of names) {
    const field = kind.fields[name], id = `field-${name}`;
    const needed = field.required || kind.one_of.includes(name);
    const hint = [LABELS[field.kind], needed ? null : "optional"].filter(Boolean).join(", ");
    const box = field.kind === "image"
      ? make("input", {id, type: "file", accept: "image/*", required: needed})
      : field.kind === "seed"
        ? make("input", {id, type: "number", min: 0, step: 1})
        : make("textarea", {id, rows: name === "context" || field.kind === "texts" ? 5 : 3,
                            required: needed, onkeydown: submitByKeys});
    boxes.append(make("label", {for: id}, name,
                      ...(hint ? [make("span", {class: "hint"}, ` (${hint})`)] : [])), box);
  }
  look.hidden = !attention || !kind.fields.text;
  out.replaceChildren();
}

function submitByKeys(event) {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
}

async function given(fields) {
  const found = {};
  for (const [name, field] of Object.entries(fields)) {
    const box = document.getElementById(`field-${name}`);
    if (!box || !box.value.trim()) continue;
    if (field.kind === "image") found[name] = await base64(box.files[0]);
    else if (field.kind === "words") found[name] = box.value.trim().split(/\s+/);
    else if (field.kind === "texts") found[name] = box.value.split("\n").filter(x => x.trim());
    else if (field.kind === "seed") found[name] = Number(box.value);
    else found[name] = box.value;
  }
  return found;
}

function base64(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => reject(new Error("the file can't be read"));
    reader.readAsDataURL(file);
  });
}

// Runs one request at a time. Buttons are not disabled, since they would lose the focus.
async function busy(work) {
  if (running) return;
  running = true;
  abort = new AbortController();
  out.replaceChildren();
  for (const button of [run, look]) button.setAttribute("aria-disabled", "true");
  stop.hidden = false;
  out.setAttribute("aria-busy", "true");
  say("Running");
  try {
    await work();
    say("The answer is there");
  } catch (error) {
    const text = error.name === "AbortError" ? "Stopped."
      : error instanceof TypeError ? "The server can't be reached." : `${error.message}.`;
    out.append(make("p", {class: "failed"}, text));
    say(text);
  } finally {
    running = false;
    for (const button of [run, look]) button.removeAttribute("aria-disabled");
    if (document.activeElement === stop) run.focus();
    stop.hidden = true;
    out.removeAttribute("aria-busy");
  }
}

async function post(path, value) {
  const answer = await fetch(path, {
    method: "POST", body: JSON.stringify(value), signal: abort.signal,
    headers: {"Content-Type": "application/json"}});
  if (!answer.ok) throw new Error((await answer.json()).error);
  return answer;
}

async function answer(event) {
  event.preventDefault();
  const kind = kindNow();
  await busy(async () => {
    const value = await given(kind.fields);
    const found = kind.stream ? await streamed(kind.stream, value)
      : await (await post(kind.path, value)).json();
    if (!kind.stream) out.append(...shown(found, value));
    out.append(make("details", {}, make("summary", {}, "As JSON"), make("pre", {tabindex: 0},
      `POST ${kind.path}\n${cut(JSON.stringify(value, null, 2))}\n\n` +
      cut(JSON.stringify(found, null, 2)))));
  });
}

function cut(text) { return text.length > 5000 ? `${text.slice(0, 5000)}\n...` : text; }

async function streamed(path, value) {
  const text = make("p", {class: "text"});
  out.append(make("h2", {}, "Text"), text);
  const reader = (await post(path, value)).body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", whole = null;
  for (;;) {
    const {done, value: part} = await reader.read();
    if (done) break;
    const events = (rest + part).split("\n\n");
    rest = events.pop();
    for (const one of events) {
      const data = JSON.parse(one.slice(one.indexOf("data: ") + 6));
      if (one.startsWith("event: error")) throw new Error(data.error);
      if (one.startsWith("event: done")) whole = data;
      else text.append(data.text);
    }
  }
  return whole;
}

// ---------------------------------------------------------------- answers, by what they have

function shown(found, value) {
  const parts = [];
  if ("label" in found) parts.push(make("h2", {}, found.label));
  if ("labels" in found) parts.push(make("h2", {}, found.labels.join(", ") || "No label"));
  if ("scores" in found) parts.push(bars(Array.isArray(found.scores)
    ? value.choices.map((choice, i) => [choice, found.scores[i]]) : Object.entries(found.scores)));
  for (const name of ["value", "in_order"]) {
    if (name in found) parts.push(make("h2", {}, `${name}: ${round(found[name])}`));
  }
  (found.masks || []).forEach((mask, i) => parts.push(
    make("h2", {}, `Mask ${i + 1}`), bars(Object.entries(mask))));
  if ("tags" in found) parts.push(tokens(found.words, found.tags));
  if ("replaced" in found) parts.push(tokens(found.tokens, found.replaced.map(round)));
  if ("answer" in found) parts.push(...answered(found, value.context));
  if ("text" in found) parts.push(found.text ? make("p", {class: "text"}, found.text)
    : make("p", {class: "note"}, "An empty text."));
  if ("embedding" in found) parts.push(make("h2", {}, `${found.embedding.length} numbers`),
    make("p", {class: "text"}, found.embedding.slice(0, 8).map(round).join(", ") + ", ..."));
  return parts;
}

function round(x) { return typeof x === "number" ? String(Number(x.toPrecision(4))) : String(x); }

function bars(entries) {
  const body = make("tbody");
  for (const [name, p] of entries.sort((a, b) => b[1] - a[1]).slice(0, 50)) {
    const bar = make("span", {class: "bar"});
    bar.style.width = `${Math.max(0, Math.min(1, p)) * 100}%`;
    body.append(make("tr", {}, make("th", {scope: "row"}, name),
      make("td", {class: "number"}, p.toFixed(3)), make("td", {class: "track"}, bar)));
  }
  return make("table", {}, make("caption", {class: "spoken"}, "Probabilities"), body);
}

function tokens(words, labels) {
  return make("ul", {class: "tokens"}, ...words.map((word, i) => make("li", {}, word,
    make("span", {class: "tag"}, labels[i] === null ? "–" : String(labels[i])))));
}

function answered(found, context) {
  const best = found.n_best[0], chars = Array.from(context);
  const parts = [make("h2", {}, found.answer || "No answer")];
  if (best && found.answer) {
    parts.push(make("p", {class: "text"}, chars.slice(0, best.start).join(""),
      make("mark", {}, chars.slice(best.start, best.end).join("")),
      chars.slice(best.end).join("")));
  }
  return parts;
}

// ---------------------------------------------------------------- attention

async function showAttention() {
  if (!form.reportValidity()) return;
  await busy(async () => {
    const found = await (await post("/attention", await given(attention.fields))).json();
    out.append(...weights(found));
  });
}

function weights(found) {
  const last = found.layers.length;
  const layer = make("select", {id: "layer", onchange: draw}, ...found.layers.map(
    (_, i) => make("option", {value: i, selected: i === last - 1}, String(i + 1))));
  const query = make("select", {id: "query", onchange: draw}, ...found.queries.map(
    (token, i) => make("option", {value: i}, `${i + 1}: ${token}`)));
  const keys = make("ul", {class: "tokens"});

  function draw() {
    const row = found.layers[layer.value][query.value], most = Math.max(...row, 1e-9);
    keys.replaceChildren(...found.keys.map((token, i) => {
      const node = make("li", {}, token, make("span", {class: "tag"}, row[i].toFixed(2)));
      node.style.setProperty("--weight", `${Math.round(100 * row[i] / most)}%`);
      return node;
    }));
  }

  draw();
  return [make("h2", {}, "Attention"),
    make("p", {class: "note"}, "The mean over a layer's heads: from one token to all others."),
    make("div", {class: "controls"}, make("label", {for: "layer"}, "Layer"), layer,
      make("label", {for: "query"}, "From"), query), keys];
}

const form = make("form", {onsubmit: answer},
  ...(kinds.length > 1 ? [make("label", {for: "kind"}, "Path"), chosen] : []), about, boxes,
  make("div", {class: "controls"}, run, look, stop));
main.replaceChildren(form, out);
fill();
