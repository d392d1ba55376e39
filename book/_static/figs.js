/* A frame that scrolls can be reached and scrolled by the keyboard; one that does not is no stop on the way. */
(() => {
  const frames = () => document.querySelectorAll("article figure, article .cell_output, .pst-scrollable-table-container");
  const update = () => {
    for (const frame of frames()) {
      frame.classList.toggle("wide", frame.scrollWidth > frame.clientWidth + 1);
      if (frame.classList.contains("wide") || frame.scrollHeight > frame.clientHeight + 1) {
        frame.tabIndex = 0;
        frame.setAttribute("role", "region");
      } else {
        frame.removeAttribute("tabindex");
        frame.removeAttribute("role");
      }
    }
  };
  // Of what a function of the API does, all but the first sentence is folded.
  addEventListener("DOMContentLoaded", () => {
    for (const part of document.querySelectorAll("dl.py > dd")) {
      const more = [...part.children].slice(1);
      if (!more.length) continue;
      const details = document.createElement("details");
      details.className = "api-more";
      details.innerHTML = "<summary>arguments, shapes, sources</summary>";
      more[0].before(details);
      details.append(...more);
    }
  });
  // The theme's arrows that open a part of the contents have no name.
  addEventListener("DOMContentLoaded", () => {
    for (const arrow of document.querySelectorAll("nav summary:not([aria-label])")) {
      const part = arrow.closest("li")?.querySelector("a")?.textContent.trim();
      if (part && !arrow.textContent.trim()) arrow.setAttribute("aria-label", `Pages of ${part}`);
    }
  });
  addEventListener("load", update);
  addEventListener("resize", update);
})();
