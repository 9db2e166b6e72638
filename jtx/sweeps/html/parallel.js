// Parallel coordinates of a search: an axis for each parameter, a line for each run.
{
  const data = JSON.parse(document.getElementById("search-data").textContent);
  const svg = document.getElementById("parallel");
  const slider = document.getElementById("trial"), told = document.getElementById("trial-told");
  const others = document.getElementById("unfinished");
  const HEIGHT = 300, TOP = 34, BOTTOM = 12, SIDE = 60;
  let shown = [], places = [];  // the runs that are drawn, the best first, and their points

  const make = (name, attributes, text = "") => {
    const node = document.createElementNS(svg.namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.textContent = text;
    return node;
  };

  // Axes with their values: the parameters', and the objective's, whose best end is above.
  const results = data.trials.map((trial) => trial.result);
  const axes = [
    ...data.axes.map((axis, i) => (
      {...axis, of: (trial) => trial.values[i], values: data.trials.map((t) => t.values[i])})),
    {name: data.metric, log: false, labels: [], of: (trial) => trial.result, values: results,
     down: data.lower},
  ];
  for (const axis of axes) {
    axis.range = axis.labels.length ? {low: -0.5, high: axis.labels.length - 0.5, log: false} :
        chart.range(axis.values, axis.log) ?? {low: 0, high: 1, log: false};
    const [from, to] = axis.down ? [TOP, HEIGHT - BOTTOM] : [HEIGHT - BOTTOM, TOP];
    axis.y = chart.scale(axis.range, from, to);
    axis.shows = (value) => axis.labels.length ? axis.labels[value] : chart.text(value);
  }

  const pointsOf = (trial, x) => axes.flatMap((axis, i) => {
    const value = axis.of(trial);
    return value === null ? [] : [[x(i), axis.y(value)]];
  });

  const line = (trial, points, rank, chosen) => make("polyline", {
    class: chosen ? "line chosen" : trial.result === null ? "line without" : "line",
    points: points.map((point) => point.map((z) => z.toFixed(1)).join(",")).join(" "),
    style: chosen || trial.result === null ? "" :
        `stroke-opacity: ${(0.9 - 0.7 * rank / shown.length).toFixed(2)}`,
  });

  const frame = (x) => axes.flatMap((axis, i) => {
    const last = i === axes.length - 1;
    const ticks = axis.labels.length ? axis.labels.keys() : chart.ticks(axis.range, 5);
    return [
      make("line", {class: "axis", x1: x(i), x2: x(i), y1: TOP, y2: HEIGHT - BOTTOM}),
      make("text", {x: x(i), y: 14, "text-anchor": last ? "end" : i ? "middle" : "start"},
           axis.name),
      ...[...ticks].map((tick) => make("text", {
        class: "tick", x: x(i) + (last ? 6 : -6), y: axis.y(tick) + 4,
        "text-anchor": last ? "start" : "end"}, axis.shows(tick))),
    ];
  });

  const draw = () => {
    const width = Math.max(svg.parentElement.clientWidth, 60 + 110 * axes.length);
    svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    svg.setAttribute("height", HEIGHT);
    const x = chart.scale({low: 0, high: axes.length - 1, log: false}, SIDE, width - SIDE);
    const all = others.getAttribute("aria-pressed") === "true";
    shown = data.trials.filter((trial) => all || trial.result !== null);
    places = shown.map((trial) => pointsOf(trial, x));
    slider.max = Math.max(shown.length - 1, 0);
    slider.disabled = !shown.length;
    const chosen = Number(slider.value);
    // The best are drawn last, above the others, and the chosen one above all.
    const lines = shown.map((trial, i) => line(trial, places[i], i, false)).reverse();
    svg.replaceChildren(...lines);
    if (shown.length) svg.append(line(shown[chosen], places[chosen], chosen, true));
    svg.append(...frame(x));
    tell(shown[chosen], chosen);
  };

  const tell = (trial, number) => {
    const text = !trial ? "no run has a result yet" : [
      `${number + 1} of ${shown.length}`, trial.name,
      trial.result === null ? trial.state : `${data.metric} ${chart.text(trial.result)}`,
    ].join(", ");
    told.textContent = text;
    slider.setAttribute("aria-valuetext", text);
    svg.setAttribute("aria-label",
                     `Parallel coordinates of ${shown.length} runs; chosen is ${text}`);
  };

  // Chooses the run whose point on the nearest axis is nearest.
  const follow = (event) => {
    if (!shown.length) return;
    const box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
    const at = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
    let best = 0, least = Infinity;
    places.forEach((points, i) => points.forEach(([px, py]) => {
      const distance = 4 * Math.abs(px - at[0]) + Math.abs(py - at[1]);
      if (distance < least) [best, least] = [i, distance];
    }));
    slider.value = best;
    draw();
  };

  others.addEventListener("click", () => {
    const on = others.getAttribute("aria-pressed") === "true";
    others.setAttribute("aria-pressed", String(!on));
    slider.value = 0;
    draw();
  });
  slider.addEventListener("input", draw);
  svg.addEventListener("pointerdown", follow);
  document.getElementById("search-hint").hidden = true;
  for (const node of document.querySelectorAll("#search .controls, #parallel, #trial-told")) {
    node.removeAttribute("hidden");
  }
  new ResizeObserver(draw).observe(svg.parentElement);
  draw();
}
