// Makes the pages quicker to use. Without it they work all the same: each state of a page is a link of the server.
"use strict";

const DEBOUNCE_MILLISECONDS = 150;
const COPIED_MILLISECONDS = 1500;
const typing = (target) => target.matches("input, select, textarea");

/** The page of the server at `target`, or null if a newer request has taken its place. */
const pageAt = (() => {
  let asking = null;
  return async (target) => {
    asking?.abort();
    asking = new AbortController();
    try {
      const answer = await fetch(target, { signal: asking.signal });
      if (answer.redirected) {
        location.assign(target); // the token has expired: the sign-in page leads back
        return null;
      }
      return new DOMParser().parseFromString(await answer.text(), "text/html");
    } catch (error) {
      if (error.name === "AbortError") return null;
      throw error;
    }
  };
})();

function searchAsYouType(form, box) {
  let timer = 0;
  const show = async () => {
    const query = new URLSearchParams(new FormData(form));
    const target = box.value.trim() ? `/?${query}` : "/";
    const main = document.querySelector("main");
    const count = document.getElementById("count");
    try {
      const page = await pageAt(target);
      if (!page) return;
      const isOpen = main.querySelector("details.facets")?.open ?? !narrow.matches;
      page.querySelector("details.facets")?.toggleAttribute("open", isOpen);
      const focused = main.contains(document.activeElement) ? document.activeElement.id : "";
      main.replaceWith(page.querySelector("main"));
      if (focused) (document.getElementById(focused) ?? box).focus();
      count.textContent = page.getElementById("count")?.textContent ?? "";
      document.title = page.title;
      history.replaceState(null, "", target);
    } catch {
      count.textContent = "The server does not answer. Search again in a moment.";
    }
  };
  box.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(show, DEBOUNCE_MILLISECONDS);
  });
  document.addEventListener("change", (event) => {
    if (event.target.form === form && event.target !== box) show();
  });
}

function moveAmongResults(box) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    const results = [...document.querySelectorAll("article h3 > a:first-child, .entries a")];
    const at = results.indexOf(document.activeElement);
    const isTyping = typing(event.target);
    const isDown = event.key === "ArrowDown" ? at >= 0 || event.target === box : event.key === "j" && !isTyping;
    const isUp = event.key === "ArrowUp" || (event.key === "k" && !isTyping);
    if (event.key === "/" && !isTyping) {
      event.preventDefault();
      box.select();
    } else if (event.key === "Escape" && event.target !== box) {
      box.select();
    } else if (isDown && at + 1 < results.length) {
      event.preventDefault();
      results[at + 1].focus();
    } else if (isUp && at >= 0) {
      event.preventDefault();
      (results[at - 1] ?? box).focus();
    }
  });
}

const linkedLine = (link) => Number(link.hash.slice("#L".length));

/** The link of the outline to the last definition that begins at line `number` or before. */
const definitionAt = (number) =>
  [...document.querySelectorAll('.names a[href^="#"]')].findLast((link) => linkedLine(link) <= number);

function followLines(code) {
  const select = async (number) => {
    const line = document.getElementById(`L${number}`);
    const target = new URL(location.href);
    target.searchParams.set("line", number);
    target.hash = `L${number}`;
    if (!line) {
      location.assign(target); // a long document is shown in parts
      return;
    }
    document.querySelector(".code .best")?.classList.remove("best");
    line.classList.add("best");
    document.querySelector(".names .here")?.classList.remove("here");
    definitionAt(number)?.parentElement.classList.add("here");
    history.replaceState(null, "", target);
    const page = await pageAt(target);
    const found = page?.getElementById("similar");
    if (found) document.getElementById("similar").replaceWith(found);
    for (const id of ["remote", "own"]) {
      const link = page?.getElementById(id);
      if (link) document.getElementById(id)?.replaceWith(link);
    }
  };
  code.addEventListener("click", (event) => {
    if (!event.target.matches(".lines > div > a") || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    select(event.target.textContent);
  });
  const fromLink = () => {
    const number = /^#L([1-9]\d*)$/.exec(location.hash)?.[1];
    if (number && number !== new URLSearchParams(location.search).get("line")) select(number);
  };
  addEventListener("hashchange", fromLink);
  fromLink();
}

function copyLinks() {
  document.documentElement.classList.add("copies");
  document.addEventListener("click", async ({ target }) => {
    if (!target.matches("button.copy")) return;
    const before = target.textContent;
    await navigator.clipboard.writeText(target.previousElementSibling.href);
    target.textContent = "Copied";
    setTimeout(() => (target.textContent = before), COPIED_MILLISECONDS);
  });
}

/** Offers the definitions and the uses of a name that is selected in code. */
function jumpFromNames() {
  const bar = document.createElement("nav");
  bar.id = "jump";
  bar.ariaLabel = "The selected name";
  const link = (field, text) => {
    const made = document.createElement("a");
    made.textContent = text;
    made.dataset.field = field;
    return made;
  };
  bar.append(link("def", "Definition"), link("uses", "Uses"));
  document.addEventListener("selectionchange", () => {
    const selection = document.getSelection();
    const name = selection.toString().trim();
    const isIn = selection.anchorNode?.parentElement?.closest(".lines code");
    if (!isIn || !/^[\p{L}_$][\p{L}\p{N}_$]*$/u.test(name)) return void bar.remove();
    const branch = new URLSearchParams(location.search).get("branch");
    for (const each of bar.children) {
      const target = new URLSearchParams({ q: `${each.dataset.field}:${name}` });
      if (branch) target.set("branch", branch);
      if (each.dataset.field === "def") target.set("jump", "true");
      each.href = `/?${target}`;
    }
    if (!bar.isConnected) document.body.append(bar);
  });
}

/** Lists beside the content are open where there is room for them. */
function foldWhereNarrow() {
  const fold = () => {
    for (const each of document.querySelectorAll("details.beside")) each.open = !narrow.matches;
  };
  narrow.addEventListener("change", fold);
  if (narrow.matches) fold();
}

const narrow = matchMedia("(max-width: 61.99rem)");
foldWhereNarrow();
document.querySelector(".tree [aria-current]")?.scrollIntoView({ block: "nearest" });
const box = document.getElementById("q");
if (box) {
  if (box.form.id === "search") searchAsYouType(box.form, box);
  moveAmongResults(box);
}
jumpFromNames();
if (document.querySelector(".lines a")) followLines(document.querySelector(".code"));
if (navigator.clipboard) copyLinks(); // only on https and this machine
