/* The figures of class "explore" answer to a pointer, a tap and the keyboard. Each shows its default without this script.
   All numbers are in the page, as JSON: nothing is measured and nothing is judged here. */
document.addEventListener("DOMContentLoaded", () => {
  /* ---- Numbers and colours, as helpers/packed.py and helpers/publish/site/explore.py have them ---- */

  // 16-bit codes in base64, lowest byte first; a number is its code times the step. `row(i, j, ...)` is the last dimension there.
  const unpack = ({ step, shape, base64 }) => {
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    const length = shape.at(-1);
    return {
      row: (...index) => {
        const start = index.reduce((at, i, dimension) => at * shape[dimension] + i, 0) * length;
        return Array.from({ length }, (_, i) => view.getUint16(2 * (start + i), true) * step);
      },
    };
  };
  const level = (value, [low, high], colours, linear) => {
    const share = linear ? (value - low) / (high - low) : Math.log(Math.max(value, low) / low) / Math.log(high / low);
    return Math.floor(Math.min(Math.max(share, 0), 1) * (colours.length - 1) + 0.5);
  };
  const place = (patch, columns) => `Row ${Math.floor(patch / columns) + 1}, column ${(patch % columns) + 1}`;

  /* ---- What the figures share ---- */

  const named = (figure, name) => figure.querySelector(`[data-map="${name}"]`);
  const paint = (svg, values, scale, colours, linear) => {
    svg.querySelectorAll("g:first-of-type > path").forEach((cell, i) => {
      cell.setAttribute("fill", colours[level(values[i], scale, colours, linear)]);
    });
  };
  const show = (svg, jpeg) => svg.querySelector("image").setAttribute("href", `data:image/jpeg;base64,${jpeg}`);

  // A small map as a picture, a pixel for each patch.
  const picture = (values, [rows, columns], scale, colours) => {
    const canvas = Object.assign(document.createElement("canvas"), { width: columns, height: rows });
    const pen = canvas.getContext("2d");
    values.forEach((value, i) => {
      pen.fillStyle = colours[level(value, scale, colours)];
      pen.fillRect(i % columns, Math.floor(i / columns), 1, 1);
    });
    return canvas.toDataURL();
  };

  // Calls `chosen` with what is chosen now, and shows the controls, which do nothing without this script.
  const controls = (figure, chosen) => {
    for (const part of figure.querySelectorAll("[hidden]")) part.hidden = false;
    for (const input of figure.querySelectorAll("input")) input.addEventListener("input", chosen);
  };
  const radio = (figure, name) => figure.querySelector(`input[name="${name}"]:checked`)?.value ?? "0";
  const choose = (figure, name, value) => {
    const input = figure.querySelector(`input[name="${name}"][value="${value}"]`);
    if (input) input.checked = true;
  };
  const say = (range, told) => {
    range.setAttribute("aria-valuetext", told);
    range.previousElementSibling.querySelector("output").textContent = told;
  };

  // Points at patches of the maps called `names`: by pointer or tap, and with the arrow keys where one has the focus.
  const pointing = (figure, names, [rows, columns], changed, first = 0) => {
    let patch = first;
    const cursors = figure.querySelectorAll(".explore-cursor rect");
    const go = (to) => {
      patch = to;
      for (const rect of cursors) {
        rect.setAttribute("x", patch % columns);
        rect.setAttribute("y", Math.floor(patch / columns));
      }
      changed();
    };
    for (const svg of names.map((name) => named(figure, name))) {
      svg.tabIndex = 0;
      svg.setAttribute("role", "application"); // so that a screen reader hands the arrow keys over
      svg.setAttribute("aria-roledescription", "map of patches, walked with the arrow keys");
      const point = (event) => {
        const box = svg.getBoundingClientRect();
        const along = (part, side, count) => Math.min(Math.max(Math.floor((part / side) * count), 0), count - 1);
        go(along(event.clientY - box.top, box.height, rows) * columns + along(event.clientX - box.left, box.width, columns));
      };
      svg.addEventListener("pointermove", (event) => event.pointerType === "mouse" && point(event));
      svg.addEventListener("pointerdown", point);
      svg.addEventListener("keydown", (event) => {
        const row = Math.floor(patch / columns);
        const column = patch % columns;
        const to = {
          ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1], ArrowUp: [row - 1, column], ArrowDown: [row + 1, column],
          Home: [row, 0], End: [row, columns - 1], PageUp: [0, column], PageDown: [rows - 1, column],
        }[event.key];
        if (!to) return;
        event.preventDefault();
        const inside = (value, count) => Math.min(Math.max(value, 0), count - 1);
        go(inside(to[0], rows) * columns + inside(to[1], columns));
      });
    }
    return () => patch;
  };

  /* ---- The three figures ---- */

  const kinds = {
    patches(figure, data) {
      const { colours, scales, states } = data;
      const models = data.models.map((model) => ({ ...model, norms: unpack(model.norms), attention: unpack(model.attention) }));
      const range = figure.querySelector("input[type=range]");
      const ids = Object.keys(data.photographs);
      let drawn = "";

      const now = () => {
        const model = models[radio(figure, "patches-model")];
        let state = model.states.indexOf(radio(figure, "patches-state"));
        if (state < 0) { // a model without outliers has no neuron to move
          state = 0;
          choose(figure, "patches-state", model.states[0]);
        }
        return { model, state, photograph: Number(radio(figure, "patches-photograph")), block: Number(range.value) };
      };
      const tell = () => {
        const { model, state, photograph, block } = now();
        const norms = model.norms.row(state, photograph, block);
        const attention = model.attention.row(state, photograph, block);
        const norm = norms[patch()];
        const ratio = norm / model.medians[photograph][block];
        const rank = 1 + norms.filter((other) => other > norm).length;
        figure.querySelector(".explore-readout").textContent = `${place(patch(), model.grid[1])}: norm ${norm.toFixed(1)}, `
          + `${ratio.toFixed(1)} × the median, rank ${rank} of ${norms.length}; `
          + `[CLS] attention ${(100 * attention[patch()]).toFixed(2)} %`;
      };
      // The small maps and the table: of one model and photograph, all states and blocks.
      const film = (model, photograph) => {
        const rows = [...figure.querySelectorAll(".explore-film-row")];
        const largest = rows.map((row) => {
          const state = model.states.indexOf(row.dataset.state);
          row.hidden = row.previousElementSibling.hidden = state < 0;
          return [...row.querySelectorAll("img")].map((image, block) => {
            if (state < 0) return null;
            const norms = model.norms.row(state, photograph, block);
            image.src = picture(norms, model.grid, scales.norms, colours);
            return Math.max(...norms);
          });
        });
        figure.querySelector(".explore-film").setAttribute("aria-label", "Largest patch norm by block. " + rows
          .map((row, i) => row.hidden ? "" : `${states[row.dataset.state]}: ${largest[i].map((x) => x.toFixed(0)).join(", ")}.`)
          .filter(Boolean).join(" "));
        [...figure.querySelector("tbody").rows].forEach((line, block) => {
          line.cells[1].textContent = model.medians[photograph][block].toFixed(1);
          largest.forEach((own, i) => { line.cells[2 + i].textContent = own[block] === null ? "–" : own[block].toFixed(1); });
        });
      };
      const draw = () => {
        const { model, state, photograph, block } = now();
        for (const input of figure.querySelectorAll("[name=patches-state]")) input.disabled = !model.states.includes(input.value);
        show(named(figure, "photograph"), data.photographs[ids[photograph]]);
        paint(named(figure, "norms"), model.norms.row(state, photograph, block), scales.norms, colours);
        paint(named(figure, "attention"), model.attention.row(state, photograph, block), scales.attention, colours);
        const what = `${states[model.states[state]]}, after block ${block}`;
        named(figure, "norms").setAttribute("aria-label", `Patch norms, ${what}`);
        named(figure, "attention").setAttribute("aria-label", `[CLS] attention to the patches, ${what}`);
        const count = model.outliers[state][photograph][block];
        figure.querySelector("[data-count]").textContent = `After block ${block}, `
          + `${count === 0 ? "no patch is" : count === 1 ? "1 patch is" : `${count} patches are`} above 3 × the median.`;
        say(range, String(block));
        if (drawn !== `${models.indexOf(model)} ${photograph}`) film(model, photograph);
        drawn = `${models.indexOf(model)} ${photograph}`;
        for (const row of figure.querySelectorAll(".explore-film-row")) {
          [...row.children].forEach((image, i) => {
            image.classList.toggle("now", row.dataset.state === model.states[state] && i === block);
          });
        }
        tell();
      };
      const patch = pointing(figure, ["norms", "attention", "photograph"], models[0].grid, tell, data.patch);
      for (const row of figure.querySelectorAll(".explore-film-row")) {
        [...row.children].forEach((image, block) => image.addEventListener("click", () => {
          choose(figure, "patches-state", row.dataset.state);
          range.value = block;
          draw();
        }));
      }
      controls(figure, draw);
      draw();
    },

    thresholds(figure, data) {
      const { titles } = data;
      const ids = Object.keys(data.photographs);
      const range = figure.querySelector("input[type=range]");
      const measured = ([value, low, high], share) => { // as `_measured` in Python
        if (value === null) return "–";
        const one = (x) => share ? (100 * x).toFixed(1) : x.toFixed(2);
        const interval = low === null || one(low) === one(high) ? "" : ` [${one(low)}, ${one(high)}]`;
        return `${one(value)}${interval}${share ? " %" : ""}`;
      };
      const draw = () => {
        const model = data.models[radio(figure, "thresholds-model")];
        const photograph = Number(radio(figure, "thresholds-photograph"));
        const at = Number(range.value);
        const passed = model.passed[photograph];
        show(named(figure, "lit"), data.photographs[ids[photograph]]);
        named(figure, "lit").querySelectorAll("path").forEach((cell, i) => {
          cell.setAttribute("class", at < passed[i] ? "lit" : "unlit");
        });
        const lit = `${passed.filter((count) => at < count).length} of ${passed.length} patches of this photograph are above the `
          + "threshold.";
        named(figure, "lit").setAttribute("aria-label", lit);
        figure.querySelector("[data-count]").textContent = lit;
        for (const cell of figure.querySelectorAll("[data-measure]")) {
          cell.textContent = measured(model.measures[cell.dataset.measure][at], data.shares[cell.dataset.measure]);
        }
        const told = [];
        for (const [id, verdicts] of Object.entries(model.verdicts)) {
          const badge = figure.querySelector(`[data-verdict-of="${id}"] .verdict`);
          badge.className = `verdict ${verdicts[at].replaceAll(" ", "-")}`;
          badge.textContent = verdicts[at];
          told.push(`${titles[id].replace(/[.?]+$/, "")}: ${verdicts[at]}.`);
          const runs = [];
          verdicts.forEach((verdict, i) => {
            if (verdict !== runs.at(-1)?.verdict) runs.push({ verdict, low: model.multiples[i], count: 0 });
            Object.assign(runs.at(-1), { high: model.multiples[i], count: runs.at(-1).count + 1 });
          });
          const strip = figure.querySelector(`[data-strip="${id}"]`);
          strip.replaceChildren(...runs.map(({ verdict, count }) => Object.assign(document.createElement("span"), {
            className: verdict.replaceAll(" ", "-"), style: `flex:${count}`,
          })));
          strip.setAttribute("aria-label", runs.map((run) => `${run.verdict} from ${run.low} to ${run.high} medians`).join("; "));
        }
        figure.querySelector("[data-marks]").replaceChildren(...model.rules.map(([label, share]) => Object.assign(
          document.createElement("span"), { textContent: label, style: `left:${(100 * share).toFixed(2)}%` },
        )));
        const threshold = `${model.multiples[at]} × the median, a norm of ${(model.multiples[at] * model.median).toFixed(0)}`;
        figure.querySelector(".explore-strips").style.setProperty("--at", at);
        say(range, threshold);
        figure.querySelector(".explore-readout").textContent = `${threshold}. ${told.join(" ")}`;
        [...figure.querySelector("details tbody").rows].forEach((line, i) => {
          Object.values(model.verdicts).forEach((verdicts, j) => { line.cells[1 + j].textContent = verdicts[i]; });
        });
      };
      controls(figure, draw);
      draw();
    },

    moves(figure, data) {
      const { colours, scale, grid, n } = data;
      const own = () => data.conditions[radio(figure, "moves-condition")];
      const norms = Object.fromEntries(Object.entries(data.conditions).map(([kind, one]) => [kind, unpack(one.norms).row()]));
      const tell = () => {
        figure.querySelector(".explore-readout").textContent = `${place(patch(), grid[1])}: an outlier in `
          + `${own().frequency[patch()]} of ${n} images; norm ${norms[radio(figure, "moves-condition")][patch()].toFixed(1)} in the `
          + "example";
      };
      const draw = () => {
        show(named(figure, "photograph"), own().picture);
        paint(named(figure, "norms"), norms[radio(figure, "moves-condition")], scale, colours);
        const map = named(figure, "frequency");
        paint(map, own().frequency.map((count) => count / n), [0, 1], colours, true);
        map.querySelector(".explore-frames").replaceChildren(...own().expected.map((patch) => {
          const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
          const at = { x: patch % grid[1], y: Math.floor(patch / grid[1]), width: 1, height: 1 };
          for (const [name, value] of Object.entries(at)) rect.setAttribute(name, value);
          return rect;
        }));
        map.setAttribute("aria-label", own().told);
        figure.querySelector("[data-told]").textContent = own().told;
        tell();
      };
      const patch = pointing(figure, ["norms", "frequency", "photograph"], grid, tell);
      controls(figure, draw);
      draw();
    },
  };

  for (const figure of document.querySelectorAll("figure[data-explore]")) {
    kinds[figure.dataset.explore](figure, JSON.parse(figure.querySelector("script").textContent));
  }
});
