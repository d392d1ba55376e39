/* A frame that scrolls can be reached and scrolled by the keyboard; one that does not is no stop on the way. */
(() => {
  const frames = () => document.querySelectorAll(".figure-frame, .table-frame, .scoreboard-frame");
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
