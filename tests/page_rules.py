"""What every page of the book is held to in a browser, as scripts that return what breaks a rule:
[] where nothing does.

Contrast is that of WCAG 2.2, 1.4.3: 4.5, and 3 for large text, between the colour of a text and all
that lies behind it.
"""

PATIENCE = 180_000  # ms: a busy machine is no error

# After every image has been asked to load: formulas that were not drawn, pictures that are empty
# or have no text, and by how much the page is wider than the window.
OBSERVE = """async () => {
  const images = [...document.images];
  for (const image of images) image.loading = "eager";
  await Promise.all(images.map((image) => image.decode().catch(() => null)));
  const start = (node) => node.outerHTML.slice(0, 200);
  const plain = [...document.querySelectorAll(".math")]
    .filter((node) => !node.querySelector("math")?.getBoundingClientRect().width);
  return {
    formulas: plain.map(start),
    pictures: images.filter((image) => !image.naturalWidth || !image.alt.trim()).map(start),
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  };
}"""

CONTRAST = """(root) => {
  const still = document.head.appendChild(document.createElement("style"));
  still.textContent = "*, *::before, *::after { transition: none !important; animation: none !important; }";
  const numbers = (colour) => {
    const found = (colour.match(/[\\d.]+/g) ?? [0, 0, 0, 0]).map(Number);
    const scale = colour.startsWith("color(srgb") ? 255 : 1;
    return [found[0] * scale, found[1] * scale, found[2] * scale, found[3] ?? 1];
  };
  const over = ([r, g, b, a], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a)];
  const luminance = (colour) => {
    const [r, g, b] = colour.map((c) => ((c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const before = document.documentElement.dataset.theme;
  const faint = [];
  for (const theme of ["light", "dark"]) {
    document.documentElement.dataset.theme = theme;
    const known = new Map();
    // What lies behind what an element holds.
    const behind = (node) => {
      if (!node) return [255, 255, 255];
      if (!known.has(node)) {
        known.set(node, over(numbers(getComputedStyle(node).backgroundColor), behind(node.parentElement)));
      }
      return known.get(node);
    };
    const seen = new Set();
    const walker = document.createTreeWalker(document.querySelector(root) ?? document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode.parentElement;
      if (!walker.currentNode.data.trim() || seen.has(node)) continue;
      seen.add(node);
      if (node.closest("script, style, noscript, title, option, [disabled]")) continue;
      if (!node.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true })) continue;
      const style = getComputedStyle(node);
      const drawn = node.ownerSVGElement !== undefined && node.ownerSVGElement !== null;
      // What lies behind a text in a drawing that has a colour of its own is not told by the document.
      if (drawn && style.fill !== style.color) continue;
      const box = node.getBoundingClientRect();
      if (box.width < 2 || box.height < 2) continue;  // for screen readers alone
      const back = behind(node);
      const front = numbers(style.color);
      let opacity = 1;
      for (let at = node; at; at = at.parentElement) opacity *= Number(getComputedStyle(at).opacity);
      const colour = over([front[0], front[1], front[2], front[3] * opacity], back);
      const [dark, light] = [luminance(colour), luminance(back)].sort((a, b) => a - b);
      const size = parseFloat(style.fontSize);
      const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
      const contrast = (light + 0.05) / (dark + 0.05);
      if (contrast < (large ? 3 : 4.5)) {
        const what = node.tagName.toLowerCase() + "." + (node.getAttribute("class") ?? "");
        faint.push([theme, contrast.toFixed(2), what, node.textContent.trim().slice(0, 40)]);
      }
    }
  }
  document.documentElement.dataset.theme = before ?? "light";
  still.remove();
  return faint;
}"""  # noqa: E501

# At the width of a phone: what makes the page scroll sideways, text in figures of less than 9
# pixels, and verdicts that are not seen.
PHONE = """() => {
  const wide = document.documentElement.clientWidth;
  const overflow = document.documentElement.scrollWidth - wide;
  const scrolls = (node) => {
    for (let at = node.parentElement; at && at !== document.body; at = at.parentElement) {
      if (/auto|scroll|hidden|clip/.test(getComputedStyle(at).overflowX)) return true;
    }
    return false;
  };
  const culprits = overflow <= 0 ? [] : [...document.querySelectorAll("article *, .bd-header-article *")]
    .filter((node) => node.getBoundingClientRect().right > wide + 1 && !scrolls(node))
    .slice(0, 5).map((node) => node.outerHTML.slice(0, 120));
  const small = [];
  for (const text of document.querySelectorAll("article svg text")) {
    if (!text.textContent.trim() || !text.checkVisibility()) continue;
    const matrix = text.getScreenCTM();
    const size = parseFloat(getComputedStyle(text).fontSize) * Math.hypot(matrix.b, matrix.d);
    if (size < 8.9) small.push([text.textContent.trim().slice(0, 40), size.toFixed(1)]);
  }
  for (const image of document.querySelectorAll("article figure > img[src$='.svg']")) {
    // The smallest text of our figures has 9.5 points.
    if (!image.checkVisibility() || !image.naturalWidth) continue;
    const size = (12.67 * image.getBoundingClientRect().width) / image.naturalWidth;
    if (size < 8.9) small.push([image.getAttribute("src").slice(-30), size.toFixed(1)]);
  }
  // A verdict in a table or a heading is seen without a click, unless its page folds it away for everyone, or the name of its tab says it.
  const hidden = [...document.querySelectorAll("article .verdict")]
    .filter((node) => !node.closest("details:not([open]), [hidden], .sd-tab-content") && !node.checkVisibility({ checkVisibilityCSS: true }))
    .map((node) => node.outerHTML.slice(0, 120));
  return [...(overflow > 0 ? [overflow, ...culprits] : []), ...small, ...hidden];
}"""  # noqa: E501

# What the keyboard and a screen reader need: names, no order of its own, heads of tables, figures
# with text.
NAMED = """() => {
  const wrong = [];
  const say = (what, node) => wrong.push([what, node.outerHTML.slice(0, 160)]);
  const name = (node) =>
    (node.getAttribute("aria-label") || node.title || node.textContent || node.placeholder || "").trim() ||
    (node.getAttribute("aria-labelledby") && document.getElementById(node.getAttribute("aria-labelledby"))?.textContent.trim()) ||
    [...(node.labels ?? [])].map((label) => label.textContent.trim()).join("") ||
    [...node.querySelectorAll("img[alt], svg[aria-label], svg title")].map((x) => x.alt || x.textContent || "x").join("");
  const stops = "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex]";
  for (const node of document.querySelectorAll(stops)) {
    if (node.tabIndex > 0) say("an order of its own", node);
    if (node.checkVisibility({ checkVisibilityCSS: true }) && node.tabIndex >= 0 && !name(node)) say("no name", node);
  }
  for (const table of document.querySelectorAll("article table")) if (!table.querySelector("th")) say("no head", table);
  for (const drawing of document.querySelectorAll("article svg[role=img]")) {
    if (!drawing.getAttribute("aria-label") && !drawing.querySelector("title") && !drawing.getAttribute("aria-labelledby")) {
      say("no text", drawing);
    }
  }
  return wrong;
}"""  # noqa: E501
