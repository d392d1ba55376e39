/* What this book's search does otherwise than Sphinx's: claims come first and the API last, and an excerpt is of the article alone, without
   what stands around it on every page. */
if (typeof Search !== "undefined") {
  const query = new URLSearchParams(location.search).get("q")?.trim();
  Scorer.score = ([page, title, , , score]) => {
    if (title.split(".").at(-1) === query) return score + 40; // the name of a function, in full
    return score + (page.startsWith("book/claims/") ? 10 : page.startsWith("book/api") ? -40 : 0);
  };
  Search.htmlToText = (html, anchor) => {
    const page = new DOMParser().parseFromString(html, "text/html");
    for (const node of page.querySelectorAll(".headerlink, .visually-hidden, script, style, svg, form")) node.remove();
    return (page.getElementById(anchor?.slice(1)) ?? page.querySelector("article"))?.textContent ?? "";
  };
  if (location.protocol === "file:") document.addEventListener("DOMContentLoaded", () => {
    const hint = Object.assign(document.createElement("p"), {
      textContent: "From disk the search shows titles alone. With excerpts: python -m http.server in the folder of the book, then http://localhost:8000.",
    });
    document.getElementById("search-results")?.before(hint);
  });
}
