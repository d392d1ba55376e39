/* Every table of class "sortable" gets a search field and columns that sort on click; and one in which to choose for each head with
   data-choice, the name of what its rows have as data. Without JavaScript it is a plain table. */
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
    const form = Object.assign(document.createElement("form"), { className: "board-choice" });
    form.append(search);
    for (const { dataset: { choice }, textContent } of table.querySelectorAll("th[data-choice]")) {
      const values = [...new Set(rows.map((row) => row.dataset[choice]))].sort(compare);
      const select = Object.assign(document.createElement("select"), { name: choice });
      select.append(new Option("all", ""), ...values.map((value) => new Option(value)));
      const label = document.createElement("label");
      label.append(`${textContent} `, select);
      form.append(label);
    }
    const selects = [...form.querySelectorAll("select")];
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", () => {
      const wanted = search.value.toLowerCase();
      const fits = (row) => row.textContent.toLowerCase().includes(wanted)
        && selects.every(({ name, value }) => !value || row.dataset[name] === value);
      for (const row of rows) row.hidden = !fits(row);
    });
    table.parentElement.before(form);

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
