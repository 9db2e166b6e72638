// Curves: a line for each setting, and around it a band of the standard error over its seeds.
{
  const data = JSON.parse(document.getElementById("data").textContent);
  const svg = document.getElementById("chart");
  const [metric, step, at, hint] = ["metric", "step", "at", "hint"].map(
      (id) => document.getElementById(id));
  const logs = {x: document.getElementById("log-x"), y: document.getElementById("log-y")};
  const legend = document.getElementById("legend");
  const HEIGHT = 354, TOP = 26, BOTTOM = 44, RIGHT = 22, CHARACTER = 7;
  const DASHES = ["", "7 3", "2 3", "9 3 2 3"];
  const hidden = new Set();
  let drawn = null;  // the scale, the range and the marker of steps, where anything is shown
  let steps = [];
  let chosen = null;  // a step, that stays where lines come and go; null is the last

  const make = (name, attributes, text = "") => {
    const node = document.createElementNS(svg.namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.textContent = text;
    return node;
  };
  const colour = (setting) => `var(--c${setting % 10})`;
  const look = (setting) => (
    {style: `stroke: ${colour(setting)}`, "stroke-dasharray": DASHES[setting % DASHES.length]});
  const isOn = (button) => button.getAttribute("aria-pressed") === "true";
  const lines = () => data.metrics[metric.value].lines.filter((line) => !hidden.has(line.setting));

  const shapes = (line, x, y, range) => {
    const clamp = (value) => Math.min(Math.max(value, range.y.low), range.y.high);
    const found = [];
    for (const piece of chart.pieces(line, range.x.log, range.y.log)) {
      const points = piece.map((i) => `${x(line.x[i]).toFixed(1)},${y(line.y[i]).toFixed(1)}`);
      if (line.error) {
        const edge = (sign) => piece.map((i) => {
          const value = clamp(line.y[i] + sign * (line.error[i] ?? 0));
          return `${x(line.x[i]).toFixed(1)},${y(value).toFixed(1)}`;
        });
        const band = [...edge(1), ...edge(-1).reverse()].join(" ");
        found.push(make("polygon", {
          class: "band", points: band, style: `fill: ${colour(line.setting)}`}));
      }
      if (points.length === 1) {
        const [cx, cy] = points[0].split(",");
        found.push(make("circle", {cx, cy, r: 3.5, style: `fill: ${colour(line.setting)}`}));
      } else {
        found.push(make("polyline", {
          class: "line", points: points.join(" "), ...look(line.setting)}));
      }
    }
    return found;
  };

  const axes = (x, y, range, size) => {
    const found = [], labels = chart.ticks(range.y, 6);
    for (const tick of labels) {
      found.push(make("line", {
        class: "grid", x1: size.left, x2: size.right, y1: y(tick), y2: y(tick)}));
      found.push(make("text", {x: size.left - 6, y: y(tick) + 4, "text-anchor": "end"},
                      chart.text(tick)));
    }
    for (const tick of chart.ticks(range.x, Math.max(2, (size.right - size.left) / 90))) {
      found.push(make("line", {
        class: "axis", x1: x(tick), x2: x(tick), y1: size.bottom, y2: size.bottom + 5}));
      found.push(make("text", {x: x(tick), y: size.bottom + 19, "text-anchor": "middle"},
                      chart.text(tick)));
    }
    found.push(make("line", {
      class: "axis", x1: size.left, x2: size.right, y1: size.bottom, y2: size.bottom}));
    found.push(make("text", {x: size.left, y: 14}, data.metrics[metric.value].name));
    found.push(make("text", {
      x: (size.left + size.right) / 2, y: HEIGHT - 6, "text-anchor": "middle"}, "step"));
    return found;
  };

  const draw = () => {
    const shown = lines(), name = data.metrics[metric.value].name;
    const width = Math.max(svg.parentElement.clientWidth, 200);
    svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    svg.setAttribute("height", HEIGHT);
    svg.setAttribute("aria-label", `${name} over steps, ${shown.length} of `
        + `${data.settings.length} lines shown; the values at a step are in the legend`);
    const band = (line) => line.y.flatMap((y, i) => y === null ? [] : [
      y, y - (line.error?.[i] ?? 0), y + (line.error?.[i] ?? 0)]);
    const range = {x: chart.range(shown.flatMap((line) => line.x), isOn(logs.x), 0),
                   y: chart.range(shown.flatMap(band), isOn(logs.y))};
    steps = [...new Set(shown.flatMap((line) => line.x))].sort((a, b) => a - b);
    if (!range.x || !range.y) {
      drawn = null;
      const told = shown.length ? "no value that this axis can show" : "no line chosen";
      svg.replaceChildren(
          make("text", {x: width / 2, y: HEIGHT / 2, "text-anchor": "middle"}, told));
    } else {
      const longest = Math.max(...chart.ticks(range.y, 6).map((tick) => chart.text(tick).length));
      const size = {left: 12 + CHARACTER * longest, right: width - RIGHT, bottom: HEIGHT - BOTTOM};
      const x = chart.scale(range.x, size.left, size.right);
      const y = chart.scale(range.y, size.bottom, TOP);
      const place = make("line", {class: "place", y1: TOP, y2: size.bottom});
      svg.replaceChildren(...axes(x, y, range, size), place,
                          ...shown.flatMap((line) => shapes(line, x, y, range)));
      drawn = {x, place, low: range.x.low};
    }
    step.max = Math.max(steps.length - 1, 0);
    step.value = steps.includes(chosen) ? steps.indexOf(chosen) : step.max;
    step.disabled = !steps.length;
    tell();
  };

  const value = (line, where) => {
    const i = line.x.indexOf(where);
    if (i < 0) return "–";
    if (line.y[i] === null) return "not finite";
    const error = line.error?.[i];
    return chart.text(line.y[i]) + (error == null ? "" : ` ± ${chart.text(error, 2)}`);
  };

  // Shows the values at the step of the slider, beside the names of the lines.
  const tell = () => {
    const where = steps[Number(step.value)] ?? null;
    at.textContent = where === null ? "" : String(where);
    step.setAttribute("aria-valuetext", where === null ? "none" : `step ${where}`);
    const byStep = new Map(lines().map((line) => [line.setting, line]));
    [...legend.children].forEach((item, setting) => {
      const line = byStep.get(setting);
      item.querySelector(".value").textContent = line && where !== null ? value(line, where) : "";
    });
    if (!drawn) return;
    const seen = where !== null && where >= drawn.low;
    drawn.place.setAttribute("visibility", seen ? "visible" : "hidden");
    if (seen) for (const end of ["x1", "x2"]) drawn.place.setAttribute(end, drawn.x(where));
  };

  const choose = () => {
    chosen = steps[Number(step.value)];
    tell();
  };

  const follow = (event) => {
    if (!drawn) return;
    const mouse = event.clientX - svg.getBoundingClientRect().left;
    const distance = (x) => Math.abs(drawn.x(x) - mouse);
    let best = 0;
    steps.forEach((x, i) => { if (distance(x) < distance(steps[best])) best = i; });
    step.value = best;
    choose();
  };

  const press = (button, on) => button.setAttribute("aria-pressed", String(on));
  const toggle = (setting, on) => {
    hidden[on ? "delete" : "add"](setting);
    press(legend.children[setting].querySelector("button"), on);
  };

  data.settings.forEach((label, setting) => {
    const item = document.createElement("li"), button = document.createElement("button");
    const swatch = make("svg", {width: 28, height: 12, "aria-hidden": "true"});
    const name = document.createElement("span"), number = document.createElement("span");
    swatch.append(make("line", {x1: 0, x2: 28, y1: 6, y2: 6, "stroke-width": 3, ...look(setting)}));
    button.type = "button";
    button.className = "plain";
    press(button, true);
    name.textContent = label;
    number.className = "value n";
    button.append(swatch, name, number);
    button.addEventListener("click", () => { toggle(setting, hidden.has(setting)); draw(); });
    item.append(button);
    legend.append(item);
  });
  for (const [id, on] of [["all", true], ["none", false]]) {
    document.getElementById(id).addEventListener("click", () => {
      data.settings.forEach((_, setting) => toggle(setting, on));
      draw();
    });
  }
  for (const button of Object.values(logs)) {
    button.addEventListener("click", () => { press(button, !isOn(button)); draw(); });
  }
  metric.addEventListener("change", draw);
  step.addEventListener("input", choose);
  svg.addEventListener("pointermove", follow);
  svg.addEventListener("pointerdown", follow);
  hint.hidden = true;
  for (const node of document.querySelectorAll("#curves .controls, #curves .legend, #chart")) {
    node.removeAttribute("hidden");
  }
  new ResizeObserver(draw).observe(svg.parentElement);
  draw();
}
