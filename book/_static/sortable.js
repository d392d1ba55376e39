/* Every table of class "sortable" gets a search field and columns that sort on click, at the third in the first order again; and one in
   which to choose for each head with data-choice, the name of what its rows have as data. A row of class "group" heads the rows that
   name it, while these stand in the first order. Without JavaScript it is a plain table. */
document.addEventListener("DOMContentLoaded", () => {
  const { compare } = new Intl.Collator("en", { numeric: true });
  // A cell that says its number is sorted by it: "< 1e-9" before 0.05.
  const order = (a, b) => "number" in a.dataset && "number" in b.dataset
    ? (Number(a.dataset.number) - Number(b.dataset.number)) || 0
    : compare(a.textContent.trim(), b.textContent.trim());
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    const first = [...body.rows];
    const groups = first.filter((row) => row.classList.contains("group"));
    const rows = first.filter((row) => !groups.includes(row));
    const heads = [...table.tHead.rows[0].cells];

    const search = Object.assign(document.createElement("input"), {
      type: "search", className: "sortable-search", placeholder: "Search this table",
    });
    search.setAttribute("aria-label", "Search this table");
    const form = Object.assign(document.createElement("form"), { className: "board-choice" });
    form.append(search);
    for (const { dataset: { choice }, textContent } of heads.filter((head) => head.dataset.choice)) {
      const values = [...new Set(rows.map((row) => row.dataset[choice]))].sort(compare);
      const select = Object.assign(document.createElement("select"), { name: choice });
      select.append(new Option("all", ""), ...values.map((value) => new Option(value)));
      const label = document.createElement("label");
      label.append(`${textContent} `, select);
      form.append(label);
    }
    const count = document.createElement("span");
    count.setAttribute("role", "status");
    form.append(count);
    const selects = [...form.querySelectorAll("select")];
    const show = () => {
      const wanted = search.value.toLowerCase();
      const fits = (row) => row.textContent.toLowerCase().includes(wanted)
        && selects.every(({ name, value }) => !value || row.dataset[name] === value);
      for (const row of rows) row.hidden = !fits(row);
      const shown = rows.filter((row) => !row.hidden);
      const sorted = heads.some((head) => head.ariaSort);
      for (const group of groups) group.hidden = sorted || !shown.some((row) => row.dataset.group === group.id);
      count.textContent = `${shown.length} of ${rows.length}`;
    };
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", show);
    table.parentElement.before(form);

    heads.forEach((head, column) => {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: head.textContent });
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const next = { null: "ascending", ascending: "descending", descending: null }[head.getAttribute("aria-sort")];
        for (const other of heads) other.removeAttribute("aria-sort");
        if (next) head.setAttribute("aria-sort", next);
        const up = next === "ascending" ? 1 : -1;
        body.append(...(next ? rows.toSorted((a, b) => up * order(a.cells[column], b.cells[column])) : first));
        show();
      });
    });
    show();
  }
});
