/* What a scoreboard gains from a script: its form chooses and sorts, and the address keeps the choice. Without it the table is whole,
   in the order of the papers. Nothing is judged here: every verdict and distance stands in the table. */
document.addEventListener("DOMContentLoaded", () => {
  const table = document.querySelector("table.scoreboard");
  if (!table) return;
  const form = document.querySelector("form.board-choice");
  const order = [...table.tBodies];
  const claims = order.filter((body) => body.classList.contains("claim"));
  const papers = order.filter((body) => body.classList.contains("paper"));
  const heads = [...table.tHead.querySelectorAll("th[data-model]")];
  const distance = (claim) => Number(claim.dataset.distance ?? Infinity);

  const show = () => {
    const chosen = Object.fromEntries([...new FormData(form)].filter(([, value]) => value));
    const other = (node, group) => Boolean(chosen[group] && node.dataset[group] && node.dataset[group] !== chosen[group]);
    const cells = [...table.querySelectorAll("th[data-model], td[data-model]")];
    for (const cell of cells) cell.classList.toggle("off", other(cell, "model"));
    for (const one of table.querySelectorAll(".one")) one.classList.toggle("off", other(one, "run"));
    for (const claim of claims) {
      // A claim counts once, as on every page; once a run or a model is chosen, by what was found there.
      const whole = !chosen.run && !chosen.model;
      const own = [...claim.querySelectorAll(chosen.model ? "td[data-model]:not(.off) > .one" : "td.whole > .one")];
      const fits = own.some((one) => ["run", ...(whole ? [] : ["verdict"])].every((group) => !chosen[group] || one.dataset[group] === chosen[group]));
      claim.hidden = !fits || other(claim, "paper") || other(claim, "status") || (whole && Boolean(chosen.verdict) && claim.dataset.standing !== chosen.verdict);
    }
    // A column needs values in half of the rows that are shown, unless it was chosen or all were. The cards of a phone show every model.
    const shown = claims.filter((claim) => !claim.hidden);
    const few = new Set(heads.map((head) => head.dataset.model).filter((model) => {
      const filled = shown.filter((claim) => claim.querySelector(`td[data-model="${CSS.escape(model)}"] > .one:not(.off)`)).length;
      return chosen.model !== model && (chosen.columns ? !filled : 2 * filled < shown.length);
    }));
    for (const cell of cells) cell.classList.toggle("few", few.has(cell.dataset.model));
    table.append(...(chosen.sort ? [...papers, ...[...claims].sort((a, b) => distance(a) - distance(b) || 0)] : order));
    for (const paper of papers) {
      const own = claims.filter((claim) => claim.dataset.paper === paper.dataset.paper);
      paper.hidden = "sort" in chosen || own.every((claim) => claim.hidden);
    }
    form.querySelector("[role=status]").textContent = `${shown.length} of ${claims.length} claims`;
    return new URLSearchParams(chosen);
  };
  const restore = () => {
    if (location.hash && !location.hash.includes("=")) return; // a place on the page
    const state = new URLSearchParams(location.hash.slice(1));
    for (const select of form.querySelectorAll("select")) select.value = state.get(select.name) ?? "";
    show();
  };
  form.addEventListener("input", () => {
    const state = show();
    history.replaceState(null, "", `${location.pathname}${location.search}${state.size ? `#${state}` : ""}`);
  });
  form.addEventListener("reset", () => setTimeout(() => form.dispatchEvent(new Event("input"))));
  window.addEventListener("hashchange", restore);
  form.hidden = false;
  restore();
  show();
});
