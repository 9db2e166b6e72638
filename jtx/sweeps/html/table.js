// Tables that are sorted by a click, or a key, on the head of a column.
{
  const keyOf = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.sort ?? cell.textContent.trim();
  };

  const compare = (a, b) => {
    const x = Number(a), y = Number(b);
    if (!Number.isNaN(x) && !Number.isNaN(y)) return x - y;
    return a.localeCompare(b, "en", {numeric: true});
  };

  const sort = (table, column, descending) => {
    const rows = [...table.tBodies[0].rows];
    const there = rows.filter((row) => keyOf(row, column) !== "");
    const missing = rows.filter((row) => keyOf(row, column) === "");  // last, in either order
    const sign = descending ? -1 : 1;
    there.sort((a, b) => sign * compare(keyOf(a, column), keyOf(b, column)));
    table.tBodies[0].append(...there, ...missing);
  };

  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const old = head.getAttribute("aria-sort");
        // The first click brings the best to the top.
        const descending = old ? old === "ascending" : head.dataset.first === "descending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        sort(table, column, descending);
      });
    });
  }
}
