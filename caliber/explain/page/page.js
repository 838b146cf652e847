"use strict";
(() => {
  const began = performance.now();
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("candidates").textContent);
  const PAGE = 50;
  const fields = ["rank", "kind", "label", "section", "rule", "reason", "relevance", "tokens", "id", "parts", "by"];
  const rows = data.rows.map((row) => Object.fromEntries(fields.map((name, at) => [name, row[at]])));
  for (const row of rows) {
    row.text = [row.kind, row.label, row.section, row.rule, row.reason, row.id, row.by].join("\n").toLowerCase();
  }
  const number = new Intl.NumberFormat("en");
  const state = { words: [], section: "", rule: "", by: "rank", down: false, page: 0 };
  let chosen = rows;

  const make = (tag, properties = {}, ...inside) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (name === "class") node.className = value;
      else node.setAttribute(name, value);
    }
    node.append(...inside);
    return node;
  };
  const svg = (tag, properties) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(properties)) node.setAttribute(name, value);
    return node;
  };
  const score = (value) => {
    const bar = svg("svg", { "aria-hidden": "true" });
    bar.append(svg("rect", { width: `${100 * Math.min(1, Math.max(0, value))}%`, height: "100%" }));
    return make("span", { class: "score" }, bar, value.toFixed(3));
  };

  const details = (row) => {
    const list = make("dl");
    const add = (name, value) => list.append(make("dt", {}, name), make("dd", {}, value));
    add("id", make("code", {}, row.id || "not visible, or text of the configuration"));
    add("decision", row.rule);
    if (row.by) add("rule of injection", row.by);
    for (const [name, value] of Object.entries(row.parts)) add(`relevance by ${name}`, value.toFixed(4));
    return make("tr", { class: "more" }, make("td", { colspan: "6" }, list));
  };
  const line = (row) => {
    const open = make("button", { type: "button", "aria-expanded": "false", dir: "auto" }, row.label || row.kind);
    const out = make("tr", {},
      make("td", { class: "number rank" }, number.format(row.rank)),
      make("td", { class: "record" }, open, make("span", { class: "kind" }, row.kind)),
      make("td", {}, row.section),
      make("td", {}, score(row.relevance)),
      make("td", { class: "number tokens" }, number.format(row.tokens)),
      make("td", { class: "why" }, row.reason));
    open.addEventListener("click", () => {
      const opened = open.getAttribute("aria-expanded") === "true";
      open.setAttribute("aria-expanded", String(!opened));
      if (opened) out.nextSibling.remove();
      else out.after(details(row));
    });
    return out;
  };

  const draw = () => {
    const pages = Math.max(1, Math.ceil(chosen.length / PAGE));
    state.page = Math.min(state.page, pages - 1);
    const first = state.page * PAGE;
    const shown = chosen.slice(first, first + PAGE);
    byId("rows").replaceChildren(...shown.map(line));
    byId("nothing").hidden = chosen.length > 0;
    byId("range").textContent = chosen.length
      ? `${number.format(first + 1)}–${number.format(first + shown.length)} of ${number.format(chosen.length)}` : "none";
    byId("previous").disabled = state.page === 0;
    byId("next").disabled = state.page >= pages - 1;
    for (const head of document.querySelectorAll("th[data-by]")) {
      if (head.dataset.by === state.by) head.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
  };
  const matches = (text) => state.words.every((word) => text.includes(word));
  const sources = [...document.querySelectorAll(".source")].map((node) => ({ node, text: node.textContent.toLowerCase() }));
  const select = () => {
    const found = rows.filter((row) => matches(row.text));
    chosen = found.filter((row) => (!state.section || row.section === state.section) && (!state.rule || row.rule === state.rule));
    const { by, down } = state;
    chosen.sort((a, b) => {
      const order = typeof a[by] === "number" ? a[by] - b[by] : String(a[by]).localeCompare(String(b[by]));
      return (down ? -order : order) || a.rank - b.rank;
    });
    let inside = 0;
    for (const { node, text } of sources) {
      node.hidden = !matches(text);
      inside += node.hidden ? 0 : 1;
    }
    for (const day of document.querySelectorAll(".day")) {
      let next = day.nextElementSibling;
      while (next && next.hidden && !next.classList.contains("day")) next = next.nextElementSibling;
      day.hidden = !next || next.classList.contains("day");
    }
    for (const button of document.querySelectorAll("#reasons button")) {
      button.setAttribute("aria-pressed", String(button.dataset.rule === state.rule));
    }
    byId("found").textContent = state.words.length || state.section || state.rule
      ? `${number.format(inside)} included and ${number.format(chosen.length)} left out match` : "";
    state.page = 0;
    draw();
  };

  const filter = byId("filter");
  const setWords = () => {
    state.words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (state.words.length) for (const section of document.querySelectorAll(".section > details")) section.open = true;
    select();
  };
  filter.addEventListener("input", setWords);
  byId("of-section").addEventListener("change", (event) => { state.section = event.target.value; select(); });
  byId("previous").addEventListener("click", () => { state.page -= 1; draw(); });
  byId("next").addEventListener("click", () => { state.page += 1; draw(); });
  for (const head of document.querySelectorAll("th[data-by]")) {
    head.firstElementChild.addEventListener("click", () => {
      const by = head.dataset.by;
      state.down = state.by === by ? !state.down : by === "relevance" || by === "tokens";
      state.by = by;
      select();
    });
  }
  const counts = new Map();
  for (const row of rows) counts.set(row.rule, (counts.get(row.rule) || 0) + 1);
  for (const [rule, count] of [...counts].sort((a, b) => b[1] - a[1])) {
    const button = make("button", { type: "button", "aria-pressed": "false", "data-rule": rule, title: data.meanings[rule] || "" },
      rule.replaceAll("_", " "), make("b", {}, number.format(count)));
    button.addEventListener("click", () => { state.rule = state.rule === rule ? "" : rule; select(); });
    byId("reasons").append(make("li", {}, button));
  }
  for (const section of [...new Set(rows.map((row) => row.section))]) {
    byId("of-section").append(make("option", { value: section }, section));
  }
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      filter.focus();
    } else if (event.key === "Escape" && event.target === filter) {
      filter.value = "";
      setWords();
    }
  });
  select();
  document.documentElement.dataset.ready = (performance.now() - began).toFixed(1);
})();
