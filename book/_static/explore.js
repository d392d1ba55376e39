/* The figures of class "explore" answer to a pointer, a tap and the keyboard. Without this script a reader sees their tables.
   All numbers are in the page, as JSON: nothing is measured and nothing is judged here. */
document.addEventListener("DOMContentLoaded", () => {
  /* ---- Numbers and colours ---- */

  // 16-bit codes in base64, lowest byte first; a number is its code times the step. `row(i, j, ...)` is the last dimension there.
  const unpack = ({ step, shape, base64 }) => {
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    const length = shape.at(-1);
    return (...index) => {
      const start = index.reduce((at, i, dimension) => at * shape[dimension] + i, 0) * length;
      return Array.from({ length }, (_, i) => view.getUint16(2 * (start + i), true) * step);
    };
  };
  // Viridis, from the lowest to the highest; scales are logarithmic.
  const COLOURS = [
    "#440154", "#46075a", "#470d60", "#471365", "#48186a", "#481d6f", "#482374", "#482878",
    "#472d7b", "#46327e", "#453781", "#443b84", "#424086", "#404588", "#3e4989", "#3d4e8a",
    "#3a538b", "#38588c", "#365c8d", "#34608d", "#32648e", "#31688e", "#2f6c8e", "#2d708e",
    "#2c738e", "#2a778e", "#297b8e", "#277f8e", "#26828e", "#24868e", "#238a8d", "#218e8d",
    "#20928c", "#1f968b", "#1f9a8a", "#1f9e89", "#1fa187", "#21a585", "#23a983", "#26ad81",
    "#2ab07f", "#2fb47c", "#35b779", "#3bbb75", "#42be71", "#4ac16d", "#52c569", "#5ac864",
    "#65cb5e", "#6ece58", "#77d153", "#81d34d", "#8bd646", "#95d840", "#a0da39", "#aadc32",
    "#b5de2b", "#c0df25", "#cae11f", "#d5e21a", "#dfe318", "#eae51a", "#f4e61e", "#fde725",
  ];
  const colour = (value, [low, high]) => {
    const share = Math.log(Math.max(value, low) / low) / Math.log(high / low);
    return COLOURS[Math.floor(Math.min(share, 1) * (COLOURS.length - 1) + 0.5)];
  };

  /* ---- What the figures share ---- */

  const element = (name, attributes = {}, ...children) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };
  const named = (figure, name) => figure.querySelector(`[data-map="${name}"]`);
  // A cell for each patch, and a cursor over one, black around white, which is seen on every colour.
  const grid = (svg, [rows, columns]) => {
    const cells = Array.from({ length: rows * columns }, (_, i) => element("path", {
      d: `M${i % columns} ${Math.floor(i / columns)}h1v1h-1z`,
    }));
    svg.append(element("g", { "shape-rendering": "crispEdges" }, ...cells));
  };
  const picture = (svg, [rows, columns]) => svg.append(element("image", { width: columns, height: rows, preserveAspectRatio: "none" }));
  const cursor = (svg) => svg.append(element("g", { class: "explore-cursor" }, ...[0, 1].map(() => element("rect", { width: 1, height: 1 }))));
  const paint = (svg, values, scale) => {
    svg.querySelectorAll("path").forEach((cell, i) => cell.setAttribute("fill", colour(values[i], scale)));
  };
  const show = (svg, jpeg) => svg.querySelector("image").setAttribute("href", `data:image/jpeg;base64,${jpeg}`);
  const fill = (rows, texts) => {
    [...rows].forEach((row, i) => texts[i].forEach((text, j) => { row.cells[1 + j].textContent = text; }));
  };
  // What the colours mean: a bar with its ends and two values between them.
  const bar = (figure, name, [low, high]) => {
    const node = figure.querySelector(`[data-bar="${name}"]`);
    node.querySelector(".explore-ramp").style.background = `linear-gradient(90deg, ${COLOURS.join(",")})`;
    node.querySelector(".explore-ends").replaceChildren(...[0, 1 / 3, 2 / 3, 1].map((share) => Object.assign(
      document.createElement("span"), { textContent: Number((node.dataset.factor * low * (high / low) ** share).toPrecision(2)) },
    )));
  };

  // A small map as a picture, a pixel for each patch.
  const small = (values, [rows, columns], scale) => {
    const canvas = Object.assign(document.createElement("canvas"), { width: columns, height: rows });
    const pen = canvas.getContext("2d");
    values.forEach((value, i) => {
      pen.fillStyle = colour(value, scale);
      pen.fillRect(i % columns, Math.floor(i / columns), 1, 1);
    });
    return canvas.toDataURL();
  };

  // Shows what does nothing without this script, and calls `chosen` when a choice changes.
  const controls = (figure, chosen) => {
    figure.querySelector(".explore-live").hidden = false;
    for (const input of figure.querySelectorAll("input")) input.addEventListener("input", chosen);
    const lead = figure.querySelector(".explore-lead"); // what it says is of the first model
    figure.addEventListener("input", () => {
      lead.style.visibility = radio(figure, `${figure.dataset.explore}-model`) === "0" ? "" : "hidden";
    });
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
    const go = (to, quiet) => {
      patch = to;
      for (const rect of cursors) {
        rect.setAttribute("x", patch % columns);
        rect.setAttribute("y", Math.floor(patch / columns));
      }
      if (!quiet) changed();
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
    go(first, true);
    return () => patch;
  };

  /* ---- The figure ---- */

  const patches = (figure, data) => {
    const { scales, states } = data;
    const models = data.models.map((model) => ({ ...model, norms: unpack(model.norms), attention: unpack(model.attention) }));
    const range = figure.querySelector("input[type=range]");
    const size = models[0].grid;
    const maps = ["photograph", "norms", "attention"];
    const rows = [...figure.querySelectorAll(".explore-film-row")];
    let drawn = "";

    picture(named(figure, "photograph"), size);
    for (const name of maps.slice(1)) grid(named(figure, name), size);
    for (const name of maps) cursor(named(figure, name));
    for (const name of maps.slice(1)) bar(figure, name, scales[name]);
    for (const row of rows) {
      row.append(...models[0].medians[0].map((_, block) => {
        const image = Object.assign(new Image(size[1], size[0]), { alt: `after block ${block}` });
        image.addEventListener("click", () => {
          choose(figure, "patches-state", row.dataset.state);
          range.value = block;
          draw();
        });
        return image;
      }));
    }

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
      const norms = model.norms(state, photograph, block);
      const norm = norms[patch()];
      const ratio = norm / model.medians[photograph][block];
      const rank = 1 + norms.filter((other) => other > norm).length;
      const seen = 100 * model.attention(state, photograph, block)[patch()];
      figure.querySelector(".explore-readout").textContent =
        `Row ${Math.floor(patch() / size[1]) + 1}, column ${(patch() % size[1]) + 1}: norm ${norm.toFixed(1)}, `
        + `${ratio.toFixed(1)} × the median, rank ${rank} of ${norms.length}; [CLS] attention ${seen.toFixed(2)} %`;
    };
    // The small maps and the table: of one model and photograph, all states and blocks.
    const film = (model, photograph) => {
      const largest = model.largest[photograph];
      fill(figure.querySelector("tbody").rows, largest);
      const told = rows.map((row, i) => {
        const state = model.states.indexOf(row.dataset.state);
        row.hidden = row.previousElementSibling.hidden = state < 0;
        if (state < 0) return "";
        [...row.children].forEach((image, block) => {
          image.src = small(model.norms(state, photograph, block), model.grid, scales.norms);
        });
        return ` ${states[row.dataset.state]}: ${largest.map((texts) => texts[1 + i]).join(", ")}.`;
      });
      figure.querySelector(".explore-film").setAttribute("aria-label", `Largest patch norm by block.${told.join("")}`);
    };
    const draw = () => {
      const { model, state, photograph, block } = now();
      for (const input of figure.querySelectorAll("[name=patches-state]")) input.disabled = !model.states.includes(input.value);
      show(named(figure, "photograph"), data.photographs[photograph]);
      for (const [name, told] of [["norms", "Patch norms"], ["attention", "[CLS] attention to the patches"]]) {
        paint(named(figure, name), model[name](state, photograph, block), scales[name]);
        named(figure, name).setAttribute("aria-label", `${told}, ${states[model.states[state]]}, after block ${block}`);
      }
      const count = model.outliers[state][photograph][block];
      figure.querySelector("[data-count]").textContent = `After block ${block}, `
        + `${count === 0 ? "no patch is" : count === 1 ? "1 patch is" : `${count} patches are`} above 3 × the median.`;
      say(range, String(block));
      const shown = `${models.indexOf(model)} ${photograph}`;
      if (drawn !== shown) film(model, photograph);
      drawn = shown;
      for (const row of rows) {
        [...row.children].forEach((image, i) => {
          image.classList.toggle("now", row.dataset.state === model.states[state] && i === block);
        });
      }
      tell();
    };
    const patch = pointing(figure, maps, size, tell, data.patch);
    controls(figure, draw);
    draw();
  };

  for (const figure of document.querySelectorAll("figure[data-explore]")) {
    patches(figure, JSON.parse(figure.querySelector("script").textContent));
  }
});
