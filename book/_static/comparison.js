/* Lets a reader choose which two models are compared. The numbers, and their texts, lie in the page; what is computed here is B - A
   and its interval, as helpers/publish/compare.py computes them, and which settings differ. No verdict is given here. */
document.addEventListener("DOMContentLoaded", () => {
  const frame = document.querySelector("div.comparison");
  if (!frame) return;
  const { sides, shown, claims } = JSON.parse(frame.querySelector("script").textContent);
  const table = frame.querySelector("table");
  const make = (name, given = {}, ...children) => {
    const node = Object.assign(document.createElement(name), given);
    node.append(...children);
    return node;
  };
  const badge = (verdict) => make("span", { className: `verdict ${verdict.replaceAll(" ", "-")}`, textContent: verdict });

  // Three significant digits with a sign; whole numbers above 999 in full, nothing below 1e-9.
  const signed = (x) => {
    if (Math.abs(x) < 1e-9) return "0";
    const rounded = Math.abs(x) >= 1000 ? Math.round(Math.abs(x)) : Number(Math.abs(x).toPrecision(3));
    return (x > 0 ? "+" : "-") + rounded.toLocaleString("en-US", { maximumFractionDigits: 10 });
  };
  // B - A with the interval that two independent ones give (MOVER).
  const difference = ([a, aLow, aHigh], [b, bLow, bHigh], scale, suffix, told) => {
    if (a === null || b === null || !told) return "";
    const middle = b - a;
    let text = signed(scale * middle);
    let star = "";
    if (![aLow, aHigh, bLow, bHigh].includes(null)) {
      const low = middle - Math.hypot(b - bLow, aHigh - a);
      const high = middle + Math.hypot(bHigh - b, a - aLow);
      text += ` [${signed(scale * low)}, ${signed(scale * high)}]`;
      star = low <= 0 && 0 <= high ? "" : " *";
    }
    return text + suffix + star;
  };
  const images = (a, b) => {
    if (a[3] === null || b[3] === null) return "";
    return a[5] === "" || a[5] !== b[5] ? "other" : a[3] === b[3] ? "same" : "partly";
  };

  const body = (claim, first, second) => {
    const [a, b] = [claim.cells[first], claim.cells[second]];
    if (!a || !b) return null;
    const told = a.verdict === b.verdict ? "the same" : make("b", { textContent: "differ" });
    const head = make("th", { scope: "rowgroup", colSpan: 5 }, `${claim.id} `, make("span", { textContent: claim.title }));
    head.append(" A ", badge(a.verdict), " B ", badge(b.verdict), " ", told);
    const rows = [make("tr", {}, head)];
    for (const [name, label, scale, suffix, differs] of claim.names) {
      const [x, y] = [a.values[name], b.values[name]];
      if (!x || !y) continue;
      const quantity = make("td", {}, label, make("small", {}, make("code", { textContent: name })));
      const texts = [x[4], y[4], difference(x, y, scale, suffix, differs), images(x, y)];
      rows.push(make("tr", {}, quantity, ...texts.map((text) => make("td", { textContent: text }))));
    }
    const [before, after] = [claim.settings[sides[first].run], claim.settings[sides[second].run]];
    const changes = [...new Set([...Object.keys(before), ...Object.keys(after)])]
      .map((name) => [name, before[name] ?? "none", after[name] ?? "none"])
      .filter(([, x, y]) => x !== y);
    if (a.weights !== b.weights) {
      const models = [...new Set([sides[first].model, sides[second].model])].join(" and ");
      changes.push([`weights of ${models}`, a.weights, b.weights]);
    }
    if (changes.length) {
      const list = make("ul", {}, ...changes.map(([name, x, y]) => make("li", { textContent: `${name}: ${x} → ${y}` })));
      const more = make("details", {}, make("summary", { textContent: `Settings that differ: ${changes.length}` }), list);
      rows.push(make("tr", {}, make("td", { colSpan: 5 }, more)));
    }
    const part = make("tbody", {}, ...rows);
    part.dataset.claim = claim.id;
    return part;
  };

  const choice = (label, place) => {
    const select = make("select");
    sides.forEach((side, at) => select.append(make("option", { value: at, textContent: `${side.name} (${side.run})`, title: side.model })));
    select.value = place;
    select.addEventListener("change", () => {
      show();
      const [a, b] = selects.map((one) => `${sides[one.value].run}/${sides[one.value].model}`);
      history.replaceState(null, "", `${location.pathname}${location.search}#${new URLSearchParams({ a, b })}`);
    });
    frame.querySelector("p.pair").append(make("label", {}, make("b", { textContent: `${label} ` }), select), " ");
    return select;
  };
  frame.querySelector("p.pair").replaceChildren();
  const selects = [choice("A", shown[0]), choice("B", shown[1])];
  const told = make("span", { className: "told" });
  told.setAttribute("role", "status");
  frame.querySelector("p.pair").append(told);

  const show = () => {
    const parts = claims.map((claim) => body(claim, ...selects.map((select) => select.value))).filter(Boolean);
    while (table.tBodies.length) table.tBodies[0].remove();
    table.append(...parts);
    const moved = parts.filter((part) => part.querySelector("th > b")).length;
    told.textContent = parts.length ? `${moved} of ${parts.length} verdicts differ` : "no claim was judged on both";
  };
  const restore = () => {
    const state = new URLSearchParams(location.hash.slice(1));
    ["a", "b"].forEach((key, at) => {
      const place = sides.findIndex((side) => `${side.run}/${side.model}` === state.get(key));
      if (place >= 0) selects[at].value = place;
    });
    show();
  };
  window.addEventListener("hashchange", restore);
  restore();
});
