/* Every table of class "sortable" gets a search field and columns that sort on click. Without JavaScript it is a plain table. */
document.addEventListener("DOMContentLoaded", () => {
  const { compare } = new Intl.Collator("en", { numeric: true });
  // A cell that says its number is sorted by it: "< 1e-9" before 0.05.
  const order = (a, b) => "number" in a.dataset && "number" in b.dataset
    ? (Number(a.dataset.number) - Number(b.dataset.number)) || 0
    : compare(a.textContent.trim(), b.textContent.trim());
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    const rows = [...body.rows];

    const search = Object.assign(document.createElement("input"), {
      type: "search", className: "sortable-search", placeholder: "Search this table",
    });
    search.setAttribute("aria-label", "Search this table");
    search.addEventListener("input", () => {
      const wanted = search.value.toLowerCase();
      for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
    });
    table.parentElement.before(search);

    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: head.textContent });
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        body.append(...rows.sort((a, b) => (up ? 1 : -1) * order(a.cells[column], b.cells[column])));
      });
    });
  }
});
