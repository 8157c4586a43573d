// Makes the pages quicker to use. Without it they work all the same: each state of a page is a link of the server.
"use strict";

const DEBOUNCE_MILLISECONDS = 150;
const COPIED_MILLISECONDS = 1500;
const UNFINISHED = /(^|\s)(-?[a-z]+:|"[^"]*)$/; // the server would refuse the last term
const OF_KNOWN_VALUES = /(^|\s)-?(lang|branch|case):\S*$/; // and this one, unless it is complete
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
      if (!page.querySelector("main")) throw new Error("no page"); // such as too many requests
      const wrong = page.querySelector("main > .error"); // the results stay
      count.classList.toggle("bad", Boolean(wrong));
      count.textContent = (wrong ?? page.getElementById("count"))?.textContent ?? "";
      if (wrong) return;
      const isOpen = main.querySelector("details.facets")?.open ?? !narrow.matches;
      page.querySelector("details.facets")?.toggleAttribute("open", isOpen);
      const focused = main.contains(document.activeElement) ? document.activeElement.id : "";
      main.replaceWith(page.querySelector("main"));
      box.dispatchEvent(new Event("terms"));
      if (focused) (document.getElementById(focused) ?? box).focus();
      document.title = page.title;
      history.replaceState(null, "", target);
    } catch {
      count.textContent = "The server does not answer. Search again in a moment.";
    }
  };
  box.addEventListener("input", () => {
    clearTimeout(timer);
    const isOffered = document.querySelector("#offers:not([hidden])") && OF_KNOWN_VALUES.test(box.value);
    if (!isOffered && !UNFINISHED.test(box.value)) timer = setTimeout(show, DEBOUNCE_MILLISECONDS);
  });
  document.addEventListener("change", (event) => {
    if (event.target.form === form && event.target !== box) show();
  });
}

const MAX_OFFERS = 8;
const MIN_LETTERS = 2;
const EXCLUDES = /^(file|lang|repo):/;

/** Offers to complete the term before the cursor, by a field or a value that the server lists in the page. */
function completeTerms(box) {
  const list = document.createElement("ul");
  list.id = "offers";
  list.role = "listbox";
  list.ariaLabel = "Terms";
  box.after(list);
  box.removeAttribute("list");
  box.role = "combobox";
  box.ariaAutoComplete = "list";
  box.setAttribute("aria-controls", list.id);

  const typed = () => /\S*$/.exec(box.value.slice(0, box.selectionStart))[0];
  const matching = () => {
    const [, sign, field, part] = /^(-?)([a-z]*:|)(.*)$/.exec(typed().toLowerCase());
    if (!field && part.length < MIN_LETTERS) return [];
    const holds = ({ value }) => {
      const rest = value.toLowerCase().slice(field.length);
      if (sign && !EXCLUDES.test(value)) return false;
      if (!field) return rest.endsWith(":") && rest.startsWith(part);
      return value.startsWith(field) && rest && rest !== part && rest.includes(part);
    };
    const found = [...document.querySelectorAll("#terms option")].filter(holds).slice(0, MAX_OFFERS);
    return found.map(({ value, label }) => ({ term: sign + value, about: label === value ? "" : label }));
  };
  const chosen = () => [...list.children].findIndex((each) => each.ariaSelected === "true");
  const choose = (at) => {
    [...list.children].forEach((each, n) => (each.ariaSelected = String(n === at)));
    box.setAttribute("aria-activedescendant", list.children[at]?.id ?? "");
  };
  const offer = (terms) => {
    const made = terms.map(({ term, about }, n) => {
      const [item, written, explanation] = ["li", "code", "span"].map((name) => document.createElement(name));
      Object.assign(item, { id: `offer${n}`, role: "option" });
      [written.textContent, explanation.textContent] = [term, about];
      item.append(written, " ", explanation);
      return item;
    });
    list.replaceChildren(...made);
    list.hidden = !made.length;
    box.ariaExpanded = String(!list.hidden);
    choose(-1);
  };
  const accept = (item) => {
    const term = item.firstChild.textContent;
    const end = box.selectionStart;
    box.setRangeText(term.endsWith(":") ? term : `${term} `, end - typed().length, end, "end");
    box.dispatchEvent(new Event("input"));
  };
  offer([]);
  box.addEventListener("input", () => offer(matching()));
  box.addEventListener("blur", () => offer([]));
  box.addEventListener("terms", () => {
    if (!list.hidden && chosen() < 0) offer(matching()); // from the page of the latest results
  });
  box.addEventListener("keydown", (event) => {
    if (list.hidden || event.isComposing) return;
    const at = chosen();
    if (event.key === "ArrowDown" && at + 1 < list.children.length) choose(at + 1);
    else if (event.key === "ArrowUp" && at >= 0) choose(at - 1);
    else if (event.key === "Enter" && at >= 0) accept(list.children[at]);
    else if (event.key === "Escape") offer([]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  list.addEventListener("mousedown", (event) => event.preventDefault()); // the box keeps the focus
  list.addEventListener("click", (event) => accept(event.target.closest("li")));
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
  if (box.form.id === "search") {
    completeTerms(box);
    searchAsYouType(box.form, box);
  }
  moveAmongResults(box);
}
jumpFromNames();
if (document.querySelector(".lines a")) followLines(document.querySelector(".code"));
if (navigator.clipboard) copyLinks(); // only on https and this machine
