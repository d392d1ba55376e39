/* Every table of class "scoreboard" gets a search field and columns that sort on click. Without JavaScript it is a plain table. */
document.addEventListener("DOMContentLoaded", () => {
  const order = new Intl.Collator("en", { numeric: true }).compare;
  for (const table of document.querySelectorAll("table.scoreboard")) {
    const body = table.tBodies[0];
    const rows = [...body.rows];

    const search = Object.assign(document.createElement("input"), {
      type: "search", className: "scoreboard-search", placeholder: "Search this table",
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
        const text = (row) => row.cells[column].textContent.trim();
        body.append(...rows.sort((a, b) => (up ? 1 : -1) * order(text(a), text(b))));
      });
    });
  }
});
