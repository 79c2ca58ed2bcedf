"use strict";
(() => {
  const find = (id) => document.getElementById(id);
  for (const tool of document.querySelectorAll(".tools, .script, #theme")) tool.hidden = false;

  // ---- light and dark
  const theme = find("theme");
  const isDark = () => {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  const nameTheme = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    nameTheme();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", nameTheme);
  nameTheme();

  // ---- columns by name
  const columnFilter = find("column-filter");
  if (columnFilter) {
    const cards = [...document.querySelectorAll("#columns > article")];
    columnFilter.addEventListener("input", () => {
      const wanted = columnFilter.value.trim().toLowerCase();
      for (const card of cards) card.hidden = !card.dataset.name.toLowerCase().includes(wanted);
      const shown = cards.filter((card) => !card.hidden).length;
      find("column-count").textContent = wanted ? `${shown.toLocaleString("en")} of ${cards.length.toLocaleString("en")}` : "";
    });
  }

  // ---- the strangest rows: sort and filter
  const table = find("rows");
  if (table) {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const texts = rows.map((row) => row.textContent.toLowerCase());
    const inputs = { text: find("row-filter"), column: find("row-column"), flagged: find("row-flagged") };
    const filter = () => {
      const wanted = inputs.text.value.trim().toLowerCase();
      const column = inputs.column.value;
      rows.forEach((row, place) => {
        const fits = texts[place].includes(wanted)
          && (!column || row.dataset.columns.split(" ").includes(column))
          && (!inputs.flagged.checked || "flagged" in row.dataset);
        row.hidden = !fits;
      });
      const shown = rows.filter((row) => !row.hidden).length;
      find("row-count").textContent = `${shown.toLocaleString("en")} of ${rows.length.toLocaleString("en")} rows`;
    };
    for (const input of Object.values(inputs)) input.addEventListener("input", filter);
    filter();

    const compare = new Intl.Collator("en", { numeric: true }).compare;
    for (const heading of table.querySelectorAll("th[data-sort]")) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => {
        const key = heading.dataset.sort;
        const first = key === "score" || key === "share" ? "descending" : "ascending";
        const second = first === "ascending" ? "descending" : "ascending";
        const order = heading.getAttribute("aria-sort") === first ? second : first;
        for (const other of table.querySelectorAll("th[aria-sort]")) other.removeAttribute("aria-sort");
        heading.setAttribute("aria-sort", order);
        const sign = order === "ascending" ? 1 : -1;
        const value = (row) => row.dataset[key];
        const by = key === "name" ? (a, b) => compare(value(a), value(b)) : (a, b) => value(a) - value(b);
        body.append(...[...rows].sort((a, b) => sign * by(a, b)));
      });
    }
  }

  // ---- the map
  const holder = find("map-data");
  if (!holder) return;
  const data = JSON.parse(holder.textContent);
  const svg = find("points");
  const ring = find("ring");
  const tip = find("tip");
  const frame = find("map-frame");
  const colour = find("colour");
  const legend = find("legend");
  const points = [...svg.querySelectorAll("circle:not(#ring)")];
  const x = points.map((point) => Number(point.getAttribute("cx")));
  const y = points.map((point) => Number(point.getAttribute("cy")));
  const LEVELS = 7;
  const strangeness = points.map((point) => point.getAttribute("class"));
  const strangenessLegend = [...legend.childNodes];
  const told = (value) => (Math.abs(value) >= 1e15 ? value.toExponential(5) : String(value));

  const cell = (column, place) => {
    if (column.values) return column.values[place] === null ? "(missing)" : told(column.values[place]);
    return column.codes[place] < 0 ? "(missing)" : column.words[column.codes[place]];
  };

  const entry = (name, text) => {
    const line = document.createElement("span");
    const key = document.createElement("i");
    key.className = `key dot ${name}`;
    const label = document.createElement("bdi");
    label.textContent = text.length > 40 ? `${text.slice(0, 39)}…` : text;
    line.append(key, label);
    return line;
  };

  // Groups of about as many rows each, equal values together.
  const byOrder = (values, word) => {
    const present = values.filter((value) => value !== null).sort((a, b) => a - b);
    const firstPlace = new Map();
    present.forEach((value, place) => { if (!firstPlace.has(value)) firstPlace.set(value, place); });
    const distinct = [...firstPlace.keys()];
    const few = distinct.length <= LEVELS;
    const rank = new Map(distinct.map((value, place) => [value, place]));
    const level = (value) => (few
      ? Math.round(rank.get(value) * (LEVELS - 1) / Math.max(1, distinct.length - 1))
      : Math.floor(LEVELS * firstPlace.get(value) / present.length));
    const ends = new Map();
    for (const value of distinct) {
      const group = ends.get(level(value));
      if (group) group[1] = value; else ends.set(level(value), [value, value]);
    }
    const entries = [...ends].map(([group, [low, high]]) =>
      entry(`l${group}`, low === high ? word(low) : `${word(low)} to ${word(high)}`));
    return [values.map((value) => (value === null ? "na" : `l${level(value)}`)), entries];
  };

  const byKind = (codes, words) => {
    const count = new Map();
    for (const code of codes) if (code >= 0) count.set(code, (count.get(code) || 0) + 1);
    const most = [...count.keys()].sort((a, b) => count.get(b) - count.get(a) || a - b);
    const named = most.slice(0, most.length === LEVELS ? LEVELS : LEVELS - 1 + (most.length < LEVELS ? 1 : 0));
    const place = new Map(named.map((code, number) => [code, number]));
    const entries = named.map((code, number) => entry(`k${number}`, words(code)));
    if (most.length > named.length) entries.push(entry("kx", `${(most.length - named.length).toLocaleString("en")} others`));
    return [codes.map((code) => (code < 0 ? "na" : place.has(code) ? `k${place.get(code)}` : "kx")), entries];
  };

  const paint = () => {
    const chosen = colour.value;
    if (chosen === "p") {
      points.forEach((point, place) => point.setAttribute("class", strangeness[place]));
      legend.replaceChildren(...strangenessLegend);
      return;
    }
    let classes;
    let entries;
    if (chosen === "cluster") {
      [classes, entries] = byKind(data.cluster, (code) => `cluster ${code}`);
    } else {
      const column = data.columns[Number(chosen)];
      const values = column.values || column.codes.map((code) => (code < 0 ? null : code));
      const word = (value) => (column.values ? told(value) : column.words[value]);
      [classes, entries] = column.ordered ? byOrder(values, word) : byKind(column.codes, (code) => column.words[code]);
    }
    if (classes.includes("na")) entries.push(entry("na", "(missing)"));
    points.forEach((point, place) => point.setAttribute("class", classes[place]));
    legend.replaceChildren(...entries);
  };
  colour.addEventListener("input", paint);

  let current = -1;
  const line = (name, value) => {
    const row = document.createElement("div");
    for (const text of [name, value]) {
      const part = document.createElement("span");
      const isolated = document.createElement("bdi");
      isolated.textContent = text.length > 60 ? `${text.slice(0, 59)}…` : text;
      part.append(isolated);
      row.append(part);
    }
    return row;
  };
  const show = (place) => {
    current = place;
    ring.setAttribute("cx", x[place]);
    ring.setAttribute("cy", y[place]);
    const title = document.createElement("b");
    title.textContent = `Row ${data.rows[place]}`;
    const lines = [line("p-value", String(data.p[place])), line("anomaly score", String(data.score[place]))];
    if (data.cluster) lines.push(line("cluster", data.cluster[place] < 0 ? "none" : String(data.cluster[place])));
    const chosen = /^\d+$/.test(colour.value) ? Number(colour.value) : -1;
    const shown = [chosen, ...data.columns.keys()].filter((n, at, all) => n >= 0 && all.indexOf(n) === at).slice(0, 8);
    for (const number of shown) lines.push(line(data.columns[number].name, cell(data.columns[number], place)));
    tip.replaceChildren(title, ...lines);
    tip.hidden = false;
    const scale = svg.clientWidth / svg.viewBox.baseVal.width;
    const [left, top] = [x[place] * scale, y[place] * scale];
    const [width, height] = [tip.offsetWidth, tip.offsetHeight];
    tip.style.left = `${Math.max(4, left + width + 20 < frame.clientWidth ? left + 14 : left - width - 14)}px`;
    tip.style.top = `${Math.max(4, Math.min(top - height / 2, frame.clientHeight - height - 4))}px`;
  };
  const hide = () => {
    tip.hidden = true;
    ring.setAttribute("cx", -99);
    current = -1;
  };
  const nearest = (px, py, reach, ahead = () => true) => {
    let best = -1;
    let least = reach * reach;
    for (let place = points.length - 1; place >= 0; place -= 1) {
      const [dx, dy] = [x[place] - px, y[place] - py];
      const far = dx * dx + dy * dy;
      if (far < least && ahead(dx, dy)) [best, least] = [place, far];
    }
    return best;
  };
  const point = (event) => {
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / box.width;
    const place = nearest((event.clientX - box.left) * scale, (event.clientY - box.top) * scale, 14 * scale);
    if (place >= 0) show(place); else hide();
  };
  svg.addEventListener("pointermove", point);
  svg.addEventListener("click", point);
  svg.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hide(); });
  svg.setAttribute("tabindex", "0");
  tip.setAttribute("role", "status");
  const AHEAD = {
    ArrowRight: (dx, dy) => dx > 0 && dx >= Math.abs(dy),
    ArrowLeft: (dx, dy) => dx < 0 && -dx >= Math.abs(dy),
    ArrowDown: (dx, dy) => dy > 0 && dy >= Math.abs(dx),
    ArrowUp: (dx, dy) => dy < 0 && -dy >= Math.abs(dx),
  };
  const strangest = points.length - 1;
  svg.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { hide(); return; }
    if (event.key === "Home") { event.preventDefault(); show(strangest); return; }
    const ahead = AHEAD[event.key];
    if (!ahead) return;
    event.preventDefault();
    const place = current < 0 ? strangest : nearest(x[current], y[current], Infinity, ahead);
    if (place >= 0) show(place);
  });
  for (const button of document.querySelectorAll(".locate")) {
    button.addEventListener("click", () => {
      find("map").scrollIntoView({ block: "start" });
      svg.focus({ preventScroll: true });
      show(data.strangest[Number(button.dataset.row)]);
    });
  }
})();
