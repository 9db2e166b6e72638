// Buttons that copy a command; and folded parts, which unfold in print but for the long config.
{
  const said = document.getElementById("said");

  const copy = async (node) => {
    try {
      await navigator.clipboard.writeText(node.textContent);
    } catch {  // a browser without a clipboard for pages from files
      const selection = getSelection();
      selection.selectAllChildren(node);
      document.execCommand("copy");
      selection.removeAllRanges();
    }
  };

  for (const button of document.querySelectorAll("button.copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      await copy(document.getElementById(button.dataset.of));
      said.textContent = "";
      said.textContent = "The command is copied.";
      const shown = button.firstElementChild;
      shown.textContent = "Copied";
      setTimeout(() => { shown.textContent = "Copy"; }, 2000);
    });
  }

  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open], .config)")];
    opened.forEach((details) => { details.open = true; });
  });
  addEventListener("afterprint", () => {
    opened.forEach((details) => { details.open = false; });
  });
}
