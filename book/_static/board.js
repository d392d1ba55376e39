/* What a scoreboard gains from a script: chips that filter, rows that sort, and an address that keeps both. Without it the table
   is whole, in the order of the papers. Nothing is judged here: every verdict and distance stands in the table. */
document.addEventListener("DOMContentLoaded", () => {
  const table = document.querySelector("table.scoreboard");
  if (!table) return;
  const papers = [...table.querySelectorAll("tbody.paper")];
  const claims = [...table.querySelectorAll("tbody.claim")];
  const order = [...table.tBodies];
  const make = (name, given = {}, ...children) => {
    const { label, ...rest } = given;
    const node = Object.assign(document.createElement(name), rest);
    if (label) node.setAttribute("aria-label", label);
    node.append(...children);
    return node;
  };

  // What can be chosen. A claim counts by its verdict in a run, and once a model is chosen, by that on the model.
  const of = (claim, models) => [...claim.querySelectorAll(models.size ? "td[data-model] > .one" : "td.whole > .one")].map((one) => ({
    paper: claim.dataset.paper,
    model: one.closest("td").dataset.model,
    run: one.dataset.run,
    verdict: one.dataset.verdict,
  }));
  const titles = new Map(claims.map((claim) => [claim.dataset.paper, claim.dataset.title]));
  const models = new Map([...table.tHead.querySelectorAll("th[data-model]")].map((head) => [head.dataset.model, head.textContent]));
  const all = claims.flatMap((claim) => of(claim, new Set()));
  const runs = new Map(all.filter((one) => one.run).map((one) => [one.run, one.run]));
  const named = ["supported", "refuted", "inconclusive", "not applicable", "not run"];
  const verdicts = new Map(named.filter((verdict) => table.querySelector(`.one[data-verdict="${verdict}"]`)).map((one) => [one, one]));
  const groups = { paper: titles, model: models, run: runs, verdict: verdicts };
  const chosen = Object.fromEntries(Object.keys(groups).map((group) => [group, new Set()]));
  let sort = "paper";

  const fits = (one, without) => Object.entries(chosen).every(([group, values]) => group === without || !values.size || values.has(one[group]));
  // How many claims would be shown, were this the only choice in its group.
  const count = (group, value) => {
    const wanted = group === "model" ? new Set([value]) : chosen.model;
    return claims.filter((claim) => of(claim, wanted).some((one) => one[group] === value && fits(one, group))).length;
  };

  const chips = [];
  const panel = make("details", { className: "board-chips" }, make("summary", { textContent: "Choose and sort" }));
  panel.open = location.hash.includes("="); // else the verdicts come first
  for (const [group, values] of Object.entries(groups)) {
    if (values.size < 2) continue;
    const row = make("div", { label: `Choose by ${group}` }, make("span", { className: "kind", textContent: group }));
    row.setAttribute("role", "group");
    for (const [value, text] of values) {
      const number = make("span", { className: "count" });
      const chip = make("button", { type: "button", className: "chip" }, text, " ", number);
      chip.addEventListener("click", () => {
        if (!chosen[group].delete(value)) chosen[group].add(value);
        show();
        keep();
      });
      chips.push({ chip, number, group, value });
      row.append(chip);
    }
    panel.append(row);
  }
  const sorting = make("select", { label: "Sort claims" });
  for (const [value, text] of [["paper", "by paper"], ["distance", "by distance to the margin, nearest first"]]) {
    sorting.append(make("option", { value, textContent: text }));
  }
  sorting.addEventListener("change", () => {
    sort = sorting.value;
    show();
    keep();
  });
  const clear = make("button", { type: "button", className: "chip", textContent: "show all" });
  clear.addEventListener("click", () => {
    for (const values of Object.values(chosen)) values.clear();
    show();
    keep();
  });
  const told = make("span", { className: "told" });
  told.setAttribute("role", "status");
  panel.append(make("div", {}, make("span", { className: "kind", textContent: "order" }), sorting, clear, told));
  table.parentElement.before(panel);

  function show() {
    const columns = chosen.model;
    for (const cell of table.querySelectorAll("th[data-model], td[data-model]")) {
      cell.classList.toggle("off", columns.size > 0 && !columns.has(cell.dataset.model));
    }
    for (const claim of claims) {
      claim.hidden = !of(claim, columns).some((one) => fits(one));
      for (const one of claim.querySelectorAll(".one[data-run], table.bars tr[data-run]")) {
        one.classList.toggle("off", chosen.run.size > 0 && one.dataset.run !== "" && !chosen.run.has(one.dataset.run));
      }
    }
    const distance = (claim) => Number(claim.dataset.distance ?? Infinity);
    const sorted = sort === "paper" ? order : [...papers, ...[...claims].sort((a, b) => distance(a) - distance(b) || 0)];
    table.append(...sorted);
    for (const paper of papers) {
      // A paper's heading goes with the first claim shown below it.
      const own = order.slice(order.indexOf(paper) + 1);
      const end = own.findIndex((body) => body.classList.contains("paper"));
      paper.hidden = sort !== "paper" || own.slice(0, end < 0 ? own.length : end).every((claim) => claim.hidden);
    }
    for (const { chip, number, group, value } of chips) {
      chip.setAttribute("aria-pressed", chosen[group].has(value));
      number.textContent = count(group, value);
    }
    sorting.value = sort;
    clear.hidden = Object.values(chosen).every((values) => !values.size);
    told.textContent = `${claims.filter((claim) => !claim.hidden).length} of ${claims.length} claims`;
  }

  // The state as #verdict=refuted&sort=distance&open=nr1-artifacts; an address without '=' is a place on the page.
  function keep() {
    const state = new URLSearchParams();
    for (const [group, values] of Object.entries(chosen)) for (const value of values) state.append(group, value);
    if (sort !== "paper") state.set("sort", sort);
    for (const claim of claims) if (claim.querySelector(".tests > td > details[open]")) state.append("open", claim.dataset.claim);
    history.replaceState(null, "", `${location.pathname}${location.search}${state.size ? `#${state}` : ""}`);
  }
  function restore() {
    if (location.hash && !location.hash.includes("=")) return;
    const state = new URLSearchParams(location.hash.slice(1));
    for (const [group, values] of Object.entries(groups)) {
      chosen[group] = new Set(state.getAll(group).filter((value) => values.has(value)));
    }
    sort = state.get("sort") === "distance" ? "distance" : "paper";
    for (const claim of claims) {
      const details = claim.querySelector(".tests > td > details");
      if (details) details.open = state.getAll("open").includes(claim.dataset.claim);
    }
    show();
  }
  for (const details of table.querySelectorAll(".tests > td > details")) details.addEventListener("toggle", keep);
  window.addEventListener("hashchange", restore);
  restore();
  show();
});
